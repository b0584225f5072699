"""What an SPA run measured, by part and by world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from terrella.evals.results import RlCost, TestScores


@dataclass(frozen=True, kw_only=True)
class SelfPlayCost:
    """What self-play cost."""

    env_steps: int
    """Actions carried out in real worlds."""
    episodes: int


@dataclass(frozen=True, kw_only=True)
class SelfPlayResult(SelfPlayCost):
    """What self-play cost, and the model after SFT on it."""

    examples: int
    validation: TestScores | None
    validation_by_world: dict[str, TestScores] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpaResult:
    """Scores of each part; None where an arm leaves the part out.

    With several worlds they are of the first, and `*_by_world` has those of each.
    """

    base: TestScores | None
    self_play: SelfPlayResult | None
    rl: RlCost
    test: TestScores
    base_by_world: dict[str, TestScores] = field(default_factory=dict)
    test_by_world: dict[str, TestScores] = field(default_factory=dict)

    @property
    def after_sft(self) -> TestScores | None:
        """Validation scores between self-play and RL."""
        return self.self_play.validation if self.self_play else None


def first_of(scores: Mapping[str, TestScores]) -> TestScores | None:
    """The metrics of the first world; None where nothing was evaluated."""
    return next(iter(scores.values()), None)


def if_several(scores: Mapping[str, TestScores]) -> dict[str, TestScores]:
    """By world, unless there is only one."""
    return dict(scores) if len(scores) > 1 else {}
