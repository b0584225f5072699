"""The engine for one machine: TRL on accelerate."""
