"""Oracles for the parts of a web agent: the real world in place of what is learnt.

A second world is brought to the same page by replaying the episode's actions, so an oracle costs
time and disturbs nothing. With an oracle in place of one part, what is lost is due to the others.
    real = RealPages(world_config); real.begin(seed=3, split=Split.TEST)
    model, value = real, TrueValue(real); proposals = RightActionAmong(proposer, real, width=4)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.types import Observation, Prediction, Situation, Split
from terrella.core.world import World
from terrella.world_models.planner_web import ActionProposer, Proposals

DISCOUNT = 0.95
"""Discount of a success, per step that the expert needs for it."""


@dataclass(frozen=True, slots=True)
class RealStep:
    """Where a course of actions leads."""

    observation: Observation
    reward: float
    terminated: bool
    success: bool
    expert: str
    """What the expert does there; empty at the end of an episode."""


class RealPages:
    """`WorldModel` over a copy of the real world; predictions are what happens."""

    def __init__(self, world: World.Config) -> None:
        self.world: World = world.build()
        self.max_steps = world.max_steps
        self.seed, self.split = 0, Split.TRAIN
        self.env_steps = 0
        """Actions that the copy has carried out."""
        self._path: tuple[str, ...] | None = None
        """The actions since the last reset; None before it."""
        self._known: dict[tuple[str, ...], RealStep] = {}

    def begin(self, *, seed: int, split: Split) -> None:
        """Follow this episode from now on."""
        self.seed, self.split = seed, split
        self._path = None
        self._known = {}

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        return [
            self._distribution(self.follow(_path(each.situation, each.action))) for each in queries
        ]

    def _distribution(self, step: RealStep) -> PredictiveDistribution:
        prediction = Prediction(
            observation=step.observation,
            reward=step.reward,
            terminated=step.terminated,
            success=step.success,
            logprob=0.0,
            risk=0.0,
        )
        return PredictiveDistribution((prediction,), (1,), 0)

    def follow(self, path: Sequence[str]) -> RealStep:
        """Where these actions lead from the start of the episode; what follows its end is void."""
        for length in range(1, len(path) + 1):
            known = self._known.get(tuple(path[:length]))
            if known is not None and known.terminated:
                return known
        done = tuple(path)
        if done not in self._known:
            self._go_to(done[:-1])
            if self._path == done[:-1]:
                self._step(done[-1])
            else:  # the episode ended on the way
                return self._known[self._path or ()]
        return self._known[done]

    def expert_at(self, path: Sequence[str]) -> str:
        """What the expert does after these actions; empty where the episode is over."""
        if path:
            return self.follow(path).expert
        self._go_to(())
        return self._expert(over=False)

    def _go_to(self, path: tuple[str, ...]) -> None:
        """Bring the copy to where these actions lead, or to the end of the episode before."""
        here = self._path
        if here is None or path[: len(here)] != here or self._is_over(here):
            self.world.reset(seed=self.seed, options={"split": self.split})
            here = self._path = ()
        for action in path[len(here) :]:
            if self._step(action).terminated:
                return

    def _is_over(self, path: tuple[str, ...]) -> bool:
        known = self._known.get(path)
        return (known is not None and known.terminated) or len(path) >= self.max_steps

    def _step(self, action: str) -> RealStep:
        assert self._path is not None
        observation, reward, terminated, truncated, info = self.world.step(action)
        self.env_steps += 1
        self._path = (*self._path, action)
        step = RealStep(
            observation,
            reward,
            terminated,
            bool(info.get("success")),
            self._expert(over=terminated or truncated),
        )
        self._known[self._path] = step
        return step

    def _expert(self, *, over: bool) -> str:
        if over:
            return ""
        left = self.max_steps - len(self._path or ())
        return self.world.expert(self.world.state, left, stream(POLICY_STREAM, self.seed, 0))


def _path(situation: Situation, *more: str) -> tuple[str, ...]:
    """All actions of an episode, real and imagined."""
    return (*(step.action for step in situation.history), *more)


class TrueValue:
    """What the expert makes of the real page to which the same actions lead."""

    calls_per_page = 0
    """It asks the world, not a model."""

    def __init__(self, real: RealPages) -> None:
        self.real = real
        self.calls = 0

    def value(self, situations: Sequence[Situation]) -> list[float]:
        """1 for a task that is done, less for each step that the expert needs, 0 if it fails."""
        return [self._value(_path(situation)) for situation in situations]

    def _value(self, path: tuple[str, ...]) -> float:
        steps = 0
        real = self.real
        while len(path) < real.max_steps:
            if path and (now := real.follow(path)).terminated:
                return DISCOUNT**steps if now.success else 0.0
            path = (*path, real.expert_at(path))
            steps += 1
        return DISCOUNT**steps if real.follow(path).success else 0.0


class RightActionAmong:
    """The proposals of a policy, with the expert's action among them: last, and not marked."""

    def __init__(self, proposer: ActionProposer, real: RealPages, *, width: int) -> None:
        """`width` is how many proposals the planner looks at."""
        self.proposer = proposer
        self.real = real
        self.width = width
        self.missing = 0
        """Pages for which the policy did not propose it."""
        self.pages = 0

    @property
    def calls(self) -> int:
        return self.proposer.calls

    @property
    def calls_per_page(self) -> int:
        return self.proposer.calls_per_page

    def propose(self, situations: Sequence[Situation]) -> list[Proposals]:
        proposals = self.proposer.propose(situations)
        return [self._add(each, own) for each, own in zip(situations, proposals, strict=True)]

    def _add(self, situation: Situation, proposals: Proposals) -> Proposals:
        right = self.real.expert_at(_path(situation))
        self.pages += 1
        if not right or right in [action for action, _ in proposals[: self.width]]:
            return proposals[: self.width]
        self.missing += 1
        return [*proposals[: self.width - 1], (right, 0.0)]
