"""Accuracy by horizon: on the model's own predictions (open loop) and fed with real observations (closed loop).

Both are shares of the true distribution that the model holds, so that a world with chance in it is judged fairly: the
open loop spreads whole distributions, of the model and of the truth, over the same actions. The hook is `spread`.
    open_loop(model, episodes, world, depth=5)[3]    # accuracies of all episodes that were alive at the third step
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Observation, Situation, Transition
from terrella.core.world import World
from terrella.trust.beliefs import Belief, Believer, Question, certain, overlap
from terrella.trust.truth import TrueModel, seen_truth

LIGHTEST, MOST = 1e-3, 32
"""Branches lighter than this, or beyond this many, are dropped: their mass counts as wrong."""


@dataclass(frozen=True)
class Branch:
    """One way things may have gone."""

    weight: float
    observation: Observation
    history: tuple[Transition, ...] = ()
    terminated: bool = False
    success: bool = False


def spread(model: Believer, spreads: Sequence[list[Branch]], asked: Sequence[Question]) -> list[list[Branch]]:
    """One step of many distributions: branch k of distribution i goes on with the action of `asked[i]`."""
    questions = [
        Question(replace(question.situation, observation=b.observation, history=b.history), question.action)
        for branches, question in zip(spreads, asked, strict=True) for b in branches if not b.terminated
    ]  # fmt: skip
    beliefs = iter(model.believe(questions))
    return [_merged(_grown(branches, q.action, beliefs)) for branches, q in zip(spreads, asked, strict=True)]


def _grown(branches: Sequence[Branch], action: str, beliefs: Iterator[Belief]) -> list[Branch]:
    grown: list[Branch] = []
    for branch in branches:
        grown += [branch] if branch.terminated else _children(branch, action, next(beliefs))
    return grown


def _children(branch: Branch, action: str, belief: Belief) -> list[Branch]:
    """One branch per prediction; what could not be read is lost."""
    chances = belief.chances / belief.chances.sum() if belief.predictions else belief.chances
    children = []
    for said, chance in zip(belief.predictions, chances, strict=True):
        step = Transition(observation=branch.observation, action=action, next_observation=said.observation,
                          reward=said.reward, terminated=said.terminated)  # fmt: skip
        weight, history = branch.weight * float(chance), (*branch.history, step)
        children.append(Branch(weight, said.observation, history, said.terminated, said.success))
    return children


def _merged(branches: Sequence[Branch]) -> list[Branch]:
    """Branches that look the same are one; the heaviest lends its history."""
    by_look: dict[tuple[Observation, bool, bool], Branch] = {}
    for branch in sorted(branches, key=lambda branch: -branch.weight):
        look = (branch.observation, branch.terminated, branch.success)
        known = by_look.get(look)
        by_look[look] = branch if known is None else replace(known, weight=known.weight + branch.weight)
    heavy = sorted((b for b in by_look.values() if b.weight >= LIGHTEST), key=lambda branch: -branch.weight)
    return heavy[:MOST]


def _as_belief(branches: Sequence[Branch]) -> Belief:
    return Belief(tuple(certain(b.observation, 0.0, b.terminated, b.success, min(1.0, b.weight)) for b in branches))


def question_at(world: World, episode: Episode, place: int, instruction: str = "") -> Question:
    """What was asked at a step of a recorded episode."""
    step = episode.transitions[place]
    situation = Situation(
        instruction=instruction, observation=step.observation, actions=(), history=episode.transitions[:place],
        steps_left=world.config.max_steps - place,
    )  # fmt: skip
    return Question(situation, step.action)


def open_loop(model: Believer, episodes: Sequence[Episode], world: World, depth: int) -> list[list[float]]:
    """Accuracy at depth 1, 2... of each episode that was still alive: the model never sees the real world again."""
    truth = TrueModel(world) if TrueModel.knows(world) else None
    dreams = [[Branch(1.0, episode.first)] for episode in episodes]
    trues = [[Branch(1.0, episode.first)] for episode in episodes]
    found: list[list[float]] = []
    for place in range(depth):
        alive = [i for i, episode in enumerate(episodes) if len(episode.transitions) > place]
        asked = [question_at(world, episodes[i], place) for i in alive]
        grown = spread(model, [dreams[i] for i in alive], asked)
        real = spread(truth, [trues[i] for i in alive], asked) if truth else [_seen(episodes[i], place) for i in alive]
        for i, dream, true in zip(alive, grown, real, strict=True):
            dreams[i], trues[i] = dream, true
        found.append([_accuracy(dreams[i], trues[i], q, world) for i, q in zip(alive, asked, strict=True)])
    return found


def _seen(episode: Episode, place: int) -> list[Branch]:
    belief = seen_truth(episode.transitions[place])
    only = belief.predictions[0]
    return [Branch(1.0, only.observation, (), only.terminated, only.success)]


def _accuracy(dream: Sequence[Branch], true: Sequence[Branch], question: Question, world: World) -> float:
    """Overlap of two distributions; what the dream has lost on the way (unreadable, too light) counts as wrong."""
    kept = min(1.0, sum(branch.weight for branch in dream))
    return kept * overlap(_as_belief(dream), _as_belief(true), question.situation.observation, world.verifier)


def closed_loop(model: Believer, episodes: Sequence[Episode], world: World, depth: int) -> list[list[float]]:
    """Accuracy of the step at depth 1, 2... when every step before it was real; the reward counts too."""
    found: list[list[float]] = []
    for place in range(depth):
        alive = [episode for episode in episodes if len(episode.transitions) > place]
        questions = [question_at(world, episode, place) for episode in alive]
        truths = truths_of(world, questions, [episode.transitions[place] for episode in alive])
        found.append(accuracies(model.believe(questions), truths, questions, world))
    return found


def truths_of(world: World, questions: Sequence[Question], steps: Sequence[Transition]) -> list[Belief]:
    """The exact distribution of each step where the world can tell, else what was seen."""
    return TrueModel(world).believe(questions) if TrueModel.knows(world) else [seen_truth(step) for step in steps]


def accuracies(
    beliefs: Sequence[Belief], truths: Sequence[Belief], questions: Sequence[Question], world: World
) -> list[float]:
    """Overlap of each belief with its truth."""
    rows = zip(beliefs, truths, questions, strict=True)
    return [overlap(b, t, q.situation.observation, world.verifier) for b, t, q in rows]


def mean_row(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, 95% interval and n, as JSON; an interval of fewer than two values is unknown."""
    if not values:
        return {"mean": None, "low": None, "high": None, "n": 0}
    low, high = mean_interval(values)
    known = math.isfinite(low)
    return {"mean": float(np.mean(values)), "low": max(0.0, low) if known else None,
            "high": min(1.0, high) if known else None, "n": len(values)}  # fmt: skip


def safe_horizon(rows: Sequence[dict[str, float | int | None]], *, error: float, least: int) -> int:
    """The deepest step to which every open-loop accuracy, by its lower bound and on enough episodes, stays above."""
    for depth, row in enumerate(rows):
        low = row["low"]
        if low is None or low < 1.0 - error or (row["n"] or 0) < least:
            return depth
    return len(rows)
