"""Video world models."""
