"""Stages: what you run. Each reads a folder or a config, writes a folder or a table, and is readable top to bottom."""
