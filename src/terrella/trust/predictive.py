"""Compares what a world model predicts with what really happens.

`overlap` is the measure that everything in `trust/` uses: the share of the true distribution that
the predicted one covers. It works for every modality, because the verifier decides what matches.
    distribution = model.predict([Query(situation, "Right")])[0]
    error = 1 - overlap(distribution, truth, before, verifier)
"""

from __future__ import annotations

import math

from terrella.core.errors import VerifierError
from terrella.core.judge import judge
from terrella.core.predictive import PredictiveDistribution
from terrella.core.protocols import Verifier
from terrella.core.types import Frames, Observation, Prediction

SAME_REWARD = 1e-3
"""Rewards that differ by less count as equal: a model writes them as decimals."""


def matches(
    predicted: Prediction, true: Prediction, before: Observation, verifier: Verifier
) -> float:
    """1 if two results of a step are the same according to the verifier, else 0.

    Only frames get partial credit: their similarity (`closeness`), not the gain that is a reward.
    """
    if predicted.terminated != true.terminated or predicted.success != true.success:
        return 0.0
    if not abs(predicted.reward - true.reward) <= SAME_REWARD:  # NaN is another reward
        return 0.0
    if predicted.observation == true.observation:
        return 1.0
    verdict = judge(verifier, reply=predicted.observation, truth=true.observation, before=before)
    if verdict.value is None:
        raise VerifierError(
            type(verifier).__name__, f"no verdict on a prediction: {verdict.evidence}"
        )
    if isinstance(true.observation, Frames):
        return verdict.parts.get("closeness", verdict.value)
    return float(verdict.value == 1.0)


def predicted_prob(
    distribution: PredictiveDistribution,
    result: Prediction,
    before: Observation,
    verifier: Verifier,
) -> float:
    """Probability of a result when a prediction is drawn: normalized over what was sampled.

    Samples that could not be parsed are drawn, too, and match nothing.
    """
    pairs = zip(distribution.predictions, distribution.shares, strict=True)
    return float(
        min(
            1.0,
            sum(
                chance * matches(predicted, result, before, verifier) for predicted, chance in pairs
            ),
        )
    )


def overlap(
    distribution: PredictiveDistribution,
    truth: PredictiveDistribution,
    before: Observation,
    verifier: Verifier,
) -> float:
    """Share of the true distribution that the predicted one covers.

    This is 1 minus the total variation distance. In a deterministic world it is the probability of
    being right. If the truth sums to less than 1, the remainder counts as wrong.
    """
    pairs = zip(truth.predictions, truth.chances, strict=True)
    return float(
        min(
            1.0,
            sum(
                min(chance, predicted_prob(distribution, true, before, verifier))
                for true, chance in pairs
            ),
        )
    )


def certain(
    observation: Observation, reward: float, terminated: bool, success: bool, chance: float = 1.0
) -> Prediction:
    """A prediction without risk: one outcome of the exact dynamics, or of a baseline."""
    return Prediction(
        observation=observation,
        reward=reward,
        terminated=terminated,
        success=success,
        logprob=math.log(chance),
        risk=0.0,
    )
