"""Countdown: reach a target with an arithmetic expression. See README.md in this folder."""

from terrella.worlds.countdown.env import Countdown

__all__ = ["Countdown"]
