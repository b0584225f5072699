"""A sampler without a model: replies come from a function and are recorded."""

from collections.abc import Callable
from typing import Any

import numpy as np

from terrella.core.tokens import Sampled


class ScriptedSampler:
    """`reply(rng)` returns the ids of a reply; `rng` depends on the seed of the request."""

    def __init__(self, reply: Callable[[Any], tuple[int, ...]]) -> None:
        """`sampled` maps a session, without its number, to its replies in order."""
        self.reply = reply
        self.sampled: dict[str, list[tuple[int, ...]]] = {}

    async def sample(self, request: Any) -> Sampled:
        rng = np.random.default_rng(request.seed)
        ids = tuple(self.reply(rng))[: request.max_new_tokens]
        session = (request.session or "").partition("#")[0]
        self.sampled.setdefault(session, []).append(ids)
        logprobs = tuple(float(value) for value in -rng.random(len(ids)))
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=ids[-1] in request.stop_ids)

    def release(self, session: str) -> None:
        """Nothing to release."""
