"""ByteSized32: predict the next state of recorded text games. See docs/text_games.md."""

from terrella.worlds.bytesized32.env import ByteSized32

__all__ = ["ByteSized32"]
