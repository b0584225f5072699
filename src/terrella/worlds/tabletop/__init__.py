"""A robot hand, a block and a goal on a table, seen by a camera; see README.md."""

from terrella.worlds.tabletop.env import Tabletop, write_action

__all__ = ["Tabletop", "write_action"]
