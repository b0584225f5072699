"""The engine for clusters: stock verl behind the same seam. verl is imported here and nowhere else."""
