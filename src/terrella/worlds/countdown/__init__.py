"""Countdown: reach a target with an arithmetic expression: see README.md in this folder."""

from terrella.worlds.countdown.env import Countdown

__all__ = ["Countdown"]
