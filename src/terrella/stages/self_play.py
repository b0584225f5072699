"""Self-play: the model plays, the world says what was really there, and the model learns that before it learns to act.

What the model wrote inside its tags is replaced by the true states before and after its actions; thoughts and actions
stay as sampled. The published ablations are fields: random actions, the model's own beliefs, random coordinates, masks.
    collected = collect_rows(config, driver, LocalSampler(model), codec, seed=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.protocols import Sampler, TokenEpisode
from terrella.core.types import Split
from terrella.engines.episodes.driver import Driver
from terrella.engines.trl.packs import TrainingRow
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.shown_rows import believed_states, script_of_form, shown_row
from terrella.stages.tagged_rows import Collected, Loss, Script, States, played_row, turns
from terrella.stages.tasks import AgentTasks

FIRST = 2**30
"""Where the numbers of self-play questions begin: RLVR asks others."""
ROUND = 512
"""Episodes played at once."""


class SelfPlay(Configurable):
    """What is collected and what is learnt from it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The defaults are SPA's; 1280 trajectories in the paper, which did not sweep them."""

        trajectories: int = 1280
        """0 leaves the model as it is."""
        per_instance: int = 1
        """Trajectories from one initial state; the paper's code has 8."""
        actions: Literal["model", "random"] = "model"
        states: States = "true"
        loss: Loss = "reply"
        """The whole reply; the states only; or all but the states (the masked ablation)."""
        keep: Literal["all", "well_formed", "success"] = "well_formed"
        sft: SftSettings.Config = field(default_factory=SftSettings.Config)


def collect_rows(
    config: SelfPlay.Config, driver: Driver, sampler: Sampler, codec: TaggedCodec, *, seed: int
) -> Collected:
    """Play, put the states in, keep what is worth keeping."""
    limits = driver.config
    if config.actions == "random":
        script = Script(max_turns=limits.max_turns, max_actions=limits.max_actions, truthful=True, loss=config.loss)
        # Numbers of its own: the format was learnt on the first ones.
        return script_of_form(limits.world, codec, script, count=config.trajectories, seed=seed + 2**20)
    episodes = play_rounds(driver, sampler, config, seed=seed)
    kept = [e for e in episodes if worth_keeping(e, codec, config.keep, max_actions=limits.max_actions)]
    rows = _rows_of(config, driver, sampler, kept, codec, seed=seed)
    return Collected(rows, world_steps(episodes), len(episodes))


def _rows_of(
    config: SelfPlay.Config, driver: Driver, sampler: Sampler, kept: Sequence[TokenEpisode], codec: TaggedCodec, *,
    seed: int,
) -> list[TrainingRow]:  # fmt: skip
    """States put into the tags of the replies, or between the replies where these have no tags."""
    settings: dict[str, Any] = {"max_actions": driver.config.max_actions, "states": config.states, "loss": config.loss}
    if codec.form != "shown":
        return [row for row in (played_row(episode, codec, **settings) for episode in kept) if row is not None]
    believed = config.states == "believed"
    beliefs = believed_states(driver, sampler, kept, codec, seed=seed) if believed else [[] for _ in kept]
    return [shown_row(e, codec, **settings, beliefs=said) for e, said in zip(kept, beliefs, strict=True)]


def play_rounds(driver: Driver, sampler: Sampler, config: SelfPlay.Config, *, seed: int) -> list[TokenEpisode]:
    """All trajectories, some hundred at a time."""
    tasks = AgentTasks(split=Split.TRAIN, seed=seed)
    questions = [tasks(FIRST + number) for number in range(-(-config.trajectories // config.per_instance))]
    size = max(1, ROUND // config.per_instance)
    episodes: list[TokenEpisode] = []
    for start in range(0, len(questions), size):
        episodes += driver.run(sampler, questions[start : start + size], group_size=config.per_instance, seed=seed)
    return episodes[: config.trajectories]


def worth_keeping(episode: TokenEpisode, codec: TaggedCodec, keep: str, *, max_actions: int) -> bool:
    """Whether an episode passes the filter; a broken one never does."""
    if episode.record is None or episode.outcome.value is None:
        return False
    if keep == "success":
        return episode.record.success
    replies = (turn.reply for turn in turns(episode, codec, max_actions=max_actions))
    return keep == "all" or all(codec.well_formed(reply) for reply in replies)


def world_steps(episodes: Sequence[TokenEpisode]) -> int:
    """Actions carried out in the real world: what a budget counts."""
    return sum(len(episode.record.transitions) for episode in episodes if episode.record is not None)
