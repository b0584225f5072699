"""WebArena tasks as a world."""

from terrella.worlds.webarena.env import WebArena

__all__ = ["WebArena"]
