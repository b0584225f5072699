"""World models in use: prediction, imagined environments, planning."""
