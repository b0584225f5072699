"""What a world model believes comes of a step: a distribution over predictions, and how far it is from the truth.

Everything in `trust/` speaks of beliefs, whatever the modality: learned models, baselines and the truth itself are all
`Believer`s. The hook that matters is `overlap`: the share of the true distribution that a belief holds.
    belief = model.believe([Question(situation, "Right")])[0]; error = 1 - overlap(belief, truth, before, verifier)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import VerifierError
from terrella.core.judge import judge
from terrella.core.protocols import Verifier
from terrella.core.types import Frames, Observation, Prediction, Situation

SAME_REWARD = 1e-3
"""Rewards that differ by less are the same: a model writes them as decimals."""


@dataclass(frozen=True, slots=True)
class Question:
    """What comes of this action in this situation?"""

    situation: Situation
    action: str


@dataclass(frozen=True, slots=True)
class Belief:
    """Different predictions, likeliest first; `logprob` of each is its probability under the model."""

    predictions: tuple[Prediction, ...]
    counts: tuple[int, ...] = ()
    """How many samples said each; empty where nothing was sampled (the truth)."""
    unreadable: int = 0
    """Samples that could not be read as an observation and an outcome."""

    @property
    def chances(self) -> NDArray[np.float64]:
        """Probability of each prediction under the model; what was never sampled is missing from the sum."""
        found: NDArray[np.float64] = np.exp(np.array([min(p.logprob, 0.0) for p in self.predictions], float))
        return found

    @property
    def missing(self) -> float:
        """Probability that the model gives to what was not sampled, or cannot be read."""
        return max(0.0, 1.0 - float(self.chances.sum()))

    @property
    def disagreement(self) -> float:
        """Share of the samples that do not say what most of them say."""
        asked = sum(self.counts) + self.unreadable
        return 1.0 - max(self.counts, default=0) / asked if asked else 0.0

    def draw(self, uniform: float) -> Prediction | None:
        """One prediction by its chance, from a uniform number; None when nothing could be read."""
        if not self.predictions:
            return None
        edges = np.cumsum(self.chances)
        place = int(np.searchsorted(edges, uniform * edges[-1], side="right"))
        return self.predictions[min(place, len(self.predictions) - 1)]


class Believer(Protocol):
    """A world model that answers many questions at once."""

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """A belief for each question."""
        ...


def matches(said: Prediction, true: Prediction, before: Observation, verifier: Verifier) -> float:
    """1 when two results of a step are the same, by the verifier; partial credit counts for frames only."""
    if said.terminated != true.terminated or said.success != true.success:
        return 0.0
    if abs(said.reward - true.reward) > SAME_REWARD:
        return 0.0
    if said.observation == true.observation:
        return 1.0
    verdict = judge(verifier, reply=said.observation, truth=true.observation, before=before)
    if verdict.value is None:
        raise VerifierError(type(verifier).__name__, f"no verdict on a prediction: {verdict.evidence}")
    return verdict.value if isinstance(true.observation, Frames) else float(verdict.value == 1.0)


def held_of(belief: Belief, result: Prediction, before: Observation, verifier: Verifier) -> float:
    """What imagination gives to this result: the share of the sampled predictions, by their chances, that match it."""
    chances = belief.chances
    if not len(chances):
        return 0.0
    pairs = zip(belief.predictions, chances / chances.sum(), strict=True)
    return float(min(1.0, sum(chance * matches(said, result, before, verifier) for said, chance in pairs)))


def overlap(belief: Belief, truth: Belief, before: Observation, verifier: Verifier) -> float:
    """Share of the true distribution that imagination plays: 1 minus the total variation between the two.

    In a deterministic world this is the chance of being right; truth that sums to less than 1 leaves the rest wrong.
    """
    pairs = zip(truth.predictions, truth.chances, strict=True)
    return float(min(1.0, sum(min(chance, held_of(belief, true, before, verifier)) for true, chance in pairs)))


def certain(
    observation: Observation, reward: float, terminated: bool, success: bool, chance: float = 1.0
) -> Prediction:
    """A prediction that needs no doubt: part of the truth, or a baseline's."""
    return Prediction(
        observation=observation, reward=reward, terminated=terminated, success=success, logprob=math.log(chance),
        risk=0.0,
    )  # fmt: skip
