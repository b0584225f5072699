"""A tiny model, a counter agent and its trainer: everything small enough for seconds."""

import dataclasses
from pathlib import Path
from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch
from tests.support.tiny_model import tiny_model

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.types import Verdict
from terrella.engines.episodes.driver import Driver
from terrella.engines.episodes.seats import Seats
from terrella.engines.trl.rlvr_trainer import RlvrSettings, RlvrTrainer
from terrella.stages.tasks import AgentTasks
from terrella.worlds.counter import Counter


def tiny_driver(tokenizer: Any, **changes: Any) -> Driver:
    """Two or three short turns on the counter; random replies rarely win, so rewards of their own are patched in."""
    limits = {"world": Counter.Config(), "max_turns": 3, "turn_tokens": 4, "seats": Seats.Config()}
    return WrittenRewards(Driver.Config(**{**limits, **changes}), InterleavedCodec(tokenizer))


class WrittenRewards(Driver):
    """Verdicts that a random model sometimes gets right: the share of even token ids that it wrote."""

    class Config(Driver.Config):
        """As a driver's."""

    async def run_async(self, sampler: Any, tasks: Any, *, group_size: int, seed: int) -> Any:
        episodes = await super().run_async(sampler, tasks, group_size=group_size, seed=seed)
        return [even_reward(episode) for episode in episodes]


def even_reward(episode: Any) -> Any:
    """The same episode, judged by its tokens: per turn and as a whole."""
    if episode.outcome.value is None:
        return episode
    starts = [0, *episode.turn_ends[:-1]]
    turns = [_even(episode, start, end) for start, end in zip(starts, episode.turn_ends, strict=True)]
    whole = round(sum(turns) / len(turns), 6)
    return dataclasses.replace(episode, turn_rewards=tuple(turns), outcome=Verdict.of(whole))


def _even(episode: Any, start: int, end: int) -> float:
    mine = [t for t, m in zip(episode.completion_ids[start:end], episode.model_mask[start:end], strict=True) if m]
    return sum(token % 2 == 0 for token in mine) / len(mine)


def tiny_trainer(out: Path, *, driver: Any = None, model: Any = None, **changes: Any) -> RlvrTrainer:
    """A trainer on the counter; two steps of four questions unless told otherwise."""
    made, tokenizer = tiny_model()
    settings = {"steps": 2, "groups": 4, "group_size": 4, "learning_rate": 1e-2, **changes}
    config = RlvrSettings.Config(**settings)
    return RlvrTrainer(
        model if model is not None else made, tokenizer, config, driver or tiny_driver(tokenizer), AgentTasks(), out
    )


def curve(trainer: RlvrTrainer, *names: str) -> list[tuple[float, ...]]:
    """What was logged, step by step."""
    return [tuple(row[name] for name in names) for row in trainer.state.log_history if "reward" in row]


def weights(model: Any) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
