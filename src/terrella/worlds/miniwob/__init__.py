"""MiniWoB++ as a world."""

from terrella.worlds.miniwob.env import MiniWob

__all__ = ["MiniWob"]
