"""Warm-up rows for a model made from scratch: how a reply looks, and a hint of what is right.

RLVR can push up only answers that are right now and then, and different ones for the same question.
So a fifth of the warm-up answers are right (the expert's action, what really came next) and the
others are random: the model learns the format, what can happen, and a slight preference for right
answers, which RLVR strengthens. `learn_world` also fits what the world showed, and how episodes
end.
    rows = warmup_examples(world_config, codec, ask="action", count=2000, seed=0)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Protocol

from terrella.codecs.choose import sft_targets
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec, Policy, Progress, TurnCodec
from terrella.core.seeds import WARMUP_FIRST, instance_seed
from terrella.core.tokens import History, TrainExample
from terrella.core.types import Split
from terrella.core.world import World
from terrella.policies.basic import Expert, Mixture, Random
from terrella.rollout.tasks import even_seeds
from terrella.world_models.imagine import ImaginedWorld, play_in_lockstep

CORRECT_FRACTION = 0.2
"""Share of the warm-up answers that are right, unless a recipe says otherwise.

The rest RLVR must find.
"""
IMAGINED_AT_ONCE = 32
"""Episodes of an imagined world that are played in lockstep, to share the batches of its model."""
Start = tuple[int, int]
"""The seed and the noise seed of an episode."""


class NoisyPlay(Protocol):
    """An episode that becomes rows while it is played."""

    run: EpisodeRun

    def advance(self, action: str) -> None: ...

    def rows(self) -> Sequence[TrainExample]: ...


def warmup_examples(  # noqa: PLR0913  which rows, of which world, for which codec
    world: World.Config,
    codec: Codec,
    *,
    ask: Literal["action", "observation"],
    count: int,
    seed: int,
    learn_world: bool = False,
    correct_fraction: float = CORRECT_FRACTION,
    history: History = "sampled",
    instances: int = 0,
    progress: Progress | None = None,
) -> list[TrainExample]:
    """`count` rows of the asked kind, on train instances that RLVR does not meet by number.

    An agent's row is an episode, or a turn where each has a prompt of its own (`history`).
    With `instances`, so many different instances are played in turn, again and again.
    """
    if learn_world and history != "sampled":
        raise ConfigError(
            "learn_world",
            f"with history={history} what the world shows is in prompts only",
            "set learn_world=False",
        )
    built: World = world.build()
    starts = itertools.islice(
        _starts(built, instance_seed(seed, WARMUP_FIRST), instances),
        count,  # episodes; each has at least one row
    )
    rows: Iterator[TrainExample]
    if ask == "action":
        policy = Mixture.Config(
            first=Random.Config(), second=Expert.Config(), share=correct_fraction
        ).build()
        start_play = partial(_start_play, codec=codec, history=history, learn_world=learn_world)
        worlds = [built]  # only a model gains by episodes at once; a browser is opened once
        if isinstance(built, ImaginedWorld):
            worlds += [world.build() for _ in range(IMAGINED_AT_ONCE - 1)]
        rows = _noisy_plays(worlds, starts, policy, start_play)
    else:
        rows = itertools.chain.from_iterable(
            _noisy_answers(built, _run(built, start), codec, correct_fraction) for start in starts
        )
    first_rows = itertools.islice(rows, count)
    return list(_counted(first_rows, count, progress) if progress else first_rows)


def _counted(
    rows: Iterator[TrainExample], count: int, progress: Progress
) -> Iterator[TrainExample]:
    """Show how many rows there are: behind a gate or in a browser each takes its time."""
    progress.phase("warm-up rows", count)
    for number, row in enumerate(rows, 1):
        yield row
        progress.advance(number)


def _starts(world: World, first: int, instances: int) -> Iterator[Start]:
    """New episodes: instance after instance as the world draws them, or different ones in turn."""
    if not instances:
        yield from ((seed, 0) for seed in itertools.count(first))
    seeds = even_seeds(world, first, instances, Split.TRAIN)
    for again in itertools.count():
        yield from ((seed, again) for seed in seeds)


def _run(world: World, start: Start) -> EpisodeRun:
    seed, noise_seed = start
    return EpisodeRun(world, seed=seed, noise_seed=noise_seed, split=Split.TRAIN, policy="random")


def _noisy_plays(
    worlds: Sequence[World],
    starts: Iterator[Start],
    policy: Policy,
    start_play: Callable[[EpisodeRun], NoisyPlay],
) -> Iterator[TrainExample]:
    """Episodes of mostly random actions, in the words of a model, one in each world at a time."""
    while batch := list(itertools.islice(starts, len(worlds))):
        plays = [start_play(_run(each, start)) for each, start in zip(worlds, batch, strict=False)]
        play_in_lockstep([(play.run, play.advance) for play in plays], policy)
        yield from itertools.chain.from_iterable(play.rows() for play in plays)


def _start_play(run: EpisodeRun, *, codec: Codec, history: History, learn_world: bool) -> NoisyPlay:
    if history == "sampled":
        return _EpisodeRow(run, codec, learn_world)
    if not isinstance(codec, TurnCodec):
        raise ConfigError("history", f"{type(codec).__name__} has no prompts of single turns")
    return _TurnRows(run, codec, history)


class _EpisodeRow:
    """An episode as one row."""

    def __init__(self, run: EpisodeRun, codec: Codec, learn_world: bool) -> None:
        self.run, self.codec, self.learn_world = run, codec, learn_world
        self.prompt = codec.ask_action(run.situation)
        self.ids: list[int] = []
        self.mask: list[bool] = []

    def advance(self, action: str) -> None:
        run, codec = self.run, self.codec
        run.advance(action)
        reply = codec.answer_action([action])
        # How an episode ends is what an agent most needs to foresee.
        ends_here = run.over and not self.learn_world
        forced = () if ends_here else codec.world_turn(run.situation)
        self.ids += [*reply, *forced]
        self.mask += [*sft_targets(codec, reply), *[self.learn_world] * len(forced)]

    def rows(self) -> Sequence[TrainExample]:
        row = TrainExample(
            prompt_ids=self.prompt, completion_ids=tuple(self.ids), mask=tuple(self.mask)
        )
        return (row,)


class _TurnRows:
    """The turns of an episode, each with its own prompt."""

    def __init__(self, run: EpisodeRun, codec: TurnCodec, history: History) -> None:
        self.run, self.codec, self.history = run, codec, history
        self.turns: list[TrainExample] = []

    def advance(self, action: str) -> None:
        prompt = self.codec.ask_turn(self.run.situation, self.history)
        reply = self.codec.answer_action([action])
        self.turns.append(
            TrainExample(
                prompt_ids=prompt, completion_ids=reply, mask=sft_targets(self.codec, reply)
            )
        )
        self.run.advance(action)

    def rows(self) -> Sequence[TrainExample]:
        return self.turns


def _noisy_answers(
    world: World, run: EpisodeRun, codec: Codec, correct_fraction: float
) -> Iterator[TrainExample]:
    """Each step of a random episode as a question.

    The answer is true now and then, else another action's.
    """
    policy = Random.Config().build()
    while not run.over:
        asked, other = policy.act(run.moment), policy.act(run.moment)
        done = asked if run.rng.random() < correct_fraction else other
        prompt = codec.ask_observation(run.situation, asked)
        reply = codec.answer_observation(world.fork().step(done)[0])
        yield TrainExample(prompt_ids=prompt, completion_ids=reply, mask=sft_targets(codec, reply))
        run.advance(asked)
