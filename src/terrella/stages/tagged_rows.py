"""Rows for SFT in the tagged format: from what a model played (states put right, or not), or written by a script.

`turns` cuts an episode into replies with the true states around them: training, rewards and figures all read that.
    rows = [row for e in episodes if (row := played_row(e, codec, max_actions=5, states="true", loss="reply"))]
    rows = scripted_rows(world_config, codec, script, count=2000, seed=0).rows
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from terrella.codecs.tagged import Span, TaggedCodec
from terrella.core.episode import EpisodeRun
from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import TokenEpisode
from terrella.core.types import Split, Transition, show_text
from terrella.core.world import World
from terrella.engines.trl.packs import TrainingRow
from terrella.policies.basic import Random
from terrella.stages.tasks import SEED_STRIDE

States = Literal["true", "believed", "random_coordinates"]
Loss = Literal["reply", "states", "no_states"]
SCRIPT_FIRST = 2**31
"""Where the numbers of scripted episodes begin: far above those of RLVR's questions."""


class Collected(NamedTuple):
    """Rows to learn from, and what they cost."""

    rows: list[TrainingRow]
    world_steps: int
    """Actions carried out in the real world: what a budget counts."""
    episodes: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of an episode and what it did to the world."""

    start: int
    """Where the reply begins in the completion; what the world forced stands before it."""
    end: int
    reply: tuple[int, ...]
    steps: tuple[Transition, ...]

    @property
    def before(self) -> str:
        """What was seen when the reply was written."""
        return show_text(self.steps[0].observation)

    @property
    def after(self) -> str:
        """What was seen when its actions were done."""
        return show_text(self.steps[-1].next_observation)


def turns(episode: TokenEpisode, codec: TaggedCodec, *, max_actions: int) -> list[Turn]:
    """The replies of an episode, each with the transitions that its actions caused; none for a broken one."""
    if episode.record is None:
        return []
    steps = iter(episode.record.transitions)
    found, before = [], 0
    for end in episode.turn_ends:
        start = next(place for place in range(before, end) if episode.model_mask[place])
        reply = episode.completion_ids[start:end]
        asked = len(codec.read_actions(reply)[:max_actions]) or 1  # no action is one invalid action
        found.append(Turn(start, end, reply, tuple(itertools.islice(steps, asked))))
        before = end
    return found


def played_row(
    episode: TokenEpisode, codec: TaggedCodec, *, max_actions: int, states: States, loss: Loss
) -> TrainingRow | None:
    """A played episode as a row: true states inside the tags, sampled tokens elsewhere. None for a broken episode."""
    ids: list[int] = []
    mask: list[bool] = []
    before = 0
    for turn in turns(episode, codec, max_actions=max_actions):
        forced = episode.completion_ids[before : turn.start]
        reply, spans = codec.with_states(turn.reply, **_states_of(turn, states, seed=len(ids)))
        ids += [*forced, *reply]
        mask += [False] * len(forced) + [counts(span, loss) for span in spans]
        before = turn.end
    return TrainingRow(prompt_ids=episode.prompt_ids, completion_ids=ids, mask=mask) if any(mask) else None


def counts(span: Span, loss: Loss) -> bool:
    """Whether a token of this kind is a target."""
    return loss == "reply" or (span is Span.WORDS) == (loss == "no_states")


def _states_of(turn: Turn, states: States, *, seed: int) -> dict[str, str | None]:
    if states == "believed":
        return {"before": None, "after": None}
    if states == "true":
        return {"before": turn.before, "after": turn.after}
    rng = stream(TASK_STREAM, seed)
    return {"before": random_coordinates(turn.before, rng), "after": random_coordinates(turn.after, rng)}


def random_coordinates(text: str, rng: np.random.Generator) -> str:
    """The same text with every coordinate drawn anew (digits inside brackets), as far as its board seems to reach."""
    places = [at for at, sign in enumerate(text) if sign.isdigit() and _inside_brackets(text, at)]
    largest = max((int(text[at]) for at in places), default=0)
    signs = list(text)
    for at in places:
        signs[at] = str(int(rng.integers(largest + 1)))
    return "".join(signs)


def _inside_brackets(text: str, at: int) -> bool:
    return text.rfind("(", 0, at) > text.rfind(")", 0, at)


# --- scripted episodes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Script:
    """Random play in the words of a model."""

    max_turns: int
    max_actions: int
    truthful: bool
    """The states are true; or one of another instance, seen and predicted: well formed, sure of itself, and wrong."""
    loss: Loss = "reply"


WriteRow = Callable[[EpisodeRun, TaggedCodec, Script, Iterator[str]], TrainingRow]
"""(a fresh episode, the codec, the script, made-up states) -> the row."""


def scripted_rows(
    world: World.Config, codec: TaggedCodec, script: Script, *, count: int, seed: int, write: WriteRow | None = None
) -> Collected:
    """`count` episodes of random actions, one row each, on train instances that RLVR does not meet by number."""
    write = write or _scripted_row
    played, elsewhere = world.build(), world.build()
    found = Collected([], 0, count)
    for number in range(seed * SEED_STRIDE + SCRIPT_FIRST, seed * SEED_STRIDE + SCRIPT_FIRST + count):
        run = EpisodeRun(played, seed=number, split=Split.TRAIN, policy="random")
        found.rows.append(write(run, codec, script, _inventions(elsewhere, number)))
        found = found._replace(world_steps=found.world_steps + len(run.transitions))
    return found


def _scripted_row(run: EpisodeRun, codec: TaggedCodec, script: Script, inventions: Iterator[str]) -> TrainingRow:
    prompt = codec.ask_action(run.situation)
    ids: list[int] = []
    mask: list[bool] = []
    for turn in range(script.max_turns):
        if turn:
            forced = codec.world_turn(run.situation)
            ids += forced
            mask += [False] * len(forced)
        before = show_text(run.observation)
        actions = _random_turn(run, int(run.rng.integers(1, script.max_actions + 1)))
        after = show_text(run.observation)
        if not script.truthful:
            before = after = next(inventions)
        reply, spans = codec.answer(actions, before=before, after=after)
        ids += reply
        mask += [counts(span, script.loss) for span in spans]
        if run.over:
            break
    return TrainingRow(prompt_ids=prompt, completion_ids=ids, mask=mask)


def _random_turn(run: EpisodeRun, length: int) -> Sequence[str]:
    """A turn of this many random actions; those that come after the end of the episode are said, and not done."""
    policy, actions = Random.Config().build(), []
    for _ in range(length):
        actions.append(policy.act(run.moment))
        if not run.over:
            run.advance(actions[-1])
    return actions


def _inventions(world: World, seed: int) -> Iterator[str]:
    """What is seen at the start of other instances."""
    for number in itertools.count():
        observation, _ = world.reset(seed=seed + (number + 1) * SEED_STRIDE * 64, options={"split": Split.TRAIN})
        yield show_text(observation)
