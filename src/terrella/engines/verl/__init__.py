"""The engine for clusters: stock verl. Only this package imports verl."""
