"""Sokoban: push every box onto a target. The rules are in `env.py`, the scores in README.md."""

from terrella.worlds.sokoban.env import Sokoban

__all__ = ["Sokoban"]
