"""Keeps the tokens of every n-th step of a run, with their log-probabilities and advantages, for the viewer.

Costs a file of a few hundred kilobytes per kept step and nothing else; changes no result. The trainer calls it.
    trainer.recorder = TokenRecorder(out / "tokens", codec, tokenizer, every=10)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from terrella.core.protocols import Codec, TokenEpisode
from terrella.core.types import Text, show_text
from terrella.data.token_records import token_record, write_records
from terrella.engines.trl.rlvr_batch import Kept


class TokenRecorder:
    """Called with what was sampled at a step and what of it counts in the loss."""

    def __init__(self, folder: Path, codec: Codec, tokenizer: Any, *, every: int) -> None:
        """`codec` reads predictions out of replies."""
        self.folder, self.codec, self.every = folder, codec, every
        self.decode = lru_cache(maxsize=None)(lambda token: str(tokenizer.decode([token])))

    def __call__(self, step: int, episodes: Sequence[TokenEpisode], kept: Sequence[Kept]) -> None:
        """Write the step, if it is its turn."""
        if step % self.every:
            return
        counted = {id(one.episode): one for one in kept}
        rows = [token_record(e, self.decode, _per_token(counted.get(id(e))), self._predicted(e)) for e in episodes]
        write_records(self.folder, step, rows)

    def _predicted(self, episode: TokenEpisode) -> str | None:
        """What a world model said; None for an agent, or when it cannot be read."""
        if episode.record is not None:
            return None
        found = self.codec.read_observation(episode.completion_ids, like=Text(""))
        return None if found is None else show_text(found)


def _per_token(kept: Kept | None) -> list[float] | None:
    """The advantage of each token; a turn's is that of its tokens."""
    if kept is None:
        return None
    episode = kept.episode
    if not kept.turns:
        return [kept.advantage] * len(episode.completion_ids)
    begins = (0, *episode.turn_ends)
    spans = zip(begins, episode.turn_ends, kept.turns, strict=False)
    found = [advantage for begin, end, advantage in spans for _ in range(end - begin)]
    return found + [0.0] * (len(episode.completion_ids) - len(found))
