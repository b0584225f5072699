"""Accuracy of a world model by horizon.

In the open loop the model continues from its own predictions; in the closed loop every step starts
from a real observation. Accuracy is the overlap with the true distribution, so stochastic worlds
are treated fairly: the open loop propagates whole distributions, of the model and of the truth,
through the same actions (see `spread`). Rewards count as in a single step: a branch is right only
if all rewards on its way are.
    # accuracies at the third step of all episodes that reached it
    open_loop(model, episodes, world, depth=5, instructions=instructions)[2]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.stats import CONFIDENCE, mean_upper_bound, wilson
from terrella.core.types import Episode, Observation, Situation, Transition
from terrella.core.world import World
from terrella.trust.predictive import SAME_REWARD, certain, overlap
from terrella.trust.truth import TrueModel, seen_truth

LIGHTEST, MOST = 1e-3, 32
"""Minimum weight and maximum number of branches; the mass of dropped branches counts as wrong."""


@dataclass(frozen=True)
class ImaginedBranch:
    """One possible course of an episode, with its probability."""

    weight: float
    observation: Observation
    history: tuple[Transition, ...] = ()
    terminated: bool = False
    success: bool = False
    rewards: tuple[float, ...] = ()
    """Rewards of the steps since the loop began."""


def spread(
    model: WorldModel, spreads: Sequence[list[ImaginedBranch]], queries: Sequence[Query]
) -> list[list[ImaginedBranch]]:
    """Advance many branched distributions by one step, in one batch.

    All branches of distribution i take the action of `queries[i]`.
    """
    branch_queries = [
        Query(
            replace(query.situation, observation=b.observation, history=b.history),
            query.action,
        )
        for branches, query in zip(spreads, queries, strict=True)
        for b in branches
        if not b.terminated
    ]
    distributions = iter(model.predict(branch_queries))
    return [
        _merged(_grown(branches, q.action, distributions))
        for branches, q in zip(spreads, queries, strict=True)
    ]


def _grown(
    branches: Sequence[ImaginedBranch], action: str, distributions: Iterator[PredictiveDistribution]
) -> list[ImaginedBranch]:
    grown: list[ImaginedBranch] = []
    for branch in branches:
        grown += [branch] if branch.terminated else _children(branch, action, next(distributions))
    return grown


def _children(
    branch: ImaginedBranch, action: str, distribution: PredictiveDistribution
) -> list[ImaginedBranch]:
    """One branch per prediction; the mass of samples that could not be parsed is lost."""
    chances = distribution.shares
    children = []
    for predicted, chance in zip(distribution.predictions, chances, strict=True):
        step = Transition(
            observation=branch.observation,
            action=action,
            next_observation=predicted.observation,
            reward=predicted.reward,
            terminated=predicted.terminated,
        )
        weight, history = branch.weight * float(chance), (*branch.history, step)
        children.append(
            ImaginedBranch(
                weight,
                predicted.observation,
                history,
                predicted.terminated,
                predicted.success,
                (*branch.rewards, predicted.reward),
            )
        )
    return children


def _merged(branches: Sequence[ImaginedBranch]) -> list[ImaginedBranch]:
    """Merge branches with equal observation, outcome and rewards.

    The heaviest keeps its history.
    """
    by_key: dict[tuple[Observation, bool, bool, tuple[float, ...]], ImaginedBranch] = {}
    for branch in sorted(branches, key=lambda branch: -branch.weight):
        key = (branch.observation, branch.terminated, branch.success, branch.rewards)
        merged = by_key.get(key)
        by_key[key] = (
            branch if merged is None else replace(merged, weight=merged.weight + branch.weight)
        )
    heavy = sorted(
        (b for b in by_key.values() if b.weight >= LIGHTEST), key=lambda branch: -branch.weight
    )
    return heavy[:MOST]


def _as_distribution(
    branches: Sequence[ImaginedBranch], reward_paths: list[tuple[float, ...]]
) -> PredictiveDistribution:
    """The branches as results of one step, whose reward is the number of the branch's rewards.

    `reward_paths` are the rewards that have a number; it grows.
    """
    return PredictiveDistribution(
        tuple(
            certain(
                b.observation,
                float(_number_of(b.rewards, reward_paths)),
                b.terminated,
                b.success,
                min(1.0, b.weight),
            )
            for b in branches
        )
    )


def _number_of(rewards: tuple[float, ...], known: list[tuple[float, ...]]) -> int:
    """The place of these rewards among the known ones, to which new ones are added."""
    for number, other in enumerate(known):
        same = [abs(a - b) <= SAME_REWARD for a, b in zip(rewards, other, strict=False)]
        if len(other) == len(rewards) and all(same):
            return number
    known.append(rewards)
    return len(known) - 1


def query_at(world: World, episode: Episode, index: int, instruction: str) -> Query:
    """The query for step `index` of a recorded episode."""
    step = episode.transitions[index]
    situation = Situation(
        instruction=instruction,
        observation=step.observation,
        actions=(),
        history=episode.transitions[:index],
        steps_left=world.config.max_steps - index,
    )
    return Query(situation, step.action)


def open_loop(
    model: WorldModel,
    episodes: Sequence[Episode],
    world: World,
    depth: int,
    *,
    instructions: Sequence[str],
    starts: Sequence[int] | None = None,
) -> list[list[float]]:
    """Accuracies at depth 1, 2, ... of all episodes that reached it.

    After the observation at its start the model sees only its own predictions. The instructions are
    those of the episodes: a chat model reads them in its prompt. `starts` are the real steps at
    which imagination begins; the first of each episode unless given.
    """
    truth = TrueModel(world) if TrueModel.supports(world) else None
    starts = starts or [0] * len(episodes)
    imagined = [[_root(*each)] for each in zip(episodes, starts, strict=True)]
    trues = [list(branches) for branches in imagined]
    by_depth: list[list[float]] = []
    for index in range(depth):
        alive = _alive(episodes, starts, index)
        queries = [query_at(world, episodes[i], starts[i] + index, instructions[i]) for i in alive]
        grown = spread(model, [imagined[i] for i in alive], queries)
        real = (
            spread(truth, [trues[i] for i in alive], queries)
            if truth
            else [_seen(episodes[i], starts[i], index) for i in alive]
        )
        for i, branches, true in zip(alive, grown, real, strict=True):
            imagined[i], trues[i] = branches, true
        by_depth.append(
            [
                _accuracy(imagined[i], trues[i], q, world)
                for i, q in zip(alive, queries, strict=True)
            ]
        )
    return by_depth


def random_starts(episodes: Sequence[Episode], *, seed: int) -> list[int]:
    """A real step of each episode, drawn uniformly: the gate may begin to imagine at any step."""
    return [
        int(stream(TASK_STREAM, seed, episode.seed, number).integers(len(episode.transitions)))
        if episode.transitions
        else 0
        for number, episode in enumerate(episodes)
    ]


def _alive(episodes: Sequence[Episode], starts: Sequence[int], index: int) -> list[int]:
    """The episodes that have a step `index` after their start."""
    pairs = enumerate(zip(episodes, starts, strict=True))
    return [i for i, (episode, start) in pairs if len(episode.transitions) > start + index]


def _root(episode: Episode, start: int) -> ImaginedBranch:
    """The real situation at step `start`."""
    first = episode.transitions[start].observation if start else episode.first
    return ImaginedBranch(1.0, first, episode.transitions[:start])


def _seen(episode: Episode, start: int, index: int) -> list[ImaginedBranch]:
    """What was seen `index` steps after the start, with the rewards on the way."""
    taken = episode.transitions[start : start + index + 1]
    only = seen_truth(taken[-1]).predictions[0]
    rewards = tuple(step.reward for step in taken)
    return [ImaginedBranch(1.0, only.observation, (), only.terminated, only.success, rewards)]


def _accuracy(
    imagined: Sequence[ImaginedBranch],
    true: Sequence[ImaginedBranch],
    query: Query,
    world: World,
) -> float:
    """Overlap of two distributions.

    Mass that the imagined one has lost on the way (unreadable or dropped) counts as wrong.
    """
    mass = min(1.0, sum(branch.weight for branch in imagined))
    reward_paths: list[tuple[float, ...]] = []
    return mass * overlap(
        _as_distribution(imagined, reward_paths),
        _as_distribution(true, reward_paths),
        query.situation.observation,
        world.verifier,
    )


def closed_loop(
    model: WorldModel,
    episodes: Sequence[Episode],
    world: World,
    depth: int,
    *,
    instructions: Sequence[str],
    starts: Sequence[int] | None = None,
) -> list[list[float]]:
    """Accuracies of the step at depth 1, 2, ... after `starts` if all steps before it were real."""
    starts = starts or [0] * len(episodes)
    by_depth: list[list[float]] = []
    for index in range(depth):
        alive = _alive(episodes, starts, index)
        queries = [query_at(world, episodes[i], starts[i] + index, instructions[i]) for i in alive]
        steps = [episodes[i].transitions[starts[i] + index] for i in alive]
        truths = true_distributions(world, queries, steps)
        by_depth.append(accuracies(model.predict(queries), truths, queries, world))
    return by_depth


def true_distributions(
    world: World, queries: Sequence[Query], steps: Sequence[Transition]
) -> list[PredictiveDistribution]:
    """The exact distribution of each step if the world can give it, else the recorded result."""
    return (
        TrueModel(world).predict(queries)
        if TrueModel.supports(world)
        else [seen_truth(step) for step in steps]
    )


def accuracies(
    distributions: Sequence[PredictiveDistribution],
    truths: Sequence[PredictiveDistribution],
    queries: Sequence[Query],
    world: World,
) -> list[float]:
    """Overlap of each distribution with its truth."""
    triples = zip(distributions, truths, queries, strict=True)
    return [overlap(d, t, q.situation.observation, world.verifier) for d, t, q in triples]


def mean_row(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, 95% interval and n of shares as JSON; without a value they are None.

    The interval is Wilson's: it has a width also where all values are 0 or all are 1.
    """
    if not values:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = float(np.mean(values))
    low, high = wilson(min(1.0, max(0.0, mean)) * len(values), len(values))
    return {"mean": mean, "low": low, "high": high, "n": len(values)}


def carried(by_depth: Sequence[Sequence[float]], lengths: Sequence[int]) -> NDArray[np.float64]:
    """Accuracies [episode, depth] of episodes of these lengths.

    An episode that has ended keeps the accuracy of its last step, so every depth has all episodes.
    """
    table = np.ones((len(lengths), len(by_depth)))  # without a step nothing is wrong
    for depth, values in enumerate(by_depth):
        alive = [number for number, length in enumerate(lengths) if length > depth]
        if depth:
            table[:, depth] = table[:, depth - 1]
        table[alive, depth] = values
    return table


def accuracy_bound(groups: Sequence[Sequence[float]]) -> float:
    """Lower bound of the mean accuracy of the worst group, each at the confidence `CONFIDENCE`.

    It needs no assumption but that the episodes of a group are independent.
    """
    return min(
        1.0 - mean_upper_bound([1.0 - value for value in values], confidence=CONFIDENCE)
        for values in groups
    )


def least_reached(error: float) -> int:
    """Fewest episodes that can show an error by their own steps, if none of them is wrong."""
    return math.ceil(round(math.log(1.0 - CONFIDENCE) / math.log(1.0 - error), 9))


def safe_horizon(bounds: Sequence[float], reached: Sequence[int], *, error: float) -> int:
    """Deepest step up to which the open-loop error is shown to be at most `error`.

    Depths are tested in order and the first failure ends it, which needs no correction. `reached`
    are the episodes that had a step at each depth. Most bounds of a depth that few reach are of
    episodes that ended before it, so too few (`least_reached`) end the horizon, too.
    """
    for depth, (bound, episodes) in enumerate(zip(bounds, reached, strict=True)):
        if bound < 1.0 - error or episodes < least_reached(error):
            return depth
    return len(bounds)
