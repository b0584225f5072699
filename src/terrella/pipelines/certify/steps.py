"""Real steps on held-out instances, and what the model predicts for them.

predictions, env_steps = predict_steps(config, evidence, Split.TEST, 1500)
"""

from __future__ import annotations

import numpy as np

from terrella.core.predictive import Query
from terrella.core.seeds import CERTIFY_FIRST
from terrella.core.types import Split, Transition
from terrella.pipelines.certify.records import CertifyConfig, Evidence, StepPredictions
from terrella.rollout.tasks import PredictionTasks
from terrella.trust.horizon import accuracies, true_distributions
from terrella.trust.predictive import predicted_prob
from terrella.trust.risk import signals
from terrella.trust.truth import seen_truth

MOST_TRIES = 4
"""Instances that are drawn for each one that is wanted: small worlds run out of new ones."""


def predict_steps(
    config: CertifyConfig, evidence: Evidence, split: Split, count: int
) -> tuple[StepPredictions, int]:
    """Predict one step of each of `count` instances; returns the real steps this took, too."""
    world = evidence.world
    pairs = sample_steps(config, split, count)
    queries = [query for query, _ in pairs]
    steps = [step for _, step in pairs]
    # The real steps up to and including the predicted one: what it costs to be able to ask.
    env_steps = sum(len(query.situation.history) + 1 for query in queries)
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
    )
    return predictions, env_steps


def sample_steps(config: CertifyConfig, split: Split, count: int) -> list[tuple[Query, Transition]]:
    """One step of each of `count` different instances, or of fewer where there are no more.

    Instances fall into splits by chance, so different ones are exchangeable; the same one twice
    would not be.
    """
    tasks = PredictionTasks(config.world, config.policy, split=split, seed=config.seed + 1)
    steps: dict[str, tuple[Query, Transition]] = {}
    for index in range(MOST_TRIES * count):
        task = tasks(CERTIFY_FIRST + index)
        assert task.situation is not None and task.transition is not None
        query = Query(task.situation, task.transition.action)
        steps.setdefault(tasks.world.instance, (query, task.transition))
        if len(steps) == count:
            break
    return list(steps.values())
