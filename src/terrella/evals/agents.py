"""Evaluation of an agent on held-out instances.

Success, unbiased pass@k, valid and effective actions, true predictions. Every instance is distinct
and is played several times, at the temperature of training. Masked episodes are counted and are in
no figure. `reference_policies` gives the exact scores of random and optimal play on the same
instances.
    scores = evaluate_agent(Evaluate.Config(instances=512, samples=8), rollout, sampler, codec)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, EngineError
from terrella.core.protocols import Sampler
from terrella.core.seeds import NOISE_STRIDE, instance_seed
from terrella.core.solve import StateSpaceTooLargeError
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Split
from terrella.core.world import StateWorld, World
from terrella.evals.pass_at_k import pass_metrics, powers_of_two
from terrella.evals.results import ReferenceScores, TestScores
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import TRIES, PredictionTasks, named_instances
from terrella.rollout.turns import Turn, turns

logger = logging.getLogger("terrella")

EPISODES_AT_ONCE = 512
CONTINUATION_TOKENS = 96
"""Longest prediction of what the world shows next."""


class Evaluate(Configurable):
    """How an agent is evaluated."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        instances: int = 512
        samples: int = 8
        """Episodes per instance; pass@k is estimated up to this k."""
        split: Split = Split.TEST
        seed: int = 0
        """Seed of the instances and of the sampling. The seed of an arm is added to it."""


def instance_seeds(world: World.Config, config: Evaluate.Config) -> list[int]:
    """Seeds of distinct instances of the split, in order."""
    return list(tested_instances(world, config).values())


def tested_instances(world: World.Config, config: Evaluate.Config) -> dict[str, int]:
    """Distinct instances of the split, in order: the seed of each by its name."""
    built: World = world.build()
    first = instance_seed(config.seed, 0)
    drawn = range(first, first + TRIES * config.instances)
    seeds = named_instances(built, drawn, config.split, config.instances)
    if len(seeds) < config.instances:
        raise ConfigError(
            "instances",
            f"{built.name} has only {len(seeds)} distinct {config.split} instances",
            f"ask for at most {len(seeds)} (--instances {len(seeds)}), or {built.few_instances}",
        )
    return seeds


def evaluate_agent(
    config: Evaluate.Config, rollout: Rollout, sampler: Sampler, codec: TaggedCodec
) -> TestScores:
    """Play each instance several times and score the episodes."""
    tasks = [
        Task(seed=seed, noise_seed=seed * NOISE_STRIDE, split=config.split)
        for seed in instance_seeds(rollout.config.world, config)
    ]
    size = max(1, EPISODES_AT_ONCE // config.samples)
    episodes: list[TokenEpisode] = []
    for start in range(0, len(tasks), size):
        batch = tasks[start : start + size]
        episodes += rollout.run(sampler, batch, group_size=config.samples, seed=config.seed)
    scores = episode_scores(
        episodes, codec, samples=config.samples, max_actions=rollout.config.max_actions
    )
    if codec.form != "shown":
        return scores
    # Replies hold no states: the model is asked for the next one.
    true, masked = true_continuations(config, rollout, sampler)
    return replace(scores, true_predictions=true, masked_predictions=masked)


def episode_scores(
    episodes: Sequence[TokenEpisode], codec: TaggedCodec, *, samples: int, max_actions: int
) -> TestScores:
    """Scores of `samples` episodes of each instance, one instance after the other."""
    starts = range(0, len(episodes), samples)
    groups = [_judged(episodes[start : start + samples]) for start in starts]
    known = [episode for group in groups for episode in group]
    reason = _warn_masked(episodes, known, "episodes of the evaluation")
    if not known:
        raise EngineError(
            "evaluation",
            f"all {len(episodes)} episodes are masked; the first: {reason}",
            "mend the cause and run the same command again",
        )
    successes = [sum(_is_won(episode) for episode in group) for group in groups]
    judged = [len(group) for group in groups]
    masked = len(episodes) - len(known)
    metrics: dict[str, Any] = dict(reply_metrics(known, codec, max_actions=max_actions))
    return TestScores(
        successes=successes,
        samples=samples,
        passes=pass_metrics(successes, judged, samples),
        judged=judged if masked else None,
        masked=masked,
        masked_reason=reason,
        **metrics,
    )


def _judged(episodes: Sequence[TokenEpisode]) -> list[TokenEpisode]:
    return [episode for episode in episodes if episode.outcome.value is not None]


def _is_won(episode: TokenEpisode) -> bool:
    return episode.outcome.value == 1.0


def _warn_masked(asked: Sequence[TokenEpisode], judged: Sequence[TokenEpisode], what: str) -> str:
    """Say how many are masked; returns why the first of them is, empty if none is."""
    if len(judged) == len(asked):
        return ""
    masked = [episode.outcome for episode in asked if episode.outcome.value is None]
    reason = masked[0].evidence or str(masked[0].status)
    logger.warning(
        "%d of %d %s are masked and left out; the first: %s", len(masked), len(asked), what, reason
    )
    return reason


def reply_metrics(
    episodes: Sequence[TokenEpisode], codec: TaggedCodec, *, max_actions: int
) -> dict[str, float]:
    """Fractions of valid actions, effective actions, well-formed replies and true states."""
    played = [
        turn for episode in episodes for turn in turns(episode, codec, max_actions=max_actions)
    ]
    steps = [step for turn in played for step in turn.steps]
    metrics = {
        "valid_actions": _fraction([step.info["valid"] for step in steps]),
        "effective_actions": _fraction([step.info["effective"] for step in steps]),
        "well_formed": _fraction([codec.well_formed(turn.reply) for turn in played]),
        "turns": len(played) / len(episodes),
        "actions": len(steps) / len(episodes),
        "reply_tokens": sum(len(turn.reply) for turn in played) / len(played),
    }
    return metrics | (_true_states(played, codec) if codec.states_in_replies else {})


def _true_states(played: Sequence[Turn], codec: TaggedCodec) -> dict[str, float]:
    found = [codec.true_states(turn.reply, turn.states) for turn in played]
    metrics = {"true_predictions": _fraction([each for turn in found for each in turn.predictions])}
    observations = [turn.observation for turn in found if turn.observation is not None]
    return metrics | ({"true_observations": _fraction(observations)} if observations else {})


def true_continuations(
    config: Evaluate.Config, rollout: Rollout, sampler: Sampler
) -> tuple[float | None, int]:
    """How often the model's sample of what the world shows next is true, and how many are masked.

    None in place of the share where all are.
    """
    limits = rollout.config.replace(turn_tokens=CONTINUATION_TOKENS)
    tasks = PredictionTasks(limits.world, split=config.split, seed=config.seed)
    asked = [tasks(index) for index in range(config.instances)]
    with Rollout(limits, rollout.codec) as predictions:
        answers = predictions.run(sampler, asked, group_size=1, seed=config.seed)
    known = _judged(answers)
    _warn_masked(answers, known, "predictions of the evaluation")
    share = _fraction([_is_won(answer) for answer in known]) if known else None
    return share, len(answers) - len(known)


def _fraction(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def reference_policies(
    world: World.Config, config: Evaluate.Config, *, most_actions: int
) -> ReferenceScores | None:
    """Exact scores of random and optimal play on the same instances; None where unknown.

    They have as many actions as the agent has, `most_actions`.
    """
    built: World = world.build()
    if not isinstance(built, StateWorld):
        return None
    steps = min(most_actions, built.config.max_steps)
    random_values: list[float] = []
    best_values: list[float] = []
    for seed in instance_seeds(world, config):
        built.reset(seed=seed, options={"split": config.split})
        try:
            random_values.append(built.solver.random_value(built.state, steps))
            best_values.append(built.solver.best_value(built.state, steps))
        except StateSpaceTooLargeError:
            return None
        built.solver.clear()
    count = len(random_values)
    return ReferenceScores(
        random={
            str(k): sum(1 - (1 - value) ** k for value in random_values) / count
            for k in powers_of_two(config.samples)
        },
        optimal=sum(best_values) / count,
        instances=count,
    )
