"""Real steps on held-out instances, and what the model predicts for them.

predictions, env_steps = predict_steps(config, evidence, Split.TEST, 1500)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.predictive import Query
from terrella.core.seeds import CERTIFY_FIRST, TASK_STREAM, stream
from terrella.core.tokens import Task
from terrella.core.types import Split, Transition
from terrella.pipelines.certify.records import CertifyConfig, Evidence, StepPredictions
from terrella.rollout.tasks import PredictionTasks
from terrella.trust.horizon import accuracies, true_distributions
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import predicted_prob
from terrella.trust.risk import signals
from terrella.trust.truth import seen_truth

MOST_TRIES = 4
"""Instances that are drawn for each one that is wanted: small worlds run out of new ones."""


def predict_steps(
    config: CertifyConfig, evidence: Evidence, split: Split, count: int
) -> tuple[StepPredictions, int]:
    """Predict one step of each policy in `count` instances; returns the real steps it took, too."""
    world = evidence.world
    sampled, env_steps = sample_steps(config, split, count)
    require_unseen(evidence.data, [each.instance for each in sampled])
    queries = [each.query for each in sampled]
    steps = [each.step for each in sampled]
    distributions = evidence.model.predict(queries)
    truths = true_distributions(world, queries, steps)
    distances, _ = evidence.data.look_up(
        [(query.situation.observation, query.action) for query in queries]
    )
    accuracy = np.array(accuracies(distributions, truths, queries, world))
    probs = [
        predicted_prob(
            distribution, seen_truth(step).predictions[0], step.observation, world.verifier
        )
        for distribution, step in zip(distributions, steps, strict=True)
    ]
    predictions = StepPredictions(
        queries=queries,
        changed=np.array([step.changed for step in steps], bool),
        signals=signals(distributions, distances),
        wrong=1 - accuracy,
        probs=np.array(probs),
        distributions=distributions,
        truths=truths,
        policies=np.array([each.policy for each in sampled], int),
        instances=[each.instance for each in sampled],
        lengths=np.array([each.length for each in sampled], int),
    )
    return predictions, env_steps


def require_unseen(data: NearestData, instances: Sequence[str]) -> None:
    """Refuse to measure on instances that the model was fitted to: remembering is not predicting.

    Data that do not say which instances they are of cannot be checked.
    """
    seen = data.instances & set(instances)
    if seen:
        raise ConfigError(
            "data",
            f"the model was fitted to {len(seen)} of the {len(set(instances))} instances on which "
            f"it is measured, such as {min(seen)}",
            "train it on episodes of the split train only, then certify again",
        )


class SampledStep(NamedTuple):
    """One real step, and whose it is."""

    query: Query
    step: Transition
    policy: int
    instance: str
    length: int
    """Steps of the episode that it was drawn from."""


def sample_steps(config: CertifyConfig, split: Split, count: int) -> tuple[list[SampledStep], int]:
    """One step of every policy in each of `count` different instances, or of fewer if there are.

    Instances fall into splits by chance, so different ones are exchangeable; the same one twice
    would not be. Those that the world draws often are met first, so they are shuffled: a part of
    them is as any other. Steps of different policies in one instance are never in one group. The
    second result is the real steps that this took: whole episodes, since each one's step is drawn
    from it.
    """
    tasks = [
        PredictionTasks(config.world, policy, split=split, seed=config.seed + 1)
        for policy in config.under
    ]
    steps: dict[str, list[SampledStep]] = {}
    env_steps = 0
    for index in range(CERTIFY_FIRST, CERTIFY_FIRST + MOST_TRIES * count):
        if len(steps) == count:
            break
        instance = tasks[0].instance(index)
        if instance in steps:
            continue
        episodes = [each.episode(index) for each in tasks]
        env_steps += sum(map(len, episodes))
        steps[instance] = [
            _sampled(PredictionTasks.draw(episode), policy, len(episode))
            for policy, episode in enumerate(episodes)
        ]
    groups = list(steps.values())
    order = stream(TASK_STREAM, config.seed, CERTIFY_FIRST).permutation(len(groups))
    return [step for number in order for step in groups[number]], env_steps


def _sampled(task: Task, policy: int, length: int) -> SampledStep:
    assert task.situation is not None and task.transition is not None
    query = Query(task.situation, task.transition.action)
    return SampledStep(query, task.transition, policy, task.instance, length)
