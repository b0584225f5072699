"""Bandit: two named arms, one pull: see README.md in this folder."""

from terrella.worlds.bandit.env import Bandit

__all__ = ["Bandit"]
