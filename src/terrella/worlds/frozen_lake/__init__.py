"""FrozenLake: cross the ice to the goal without falling into a hole. Rules in `env.py`, figures in README.md."""

from terrella.worlds.frozen_lake.env import FrozenLake

__all__ = ["FrozenLake"]
