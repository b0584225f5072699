"""FrozenLake: cross the ice to the goal without falling into a hole.

The rules are in `env.py`, the baseline scores in README.md.
"""

from terrella.worlds.frozen_lake.env import FrozenLake

__all__ = ["FrozenLake"]
