"""A robot hand, a block and a goal on a table, seen by a camera; see README.md."""

from terrella.worlds.tabletop.env import Tabletop

__all__ = ["Tabletop"]
