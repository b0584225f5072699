"""Imagination ends where a model is less sure than on held-out recordings.

A limit on the model's own risk, not a certificate: nothing is promised about errors that the model
does not notice, or about those that add up over an episode.
    most = risk_limit(model, episodes, max_steps=16, share=0.99)
    world = imagined_video_world(config, RiskStop(model, most))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.types import Episode, Situation


class RiskStop:
    """`core.protocols.WorldModel` that says nothing above a risk; an imagined episode ends there.

    An imagined world then gives no reward, and a planner counts it as the worst.
    """

    def __init__(self, model: WorldModel, most: float) -> None:
        """`most` is the largest risk of a prediction that is passed on."""
        self.model = model
        self.most = most

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """The model's distributions; empty ones where it is not sure enough."""
        distributions = self.model.predict(queries)
        sure = [risk_of(distribution) <= self.most for distribution in distributions]
        nothing = PredictiveDistribution((), (), 1)
        return [
            distribution if each else nothing
            for distribution, each in zip(distributions, sure, strict=True)
        ]


def risk_of(distribution: PredictiveDistribution) -> float:
    """The model's own risk of its most likely prediction; 1 where it predicts nothing."""
    return distribution.predictions[0].risk if distribution.predictions else 1.0


def risk_limit(
    model: WorldModel, episodes: Sequence[Episode], *, max_steps: int, share: float
) -> float:
    """The risk that this share of the steps of held-out episodes stays within.

    Every step is predicted from the real frames before it.
    """
    queries = [
        Query(_situation(episode, index, max_steps), step.action)
        for episode in episodes
        for index, step in enumerate(episode.transitions)
    ]
    if not queries:
        raise ConfigError("held-out recordings", "have no step", "record episodes to hold out")
    risks = [risk_of(distribution) for distribution in model.predict(queries)]
    return float(np.quantile(risks, share, method="higher"))


def _situation(episode: Episode, index: int, max_steps: int) -> Situation:
    return Situation(
        instruction="",
        observation=episode.transitions[index].observation,
        actions=(),
        history=episode.transitions[:index],
        steps_left=max_steps - index,
    )
