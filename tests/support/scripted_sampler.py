"""A sampler without a model: replies from a function, in any tokenisation, and a memory of what was sampled."""

from collections.abc import Callable
from typing import Any

import numpy as np

from terrella.core.protocols import Sampled


class ScriptedSampler:
    """`reply(rng)` gives the ids of a reply; the seed of the request decides the random numbers."""

    def __init__(self, reply: Callable[[Any], tuple[int, ...]]) -> None:
        """`sampled` maps a session to its replies, in order."""
        self.reply = reply
        self.sampled: dict[str, list[tuple[int, ...]]] = {}

    async def sample(self, request: Any) -> Sampled:
        """The next reply of a session."""
        rng = np.random.default_rng(request.seed)
        ids = tuple(self.reply(rng))[: request.max_new_tokens]
        self.sampled.setdefault(request.session, []).append(ids)
        logprobs = tuple(float(value) for value in -rng.random(len(ids)))
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=ids[-1] in request.stop_ids)

    def release(self, session: str) -> None:
        """Nothing was kept."""
