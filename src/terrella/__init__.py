"""Terrella: world models with verifiable rewards, agents trained with them, and how far to believe them."""

__version__ = "0.1.0.dev0"
