"""What a world model is asked and what it answers: a query, and a distribution over results.

A `WorldModel` (see `protocols.py`) maps each `Query` to a `PredictiveDistribution`. Learned models,
baselines and the exact dynamics of a world all use these two records, whatever the modality.
    distribution = model.predict([Query(situation, "Right")])[0]; distribution.draw(uniform=0.3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import PredictionError
from terrella.core.types import Prediction, Situation, Transition


@dataclass(frozen=True, slots=True)
class Query:
    """Asks a world model for the result of an action in a situation."""

    situation: Situation
    action: str

    def after(self, predicted: Prediction) -> Situation:
        """The situation that a prediction leads to: its step is the last one of the history.

        A model of frames reads the history; without the step it would not see the planned action.
        """
        step = Transition(
            observation=self.situation.observation,
            action=self.action,
            next_observation=predicted.observation,
            reward=predicted.reward,
            terminated=predicted.terminated,
        )
        return replace(
            self.situation,
            observation=predicted.observation,
            history=(*self.situation.history, step),
            steps_left=self.situation.steps_left - 1,
        )


@dataclass(frozen=True, slots=True)
class PredictiveDistribution:
    """Distinct predictions, most likely first.

    The `logprob` of a prediction is its log-probability under the model.
    """

    predictions: tuple[Prediction, ...]
    counts: tuple[int, ...] = ()
    """Number of samples that gave each prediction; empty if nothing was sampled (exact models)."""
    unreadable: int = 0
    """Samples that could not be parsed as an observation and an outcome."""

    @property
    def _logprobs(self) -> NDArray[np.float64]:
        """The log-probabilities; one that is not finite is refused: every sum of it would be."""
        for prediction in self.predictions:
            if not math.isfinite(prediction.logprob):
                raise PredictionError(
                    "world model",
                    f"a prediction has the log-probability {prediction.logprob}",
                    "check the weights: training may have diverged, or overflows at this precision",
                )
        return np.array([min(p.logprob, 0.0) for p in self.predictions], float)

    @property
    def chances(self) -> NDArray[np.float64]:
        """Probability of each prediction under the model.

        They sum to less than 1 if the model can say something that was not sampled.
        """
        probabilities: NDArray[np.float64] = np.exp(self._logprobs)
        return probabilities

    @property
    def shares(self) -> NDArray[np.float64]:
        """Probability of each prediction when one is drawn; they sum to `readable`.

        Relative to the most likely one, so that those of long predictions do not underflow.
        """
        logprobs = self._logprobs
        if not len(logprobs):
            return logprobs
        relative = np.exp(logprobs - logprobs.max())
        shares: NDArray[np.float64] = self.readable * relative / relative.sum()
        return shares

    @property
    def missing(self) -> float:
        """Probability mass of everything that was not sampled or could not be parsed."""
        return max(0.0, 1.0 - float(self.chances.sum()))

    @property
    def readable(self) -> float:
        """Share of the samples that could be parsed; 1 if nothing was sampled (exact models)."""
        sampled = sum(self.counts) + self.unreadable
        return sum(self.counts) / sampled if sampled else 1.0

    @property
    def disagreement(self) -> float:
        """Share of the samples that differ from the most frequent prediction."""
        sampled = sum(self.counts) + self.unreadable
        return 1.0 - max(self.counts, default=0) / sampled if sampled else 0.0

    def draw(self, uniform: float) -> Prediction | None:
        """Draw a prediction with a uniform number in [0, 1).

        None as often as a sample could not be parsed.
        """
        if not self.predictions or uniform > self.readable:
            return None
        index = int(np.searchsorted(np.cumsum(self.shares), uniform, side="right"))
        return self.predictions[min(index, len(self.predictions) - 1)]
