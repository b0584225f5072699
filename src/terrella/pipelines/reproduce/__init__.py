"""Arms x seeds of a published comparison."""
