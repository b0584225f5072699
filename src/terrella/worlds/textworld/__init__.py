"""TextWorld: generated text games with ground-truth facts; see docs/text_games.md."""

from terrella.worlds.textworld.env import TextWorld

__all__ = ["TextWorld"]
