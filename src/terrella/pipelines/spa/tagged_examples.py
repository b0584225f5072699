"""SFT examples in the tagged format: from played episodes, or scripted.

A played episode keeps its sampled tokens; the states inside its tags are replaced by the true ones
(or left, or garbled, for the ablations). A script writes random play in a model's words.
    example = played_example(episode, codec, max_actions=5, states="true", loss="reply")
    examples = scripted_examples(world_config, codec, script, count=2000, seed=0).examples
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from terrella.codecs.steps import StepsCodec
from terrella.codecs.tagged import Span, TaggedCodec
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.seeds import (
    SEED_STRIDE,
    TASK_STREAM,
    WARMUP_FIRST,
    instance_seed,
    stream,
)
from terrella.core.tokens import TokenEpisode, TrainExample
from terrella.core.types import Split, show_text
from terrella.core.world import World
from terrella.policies.basic import Random
from terrella.rollout.turns import Turn, turns

States = Literal["true", "believed", "random_coordinates"]
Loss = Literal["reply", "states", "no_states"]


class Collected(NamedTuple):
    """Examples to train on, and what they cost."""

    examples: list[TrainExample]
    env_steps: int
    """Actions carried out in real worlds."""
    episodes: int


def played_example(
    episode: TokenEpisode, codec: TaggedCodec, *, max_actions: int, states: States, loss: Loss
) -> TrainExample | None:
    """A played episode as an example; None for a broken episode."""
    ids: list[int] = []
    mask: list[bool] = []
    before = 0
    for number, turn in enumerate(turns(episode, codec, max_actions=max_actions)):
        forced = episode.completion_ids[before : turn.start]
        shown = _states_of(turn, states, turn_rng(episode, number))
        reply, spans = codec.with_states(turn.reply, shown)
        ids += [*forced, *reply]
        mask += [False] * len(forced) + [counts(span, loss) for span in spans]
        before = turn.end
    if not any(mask):
        return None
    return TrainExample(prompt_ids=episode.prompt_ids, completion_ids=ids, mask=mask)


def counts(span: Span, loss: Loss) -> bool:
    """Whether a token of this kind is a training target."""
    if span is Span.EMPTY_THOUGHT:
        return False
    return loss == "reply" or (span is Span.TEXT) == (loss == "no_states")


def _states_of(turn: Turn, states: States, rng: np.random.Generator) -> list[str] | None:
    if states == "believed":
        return None
    if states == "true":
        return turn.states
    return [random_coordinates(state, rng) for state in turn.states]


def turn_rng(episode: TokenEpisode, number: int) -> np.random.Generator:
    """Random numbers for turn `number` of an episode. No two episodes share them.

    With equal numbers, all episodes would have the same coordinates at the same turn.
    """
    record = episode.record
    if record is None:
        raise ValueError("an episode without a record has no turns")
    return stream(TASK_STREAM, record.seed, record.noise_seed, number)


def random_coordinates(text: str, rng: np.random.Generator) -> str:
    """The text with every coordinate (digit in brackets) drawn anew, at most the largest."""
    indices = _coordinates(text)
    largest = max((int(text[index]) for index in indices), default=0)
    characters = list(text)
    for index in indices:
        characters[index] = str(int(rng.integers(largest + 1)))
    return "".join(characters)


def check_coordinates(config: World.Config) -> None:
    """Refuse a world that shows no coordinates in brackets: nothing in its states could be drawn.

    Such states would stay true, and the ablation would train on them in silence.
    """
    world: World = config.build()
    with contextlib.closing(world):
        observation, _ = world.reset(seed=0)
    if _coordinates(show_text(observation)):
        return
    view = f" (view {config.view})" if config.view else ""
    raise ConfigError(
        "self_play.states",
        f"random_coordinates, but {world.name}{view} shows no coordinates in brackets",
        "play a view with coordinates, such as --set world.view=coordinates",
    )


def _coordinates(text: str) -> list[int]:
    """Where the digits in brackets are."""
    return [
        index
        for index, character in enumerate(text)
        if character.isdigit() and _inside_brackets(text, index)
    ]


def _inside_brackets(text: str, index: int) -> bool:
    return text.rfind("(", 0, index) > text.rfind(")", 0, index)


# --- scripted episodes ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Script:
    """Random play in the words of a model."""

    max_turns: int
    max_actions: int
    truthful: bool
    """True states; otherwise states of another instance: well formed, and wrong."""
    loss: Loss = "reply"


WriteExample = Callable[[EpisodeRun, TaggedCodec, Script, Iterator[list[str]]], TrainExample]
"""Writes one example from a fresh episode, the codec, the script and made-up states."""


def scripted_examples(
    world: World.Config,
    codec: TaggedCodec,
    script: Script,
    *,
    count: int,
    seed: int,
    write: WriteExample | None = None,
) -> Collected:
    """`count` episodes of random actions on train instances, numbered apart from RL's tasks."""
    write = write or _scripted_example
    world_played: World = world.build()
    world_invented: World = world.build()
    walk = script.max_actions if isinstance(codec, StepsCodec) else 0
    examples: list[TrainExample] = []
    env_steps = 0
    first = instance_seed(seed, WARMUP_FIRST)
    for number in range(first, first + count):
        run = EpisodeRun(world_played, seed=number, split=Split.TRAIN, policy="random")
        examples.append(write(run, codec, script, _invented_states(world_invented, number, walk)))
        env_steps += len(run.transitions)
    return Collected(examples, env_steps, count)


def _scripted_example(
    run: EpisodeRun, codec: TaggedCodec, script: Script, invented: Iterator[list[str]]
) -> TrainExample:
    prompt = codec.ask_action(run.situation)
    ids: list[int] = []
    mask: list[bool] = []
    for turn in range(script.max_turns):
        if turn:
            forced = codec.world_turn(run.situation)
            ids += forced
            mask += [False] * len(forced)
        states = [show_text(run.observation)]
        actions = _random_turn(run, int(run.rng.integers(1, script.max_actions + 1)), states)
        if not script.truthful:
            untrue = next(invented)
            states = untrue * 2 if len(untrue) == 1 else untrue
        reply, spans = codec.answer(actions, states)
        ids += reply
        mask += [counts(span, script.loss) for span in spans]
        if run.over:
            break
    return TrainExample(prompt_ids=prompt, completion_ids=ids, mask=mask)


def _random_turn(run: EpisodeRun, length: int, states: list[str]) -> Sequence[str]:
    """Random actions for one turn; those after the end of the episode are written, not done.

    What is seen after each of them is appended to `states`.
    """
    policy = Random.Config().build()
    actions: list[str] = []
    for _ in range(length):
        actions.append(policy.act(run.moment))
        if not run.over:
            run.advance(actions[-1])
        states.append(show_text(run.observation))
    return actions


def _invented_states(world: World, seed: int, walk: int) -> Iterator[list[str]]:
    """First observations of other instances, each with those of a random walk of `walk` steps."""
    policy = Random.Config().build()
    for number in itertools.count():
        run = EpisodeRun(
            world,
            seed=seed + (number + 1) * SEED_STRIDE * 64,
            split=Split.TRAIN,
            policy="random",
        )
        states = [show_text(run.observation)]
        for _ in range(walk):
            if not run.over:
                run.advance(policy.act(run.moment))
            states.append(show_text(run.observation))
        yield states
