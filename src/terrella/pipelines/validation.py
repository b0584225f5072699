"""Validation of a model by verdicts: means over distinct instances, and the value of each.

Tasks are drawn by number, so a small world gives the same instance several times. Answers to one
instance are averaged first; the instances are the units of the metric and of its interval.
    validate(engine, source, model, count=256, seed=0).metric.n
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from terrella.core.errors import ConfigError, EngineError
from terrella.core.instances import instance_id
from terrella.core.judge import judge
from terrella.core.metric import Metric
from terrella.core.protocols import Sampler, Verifier
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Split, Verdict
from terrella.engines.engine import load_tokenizer
from terrella.engines.interface import Engine, Model
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource

logger = logging.getLogger("terrella")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The mean verdict on distinct instances, and the value of each of them."""

    metric: Metric
    """Over instances: one that was drawn several times counts once, with its mean."""
    instances: dict[str, float]
    worlds: dict[str, Metric | None] = field(default_factory=dict)
    """The same for each world, where a source has several; None where all verdicts are masked."""
    steps: int = 0
    """Steps of the episodes that were played; a prediction plays none."""


def evaluate(
    rollout: Rollout, sampler: Sampler, tasks: Callable[[int], Task], *, count: int, seed: int
) -> Validation:
    """Verdicts on `count` tasks, one sampled answer each, as a mean over distinct instances."""
    asked = [tasks(index) for index in range(count)]
    episodes = rollout.run(sampler, asked, group_size=1, seed=seed + 1)
    names = [
        f"{task.world}/{name}" if task.world else name
        for task, name in zip(asked, instance_names(asked, episodes), strict=True)
    ]
    values = [episode.outcome.value for episode in episodes]
    if all(value is None for value in values):
        raise EngineError(
            "validation",
            f"all {count} verdicts are masked; the first: {episodes[0].outcome.evidence}",
            "mend the cause and run the same command again",
        )
    by_world: dict[str, list[tuple[str, float | None]]] = {}
    for task, name, value in zip(asked, names, values, strict=True):
        by_world.setdefault(task.world, []).append((name, value))
    metric, instances = _over_instances(list(zip(names, values, strict=True)))
    worlds = {world: _world_metric(world, part) for world, part in by_world.items() if world}
    steps = sum(len(episode.record.transitions) for episode in episodes if episode.record)
    return Validation(metric=metric, instances=instances, worlds=worlds, steps=steps)


def check_count(count: int, least: int = 1) -> None:
    """Refuse fewer validation tasks than there are worlds to be measured, before anything runs."""
    if count < least:
        raise ConfigError(
            "evaluate_on",
            f"{count} tasks leave a metric before and after training without a value",
            f"set it to {least} or more",
        )


def _world_metric(world: str, rows: Sequence[tuple[str, float | None]]) -> Metric | None:
    if all(value is None for _, value in rows):
        logger.warning("validation: all %d verdicts of %s are masked", len(rows), world)
        return None
    return _over_instances(rows)[0]


def _over_instances(
    rows: Sequence[tuple[str, float | None]],
) -> tuple[Metric, dict[str, float]]:
    """The mean over distinct instances, and the mean of each."""
    means = instance_means(rows)
    masked = sum(value is None for _, value in rows)
    return dataclasses.replace(Metric.of(list(means.values())), masked=masked), means


def instance_means(values: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """The mean of each instance; masked values (None) are in no mean."""
    by_name: dict[str, list[float]] = {}
    for name, value in values:
        if value is not None:
            by_name.setdefault(name, []).append(value)
    return {name: sum(known) / len(known) for name, known in by_name.items()}


def instance_names(tasks: Sequence[Task], episodes: Sequence[TokenEpisode]) -> list[str]:
    """The instance of each task: that of the played episode, or that of the predicted step."""
    return [
        episode.record.instance if episode.record is not None else instance_of(task)
        for task, episode in zip(tasks, episodes, strict=True)
    ]


def instance_of(task: Task) -> str:
    """The instance of a prediction; a recorded step of an unknown instance is its own."""
    assert task.transition is not None
    step = task.transition
    return task.instance or instance_id((repr(step.observation), step.action))


def validate(
    engine: Engine, source: EpisodeSource, model: Model, *, count: int, seed: int
) -> Validation:
    """Verdicts of a model on the validation tasks of a source."""
    tasks = source.on(Split.VALIDATION).tasks.make()
    with (
        engine.sampler(model) as sampler,
        source.make_rollout(load_tokenizer(model)) as rollout,
    ):
        return evaluate(rollout, sampler, tasks, count=count, seed=seed)


def no_change_mean(verifier: Verifier, tasks: Callable[[int], Task], count: int) -> float | None:
    """Mean verdict of predicting that nothing changes, over the instances of `evaluate`.

    None where every verdict is masked; a warning counts the masked ones.
    """
    asked = [tasks(index) for index in range(count)]
    verdicts = [_no_change(verifier, task) for task in asked]
    masked = [verdict for verdict in verdicts if verdict.masked]
    if masked:
        logger.warning(
            "baseline no_change: %d of %d verdicts are masked and left out: %s",
            len(masked),
            count,
            masked[0].evidence,
        )
    values = [verdict.value for verdict in verdicts]
    means = instance_means(zip(map(instance_of, asked), values, strict=True))
    return sum(means.values()) / len(means) if means else None


def _no_change(verifier: Verifier, task: Task) -> Verdict:
    assert task.transition is not None
    before, truth = task.transition.observation, task.transition.next_observation
    return judge(verifier, reply=before, truth=truth, before=before)
