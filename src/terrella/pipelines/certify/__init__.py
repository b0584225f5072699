"""Measure how far a world model may be believed."""
