"""Play episodes into a store."""
