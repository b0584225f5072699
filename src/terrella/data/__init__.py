"""Data on disk: the episode store."""
