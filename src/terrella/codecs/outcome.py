"""What a step earned and whether it ended the episode, as a short span that follows a predicted observation.

The observation's reply stays as it is and ends with its stop token, so that every codec and verifier still reads it;
the model then writes one span more: the reward, and `>` (goes on), `.` (over) or `!` (over, and won).
    words = OutcomeWords(tokenizer, codec.stop_ids); words.read(words.answer(1.0, True, True)) == (1.0, True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from terrella.core.protocols import Tokenizer

GOES_ON, OVER, WON = ">", ".", "!"
LONGEST = 16
"""Tokens such a span may take."""


class OutcomeWords:
    """Reward, end and success to token ids and back, for any tokenizer."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: tuple[int, ...]) -> None:
        """`stop_ids` are the codec's: the span ends as a reply does."""
        self.tokenizer, self.stop_ids = tokenizer, stop_ids

    def answer(self, reward: float, terminated: bool, success: bool) -> tuple[int, ...]:
        """The span that says this."""
        end = (WON if success else OVER) if terminated else GOES_ON
        text = f"{round(reward, 4):g}{end}"
        return (*self.tokenizer.encode(text, add_special_tokens=False), self.stop_ids[0])

    def read(self, token_ids: Sequence[int]) -> tuple[float, bool, bool] | None:
        """(reward, terminated, success), or None for what is not such a span."""
        if not token_ids or token_ids[-1] not in self.stop_ids:
            return None
        text = self.tokenizer.decode(list(token_ids[:-1])).strip()
        number, end = text[:-1], text[-1:]
        try:
            reward = float(number)
        except ValueError:
            return None
        if end not in (GOES_ON, OVER, WON) or not math.isfinite(reward):
            return None
        return reward, end != GOES_ON, end == WON
