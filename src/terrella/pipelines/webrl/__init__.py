"""WebRL: reinforcement learning with a self-evolving curriculum."""
