"""A tiny model, a counter agent and its trainer, which train in seconds."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch
from tests.support.tiny_model import tiny_model

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.types import Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.rlvr_trainer import RlvrTrainer
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.worlds.counter import Counter


def tiny_rollout(tokenizer: Any, **changes: Any) -> Rollout:
    """Two or three short turns on the counter.

    Random replies rarely succeed, so the rewards are those of `WrittenRewards`.
    """
    settings = {
        "world": Counter.Config(),
        "max_turns": 3,
        "turn_tokens": 4,
        "env_pool": EnvPool.Config(),
    }
    return WrittenRewards(Rollout.Config(**{**settings, **changes}), InterleavedCodec(tokenizer))


class WrittenRewards(Rollout):
    """The reward is the share of even token ids that the model wrote, so it varies."""

    class Config(Rollout.Config):
        """The settings of a rollout."""

    async def run_async(self, sampler: Any, tasks: Any, *, group_size: int, seed: int) -> Any:
        episodes = await super().run_async(sampler, tasks, group_size=group_size, seed=seed)
        return [even_reward(episode) for episode in episodes]


def even_reward(episode: Any) -> Any:
    """The same episode with rewards from its tokens, per turn and as a whole."""
    if episode.outcome.value is None:
        return episode
    starts = [0, *episode.turn_ends[:-1]]
    turns = [
        _even(episode, start, end) for start, end in zip(starts, episode.turn_ends, strict=True)
    ]
    whole = round(sum(turns) / len(turns), 6)
    return dataclasses.replace(episode, turn_rewards=tuple(turns), outcome=Verdict.of(whole))


def _even(episode: Any, start: int, end: int) -> float:
    tokens = list(
        itertools.compress(episode.completion_ids[start:end], episode.model_mask[start:end])
    )
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


def tiny_trainer(
    out: Path, *, rollout: Any = None, model: Any = None, **changes: Any
) -> RlvrTrainer:
    """A trainer on the counter; by default two steps of four tasks."""
    default_model, tokenizer = tiny_model()
    settings = {"steps": 2, "groups": 4, "group_size": 4, "learning_rate": 1e-2, **changes}
    config = RlvrConfig(**settings)
    return RlvrTrainer(
        model if model is not None else default_model,
        tokenizer,
        config,
        rollout or tiny_rollout(tokenizer),
        AgentTasks(),
        out,
        seed=0,
    )


def curve(trainer: RlvrTrainer, *names: str) -> list[tuple[float, ...]]:
    """The logged values of some metrics, step by step."""
    return [
        tuple(row[name] for name in names) for row in trainer.state.log_history if "reward" in row
    ]


def weights(model: Any) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
