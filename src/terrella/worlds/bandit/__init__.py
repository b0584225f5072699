"""Bandit: pull one of two named arms. See README.md in this folder."""

from terrella.worlds.bandit.env import Bandit

__all__ = ["Bandit"]
