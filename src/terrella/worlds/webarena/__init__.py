"""WebArena tasks in real Chromium; see env.py."""

from terrella.worlds.webarena.env import WebArena

__all__ = ["WebArena"]
