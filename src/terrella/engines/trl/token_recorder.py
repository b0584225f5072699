"""Records the tokens of every n-th step, with log-probabilities and advantages, for the viewer.

A recorded step costs a file of a few hundred kilobytes; results do not change.
    trainer.recorder = TokenRecorder(out / "tokens", codec, tokenizer, every=10)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from terrella.algos.credit import per_turn
from terrella.core.protocols import Codec
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Text, show_text
from terrella.data.token_records import token_record, write_records
from terrella.engines.trl.rlvr_batch import ScoredEpisode


class TokenRecorder:
    """Called with the episodes of a step and those of them that count in the loss."""

    def __init__(self, folder: Path, codec: Codec, tokenizer: Any, *, every: int) -> None:
        """`codec` reads predictions out of replies."""
        self.folder = folder
        self.codec = codec
        self.every = every
        self.decode = lru_cache(maxsize=None)(lambda token: str(tokenizer.decode([token])))

    def __call__(
        self, step: int, episodes: Sequence[TokenEpisode], scored: Sequence[ScoredEpisode]
    ) -> None:
        if step % self.every:
            return
        by_id = {id(each.episode): each for each in scored}
        records = []
        for episode in episodes:
            advantages = _per_token(by_id.get(id(episode)))
            predicted = self._predicted(episode)
            records.append(token_record(episode, self.decode, advantages, predicted))
        write_records(self.folder, step, records)

    def _predicted(self, episode: TokenEpisode) -> str | None:
        """The observation that a world model predicted; None for agents and unreadable replies."""
        if episode.record is not None:
            return None
        observation = self.codec.read_observation(episode.completion_ids, like=Text(""))
        return None if observation is None else show_text(observation)


def _per_token(scored: ScoredEpisode | None) -> list[float] | None:
    """The advantage of each token: its turn's where credit is given by turn."""
    if scored is None:
        return None
    episode, score = scored
    length = len(episode.completion_ids)
    if not score.turns:
        return [score.advantage] * length
    return per_turn(score.turns, episode.turn_ends, length)
