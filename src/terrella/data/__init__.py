"""Data on disk: the episode store, attempts, token records, and readers of other formats."""
