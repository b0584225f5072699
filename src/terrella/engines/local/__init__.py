"""Sampling in the trainer's own process."""
