"""The engine for a laptop and one node: TRL on accelerate."""
