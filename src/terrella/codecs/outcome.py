"""Reward and termination of a step, as a short span after a predicted observation.

The reply with the observation is unchanged and ends with its stop token, so that every codec and
verifier can still read it. The model then writes a second span: the reward, and `>` (continues),
`.` (terminated) or `!` (terminated with success).
    outcome = OutcomeCodec(tokenizer, codec.stop_ids)
    outcome.read(outcome.answer(1.0, True, True)) == (1.0, True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from terrella.core.protocols import Tokenizer

CONTINUES, TERMINATED, SUCCESS = ">", ".", "!"
MAX_OUTCOME_TOKENS = 16
"""Token limit of such a span."""


class OutcomeCodec:
    """Reward, termination and success to token ids and back, for any tokenizer."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: tuple[int, ...]) -> None:
        """`stop_ids` are the codec's: the span ends like a reply."""
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids

    def answer(self, reward: float, terminated: bool, success: bool) -> tuple[int, ...]:
        """Ids of the span with these values."""
        end = CONTINUES
        if terminated:
            end = SUCCESS if success else TERMINATED
        text = f"{round(reward, 4):g}{end}"
        return (*self.tokenizer.encode(text, add_special_tokens=False), self.stop_ids[0])

    def read(self, token_ids: Sequence[int]) -> tuple[float, bool, bool] | None:
        """(reward, terminated, success), or None if the ids are not such a span."""
        if not token_ids or token_ids[-1] not in self.stop_ids:
            return None
        text = self.tokenizer.decode(list(token_ids[:-1])).strip()
        number, end = text[:-1], text[-1:]
        try:
            reward = float(number)
        except ValueError:
            return None
        if end not in (CONTINUES, TERMINATED, SUCCESS) or not math.isfinite(reward):
            return None
        return reward, end != CONTINUES, end == SUCCESS
