"""Planning in a world model: enumeration, beam, best of n for named actions; `plan_continuous.py` is for numbers.

A planner is a policy: it is asked at every step, looks ahead in beliefs, and does the first action of what it liked
best (model-predictive control). Risk costs: `risk_weight` is what a certain error is worth in reward.
    policy = Planner(Planner.Config(method="enumerate", depth=8), assessor); policy.act(moment)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import PolicyError
from terrella.core.types import Moment, Observation, Situation
from terrella.trust.beliefs import Belief, Question
from terrella.trust.risk import Assessor


@dataclass
class Spent:
    """What planning took."""

    plans: int = 0
    questions: int = 0


@dataclass(order=True)
class _Path:
    """A sequence of actions on the likeliest branch."""

    score: float
    actions: tuple[str, ...] = field(compare=False)
    observation: Observation = field(compare=False)
    over: bool = field(compare=False, default=False)


class Planner(Configurable):
    """Looks ahead with a world model before each action."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How far and how wide to look."""

        method: Literal["enumerate", "beam", "best_of_n"] = "enumerate"
        """enumerate: all actions over all believed states, chance included; the others follow the likeliest results."""
        depth: int = 4
        width: int = 16
        """Paths that a beam keeps, sequences that best_of_n tries."""
        most_states: int = 2000
        """Enumeration looks at no more believed states than this; deeper ones are worth nothing."""
        discount: float = 0.98
        """Below 1, so that sooner is better."""
        risk_weight: float = 0.0

    config: Config

    def __init__(self, config: Config, assessor: Assessor) -> None:
        """The assessor gives beliefs and their risk."""
        super().__init__(config)
        self.assessor, self.spent = assessor, Spent()
        self.name = f"planner({config.method},{config.depth})"

    def act(self, moment: Moment) -> str:
        """The first action of the best plan; ties go to chance, so that a planner without hope still moves."""
        choices = moment.actions or tuple(moment.proposals())
        if not choices:
            raise PolicyError(self.name, "no named actions to plan with", "use ContinuousPlanner for numbers")
        self.spent.plans += 1
        situation = Situation(
            instruction=moment.instruction, observation=moment.observation, actions=choices,
            history=tuple(moment.history), steps_left=moment.steps_left,
        )  # fmt: skip
        depth = min(self.config.depth, moment.steps_left)
        plan = {"enumerate": self._enumerate, "beam": self._beam, "best_of_n": self._best_of_n}[self.config.method]
        values = plan(situation, depth, moment.rng)
        best = max(values.values())
        equal = [action for action, value in values.items() if value >= best - 1e-9]
        return equal[int(moment.rng.integers(len(equal)))]

    def _ask(self, pairs: Sequence[tuple[Observation, str]], situation: Situation) -> list[tuple[Belief, float]]:
        self.spent.questions += len(pairs)
        return self.assessor.assess([Question(replace(situation, observation=o), action) for o, action in pairs])

    # --- all actions over all believed states ---------------------------------------------------------------------

    def _enumerate(self, situation: Situation, depth: int, rng: np.random.Generator) -> dict[str, float]:
        """Expected value of each action: states are met level by level, then valued backwards."""
        actions, first = situation.actions, situation.observation
        known: dict[tuple[Observation, str], tuple[Belief, float]] = {}
        levels, met = [[first]], {first}
        for _ in range(depth):
            pairs = [(seen, action) for seen in levels[-1] for action in actions]
            known.update(zip(pairs, self._ask(pairs, situation), strict=True))
            after = dict.fromkeys(
                said.observation for pair in pairs for said in known[pair][0].predictions if not said.terminated
            )
            fresh = [seen for seen in after if seen not in met][: max(0, self.config.most_states - len(met))]
            met.update(fresh)
            levels.append(fresh)
        reached = [seen for level in levels[:-1] for seen in level]
        values: dict[Observation, float] = {}
        for _ in range(depth - 1):
            values = {seen: max(self._value(known[seen, a], values) for a in actions) for seen in reached}
        return {action: self._value(known[first, action], values) for action in actions}

    def _value(self, told: tuple[Belief, float], later: dict[Observation, float]) -> float:
        belief, risk = told
        chances = belief.chances
        total = chances.sum() or 1.0
        value = -self.config.risk_weight * risk
        for said, chance in zip(belief.predictions, chances, strict=True):
            rest = 0.0 if said.terminated else later.get(said.observation, 0.0)
            value += chance / total * (said.reward + self.config.discount * rest)
        return float(value)

    # --- paths along the likeliest results ------------------------------------------------------------------------

    def _beam(self, situation: Situation, depth: int, rng: np.random.Generator) -> dict[str, float]:
        paths = [_Path(0.0, (), situation.observation)]
        for place in range(depth):
            going = [path for path in paths if not path.over]
            pairs = [(path, action) for path in going for action in situation.actions]
            grown = self._extend(pairs, situation, place) + [path for path in paths if path.over]
            order = rng.permutation(len(grown))  # equal scores: by chance, not by the order of the actions
            best = sorted((grown[i] for i in order), key=lambda path: -path.score)
            paths = _different(best)[: self.config.width]
        return _best_by_first(paths)

    def _best_of_n(self, situation: Situation, depth: int, rng: np.random.Generator) -> dict[str, float]:
        actions = situation.actions
        # Every first action is tried; the rest of a sequence is drawn.
        drawn = [[actions[n % len(actions)], *rng.choice(actions, depth - 1)] for n in range(self.config.width)]
        paths = [_Path(0.0, (), situation.observation) for _ in drawn]
        for place in range(depth):
            going = [n for n, path in enumerate(paths) if not path.over]
            extended = self._extend([(paths[n], str(drawn[n][place])) for n in going], situation, place)
            for n, path in zip(going, extended, strict=True):
                paths[n] = path
        return _best_by_first(paths)

    def _extend(self, pairs: Sequence[tuple[_Path, str]], situation: Situation, place: int) -> list[_Path]:
        told = self._ask([(path.observation, action) for path, action in pairs], situation)
        return [self._longer(p, a, b, risk, place) for (p, a), (b, risk) in zip(pairs, told, strict=True)]

    def _longer(self, path: _Path, action: str, belief: Belief, risk: float, place: int) -> _Path:
        score = path.score - self.config.risk_weight * risk * self.config.discount**place
        if not belief.predictions:
            return _Path(score, (*path.actions, action), path.observation, over=True)
        said = belief.predictions[0]
        score += said.reward * self.config.discount**place
        return _Path(score, (*path.actions, action), said.observation, said.terminated)


def _different(paths: Sequence[_Path]) -> list[_Path]:
    """The best path to each observation."""
    first: dict[tuple[Observation, bool], _Path] = {}
    for path in paths:
        first.setdefault((path.observation, path.over), path)
    return list(first.values())


def _best_by_first(paths: Sequence[_Path]) -> dict[str, float]:
    values: dict[str, float] = {}
    for path in paths:
        values[path.actions[0]] = max(values.get(path.actions[0], -np.inf), path.score)
    return values
