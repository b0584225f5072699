"""One folder per world."""
