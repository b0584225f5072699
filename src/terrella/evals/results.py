"""What the arm of a comparison reports: scores on test instances and the cost of training.

`pipelines/reproduce` compares arms. Any pipeline can be one, if its result has a `test`
(`TestScores`) and an `rl` (`RlCost`).
    TestScores(successes=[8, 3], samples=8, passes={"1": Metric.of([1.0, 0.375])}).means()
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from terrella.core.metric import Metric


@dataclass(frozen=True, kw_only=True)
class TestScores:
    """How an agent did on held-out instances. A field that was not measured is None."""

    __test__: ClassVar[bool] = False
    """Tells pytest that this is not a test case."""

    successes: list[int]
    """Successful samples by instance, in the order of the instances."""
    samples: int
    """Episodes per instance."""
    passes: dict[str, Metric]
    """pass@k by k: "1", "2", "4", ...; an instance with fewer than k judged samples is left out."""
    judged: list[int] | None = None
    """Samples by instance that were not masked; None if none was masked."""
    masked: int = 0
    """Episodes without a verdict: they are in no figure."""
    masked_reason: str = ""
    """Why the first of them was masked."""
    masked_predictions: int = 0
    """Predictions without a verdict; they are not in `true_predictions`."""
    valid_actions: float | None = None
    """Fraction of the actions that the world could take."""
    effective_actions: float | None = None
    """Fraction of the actions that changed the state."""
    well_formed: float | None = None
    """Fraction of the replies in the expected form."""
    true_observations: float | None = None
    """Fraction of the replies that state the observation correctly."""
    true_predictions: float | None = None
    """Fraction of the replies that predict the next observation correctly."""
    turns: float | None = None
    """Per episode."""
    actions: float | None = None
    """Per episode."""
    reply_tokens: float | None = None
    """Per turn."""

    def means(self) -> dict[str, float]:
        """The optional metrics that were measured, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, float)}


@dataclass(frozen=True, kw_only=True)
class RlCost:
    """What reinforcement learning used, and whether it collapsed."""

    env_steps: int
    """Real steps of the world, all parts of the arm together."""
    iterations: int = 0
    collapse: str | None = None
    """Why the run seems to have collapsed, if it does."""


@dataclass(frozen=True, kw_only=True)
class ReferenceScores:
    """Exact scores of random and optimal play on the same instances."""

    random: dict[str, float]
    """pass@k of uniform random play by k."""
    optimal: float
    """Success (pass@1) of optimal play; several tries may win more often."""
    instances: int


class ArmResult(Protocol):
    """What `pipelines/reproduce` reads of an arm's result.

    An arm with SFT before RL may also have `after_sft`, its scores in between, or None.
    """

    @property
    def test(self) -> TestScores: ...

    @property
    def rl(self) -> RlCost: ...
