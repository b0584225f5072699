"""Sokoban: push every box onto a target. Rules in `env.py`, figures in README.md."""

from terrella.worlds.sokoban.env import Sokoban

__all__ = ["Sokoban"]
