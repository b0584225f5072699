"""A page model as a predictor: the changes that it writes are applied to the page it was shown.

It is asked as `terrella plan` asks it. Of a page that does not fit it is shown a part, and its
changes are applied to the whole page.
    predictor = page_predictor(sampler, tokenizer, weights, asked)
    (await predictor.predict(situation, "click 3")).observation
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from terrella.codecs.outcome import MAX_OUTCOME_TOKENS
from terrella.codecs.pages import PageCodecConfig
from terrella.core.predictive import Query
from terrella.core.protocols import Codec, Sampler
from terrella.core.types import Situation
from terrella.engines.engine import max_positions
from terrella.engines.interface import Model
from terrella.evals.predictions import Predicted, TokenPredictor
from terrella.pipelines.web.page_cut import PageCut, whole_page
from terrella.world_models.planner_web import PageReplies


@dataclass(frozen=True, kw_only=True)
class AskedPages:
    """How a page model is asked, and the limits of a question."""

    codec: PageCodecConfig
    turn_tokens: int
    context_tokens: int = 0
    """Most tokens of a question and its answer; 0 is what the model can read."""

    def fits(self, codec: Codec, weights: Model) -> Callable[[Situation, str], bool]:
        """Whether a question leaves room for its answer and the outcome, as in training."""
        limit = self.context_tokens or max_positions(weights)
        room = limit - self.turn_tokens - MAX_OUTCOME_TOKENS
        return lambda situation, action: len(codec.ask_observation(situation, action)) <= room


def page_predictor(
    sampler: Sampler, tokenizer: Any, weights: Model, asked: AskedPages
) -> PagePredictor:
    """The predictor of a page model with these weights."""
    codec = asked.codec.make(tokenizer)
    inner = TokenPredictor(
        sampler,
        cast(Any, PageReplies(codec)),  # what a prediction needs of a codec
        turn_tokens=asked.turn_tokens,
    )
    return PagePredictor(inner, PageCut(asked.fits(codec, weights)))


class PagePredictor:
    """Predicts whole pages, whatever part of them the model is shown."""

    def __init__(self, inner: TokenPredictor, cut: PageCut) -> None:
        self.inner = inner
        self.cut = cut

    async def predict(self, situation: Situation, action: str) -> Predicted:
        short, kept = self.cut.shorten(Query(situation, action))
        answer = await self.inner.predict(short.situation, action)
        if kept is None or answer.observation is None:
            return answer
        shown = short.situation.observation
        page = whole_page(answer.observation, situation.observation, shown, kept)
        return dataclasses.replace(answer, observation=page)
