"""Evaluation of an agent on held-out instances.

Success, unbiased pass@k, valid and effective actions, true predictions. Every instance is distinct
and is played several times, at the temperature of training. `reference_policies` gives the exact
scores of random and optimal play on the same instances.
    scores = evaluate_agent(Evaluate.Config(instances=512, samples=8), rollout, sampler, codec)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.metric import Metric
from terrella.core.protocols import Sampler
from terrella.core.solve import StateSpaceTooLargeError
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Split
from terrella.core.world import StateWorld, World
from terrella.evals.pass_at_k import pass_at_k, share_mean
from terrella.evals.results import ReferenceScores, TestScores
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import PredictionTasks, named_instances
from terrella.rollout.turns import Turn, turns

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


def instance_seeds(world: World.Config, config: Evaluate.Config) -> list[int]:
    """Seeds of distinct instances of the split, in order."""
    return list(tested_instances(world, config).values())


def tested_instances(world: World.Config, config: Evaluate.Config) -> dict[str, int]:
    """Distinct instances of the split, in order: the seed of each by its name."""
    built: World = world.build()
    drawn = range(config.instances * 100)
    seeds = named_instances(built, drawn, config.split, config.instances)
    if len(seeds) < config.instances:
        raise ConfigError(
            "instances",
            f"{built.name} has only {len(seeds)} distinct {config.split} instances",
            f"ask for at most {len(seeds)}",
        )
    return seeds


def evaluate_agent(
    config: Evaluate.Config, rollout: Rollout, sampler: Sampler, codec: TaggedCodec
) -> TestScores:
    """Play each instance several times and score the episodes."""
    tasks = [
        Task(seed=seed, noise_seed=seed * 1000, split=config.split)
        for seed in instance_seeds(rollout.config.world, config)
    ]
    size = max(1, EPISODES_AT_ONCE // config.samples)
    episodes: list[TokenEpisode] = []
    for start in range(0, len(tasks), size):
        batch = tasks[start : start + size]
        episodes += rollout.run(sampler, batch, group_size=config.samples, seed=config.seed)
    wins = [_is_won(episode) for episode in episodes]
    starts = range(0, len(episodes), config.samples)
    successes = [sum(wins[start : start + config.samples]) for start in starts]
    metrics = reply_metrics(episodes, codec, max_actions=rollout.config.max_actions)
    if codec.form == "shown":  # replies hold no states: the model is asked for the next one
        metrics["true_predictions"] = true_continuations(config, rollout, sampler)
    return TestScores(
        successes=successes,
        samples=config.samples,
        passes=pass_metrics(successes, config.samples),
        **metrics,
    )


def pass_metrics(successes: Sequence[int], samples: int) -> dict[str, Metric]:
    """pass@1, 2, 4, ... with intervals over instances."""
    return {
        str(k): share_mean(pass_at_k(successes, samples=samples, k=k))
        for k in powers_of_two(samples)
    }


def powers_of_two(largest: int) -> list[int]:
    return [2**power for power in range(largest.bit_length()) if 2**power <= largest]


def _is_won(episode: TokenEpisode) -> bool:
    if episode.outcome.value is None:
        raise ValueError(f"a masked episode cannot be counted: {episode.outcome.evidence}")
    return episode.outcome.value == 1.0


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


def true_continuations(config: Evaluate.Config, rollout: Rollout, sampler: Sampler) -> float:
    """How often the model's sample of what the world shows next is true."""
    limits = rollout.config.replace(turn_tokens=CONTINUATION_TOKENS)
    tasks = PredictionTasks(limits.world, split=config.split, seed=config.seed)
    asked = [tasks(index) for index in range(config.instances)]
    with Rollout(limits, rollout.codec) as predictions:
        answers = predictions.run(sampler, asked, group_size=1, seed=config.seed)
    return _fraction([_is_won(answer) for answer in answers])


def _fraction(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def reference_policies(world: World.Config, config: Evaluate.Config) -> ReferenceScores | None:
    """Exact scores of random and optimal play on the same instances; None where unknown."""
    built: World = world.build()
    if not isinstance(built, StateWorld):
        return None
    random_values: list[float] = []
    best_values: list[float] = []
    for seed in instance_seeds(world, config):
        built.reset(seed=seed, options={"split": config.split})
        try:
            random_values.append(built.solver.random_value(built.state, built.config.max_steps))
            best_values.append(built.solver.best_value(built.state, built.config.max_steps))
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
