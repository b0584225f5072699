"""Pipelines: a method end to end; one folder per method."""
