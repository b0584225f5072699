"""How good an agent is, on held-out instances: success, unbiased pass@k, valid and effective actions, true predictions.

Every instance is a different one and is played several times, at the temperature of training. Beside it stand the
random policy (exact where it can be computed) and the optimal one, on the same instances.
    found = evaluate_agent(Evaluate.Config(instances=512, samples=8), driver, LocalSampler(model), codec)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import Sampler, Task, TokenEpisode
from terrella.core.solve import StateSpaceTooLargeError
from terrella.core.types import Split
from terrella.core.world import StateWorld, World
from terrella.engines.episodes.driver import Driver
from terrella.stages.tagged_rows import Turn, turns
from terrella.stages.tasks import PredictionTasks
from terrella.use.pass_at_k import bootstrap_mean, pass_at_k

ROUND = 512
"""Episodes played at once."""


class Evaluate(Configurable):
    """What is asked of an agent."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How many instances, how often each."""

        instances: int = 512
        samples: int = 8
        """Plays of each instance; pass@k is known up to this k."""
        split: Split = Split.TEST
        seed: int = 0


def instance_seeds(world: World.Config, config: Evaluate.Config) -> list[int]:
    """Seeds of different instances of the split, in order: no instance counts twice."""
    built: World = world.build()
    found: dict[str, int] = {}
    for seed in range(config.instances * 100):
        built.reset(seed=seed, options={"split": config.split})
        found.setdefault(built.instance, seed)
        if len(found) == config.instances:
            return list(found.values())
    raise ConfigError("instances", f"{built.name} has only {len(found)} different {config.split} instances")


def evaluate_agent(config: Evaluate.Config, driver: Driver, sampler: Sampler, codec: TaggedCodec) -> dict[str, Any]:
    """Successes per instance, and the figures made of them."""
    tasks = [Task(seed=seed, noise_seed=seed * 1000, split=config.split) for seed in
             instance_seeds(driver.config.world, config)]  # fmt: skip
    size, episodes = max(1, ROUND // config.samples), []
    for start in range(0, len(tasks), size):
        episodes += driver.run(sampler, tasks[start : start + size], group_size=config.samples, seed=config.seed)
    groups = [episodes[at : at + config.samples] for at in range(0, len(episodes), config.samples)]
    successes = [sum(_won(episode) for episode in group) for group in groups]
    return {"successes": successes, "samples": config.samples, "pass": pass_figures(successes, config.samples),
            **(true_continuations(config, driver, sampler) if codec.form == "shown" else {}),
            **reply_figures(episodes, codec, max_actions=driver.config.max_actions)}  # fmt: skip


def pass_figures(successes: Sequence[int], samples: int) -> dict[str, Any]:
    """pass@1, 2, 4 ... with intervals over instances."""
    ks = [2**power for power in range(samples.bit_length()) if 2**power <= samples]
    return {str(k): asdict(bootstrap_mean(pass_at_k(successes, samples=samples, k=k))) for k in ks}


def _won(episode: TokenEpisode) -> bool:
    if episode.outcome.value is None:
        raise ValueError(f"a masked episode cannot be counted: {episode.outcome.evidence}")
    return episode.outcome.value == 1.0


def reply_figures(episodes: Sequence[TokenEpisode], codec: TaggedCodec, *, max_actions: int) -> dict[str, float]:
    """Shares of valid and effective actions, of well-formed replies, and of true states inside replies."""
    played = [turn for episode in episodes for turn in turns(episode, codec, max_actions=max_actions)]
    steps = [step for turn in played for step in turn.steps]
    return {
        "valid_actions": _share([step.info["valid"] for step in steps]),
        "effective_actions": _share([step.info["effective"] for step in steps]),
        "well_formed": _share([codec.well_formed(turn.reply) for turn in played]),
        **(_true_states(played, codec) if codec.states_in_replies else {}),
        "turns": len(played) / len(episodes),
        "actions": len(steps) / len(episodes),
        "reply_tokens": sum(len(turn.reply) for turn in played) / len(played),
    }


def _true_states(played: Sequence[Turn], codec: TaggedCodec) -> dict[str, float]:
    said = [codec.read_states(turn.reply) for turn in played]
    truths = [(turn.before.strip(), turn.after.strip()) for turn in played]
    pairs = list(zip(said, truths, strict=True))
    return {"true_observations": _share([one[0] == truth[0] for one, truth in pairs]),
            "true_predictions": _share([one[1] == truth[1] for one, truth in pairs])}  # fmt: skip


def true_continuations(
    config: Evaluate.Config, driver: Driver, sampler: Sampler, *, tokens: int = 96
) -> dict[str, float]:
    """Asked what the world will show next: how often is the model's sample the truth, where replies hold no states?"""
    asker = Driver(driver.config.replace(turn_tokens=tokens), driver.codec)
    questions = PredictionTasks(driver.config.world, split=config.split, seed=config.seed)
    answers = asker.run(sampler, [questions(n) for n in range(config.instances)], group_size=1, seed=config.seed)
    return {"true_predictions": _share([answer.outcome.value == 1.0 for answer in answers])}


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def known_policies(world: World.Config, config: Evaluate.Config) -> dict[str, Any]:
    """What random and optimal play earn on the same instances: per instance, and their means; exact or absent."""
    built: World = world.build()
    if not isinstance(built, StateWorld):
        return {}
    random, best = [], []
    for seed in instance_seeds(world, config):
        built.reset(seed=seed, options={"split": config.split})
        try:
            random.append(built.solver.random_value(built.state, built.config.max_steps))
            best.append(built.solver.best_value(built.state, built.config.max_steps))
        except StateSpaceTooLargeError:
            return {}
        built.solver.clear()
    ks = [2**power for power in range(config.samples.bit_length()) if 2**power <= config.samples]
    return {"random": {str(k): sum(1 - (1 - p) ** k for p in random) / len(random) for k in ks},
            "optimal": sum(best) / len(best), "instances": len(random)}  # fmt: skip
