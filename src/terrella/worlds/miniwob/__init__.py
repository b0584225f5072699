"""MiniWoB++ web tasks in real Chromium; see env.py."""

from terrella.worlds.miniwob.env import MiniWob

__all__ = ["MiniWob"]
