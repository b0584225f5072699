"""Self-play: the model plays, the world says what was true, and the model learns that before RL.

What the model wrote inside its tags is replaced by the true states before and after its actions;
thoughts and actions stay as sampled. The published ablations are settings: random actions, the
model's own predictions, random coordinates, masks.
    collected = collect_examples(SelfPlay.Config(), rollout, sampler, codec, seed=0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import Sampler
from terrella.core.seeds import SELF_PLAY_FIRST
from terrella.core.tokens import TokenEpisode, TrainExample
from terrella.core.types import Split
from terrella.engines.configs import SftConfig
from terrella.pipelines.spa.interleaved_examples import (
    predicted_states,
    script_of_form,
    shown_example,
)
from terrella.pipelines.spa.tagged_examples import (
    Collected,
    Loss,
    Script,
    States,
    played_example,
)
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.rollout.turns import turns

EPISODES_AT_ONCE = 512


class SelfPlay(Configurable):
    """What is collected, and how the model is fitted to it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Defaults as published (1,280 trajectories; the paper did not sweep them)."""

        trajectories: int = 1280
        """0 leaves self-play out."""
        per_instance: int = 1
        """Trajectories per instance; the published code has 8."""
        actions: Literal["model", "random"] = "model"
        states: States = "true"
        loss: Loss = "reply"
        """The whole reply; the states only; or all but the states (the masked ablation)."""
        keep: Literal["all", "well_formed", "success"] = "well_formed"
        sft: SftConfig = field(default_factory=SftConfig)

        def __post_init__(self) -> None:
            if self.actions == "random" and self.states != "true":
                raise ConfigError(
                    "self_play.states",
                    f"{self.states}, but random actions are written with the true states",
                    "set self_play.actions=model, or self_play.states=true",
                )


def collect_examples(
    config: SelfPlay.Config, rollout: Rollout, sampler: Sampler, codec: TaggedCodec, *, seed: int
) -> Collected:
    """Play, filter the episodes, and put the states in."""
    limits = rollout.config
    if config.actions == "random":
        script = Script(
            max_turns=limits.max_turns,
            max_actions=limits.max_actions,
            truthful=True,
            loss=config.loss,
        )
        # Instances of its own: the format was learnt on the first ones.
        return script_of_form(
            limits.world, codec, script, count=config.trajectories, seed=seed + 2**20
        )
    episodes = play_rounds(rollout, sampler, config, seed=seed)
    kept = [
        e for e in episodes if worth_keeping(e, codec, config.keep, max_actions=limits.max_actions)
    ]
    examples = _examples_of(config, rollout, sampler, kept, codec, seed=seed)
    return Collected(examples, env_steps(episodes), len(episodes))


def _examples_of(
    config: SelfPlay.Config,
    rollout: Rollout,
    sampler: Sampler,
    kept: Sequence[TokenEpisode],
    codec: TaggedCodec,
    *,
    seed: int,
) -> list[TrainExample]:
    """States put into the tags of the replies, or between the replies where these have no tags."""
    settings: dict[str, Any] = {
        "max_actions": rollout.config.max_actions,
        "states": config.states,
        "loss": config.loss,
    }
    if codec.form != "shown":
        played = [played_example(episode, codec, **settings) for episode in kept]
        return [example for example in played if example is not None]
    predicted: list[list[str]] = [[] for _ in kept]
    if config.states == "believed":
        predicted = predicted_states(rollout, sampler, kept, codec, seed=seed)
    return [
        shown_example(episode, codec, **settings, predicted=states)
        for episode, states in zip(kept, predicted, strict=True)
    ]


def play_rounds(
    rollout: Rollout, sampler: Sampler, config: SelfPlay.Config, *, seed: int
) -> list[TokenEpisode]:
    """All trajectories, a few hundred episodes at a time."""
    tasks = AgentTasks(split=Split.TRAIN, seed=seed)
    count = math.ceil(config.trajectories / config.per_instance)
    asked = [tasks(SELF_PLAY_FIRST + number) for number in range(count)]
    size = max(1, EPISODES_AT_ONCE // config.per_instance)
    episodes: list[TokenEpisode] = []
    for start in range(0, len(asked), size):
        episodes += rollout.run(
            sampler, asked[start : start + size], group_size=config.per_instance, seed=seed
        )
    return episodes[: config.trajectories]


def worth_keeping(
    episode: TokenEpisode, codec: TaggedCodec, keep: str, *, max_actions: int
) -> bool:
    """Whether an episode passes the filter; a broken one never does."""
    if episode.record is None or episode.outcome.value is None:
        return False
    if keep == "success":
        return episode.record.success
    replies = (turn.reply for turn in turns(episode, codec, max_actions=max_actions))
    return keep == "all" or all(codec.well_formed(reply) for reply in replies)


def env_steps(episodes: Sequence[TokenEpisode]) -> int:
    """Actions carried out in real worlds."""
    return sum(
        len(episode.record.transitions) for episode in episodes if episode.record is not None
    )
