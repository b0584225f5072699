"""Warm-up rows for a model made from scratch: how a reply looks, and a hint of what is right.

RLVR can push up only answers that are right now and then, and different ones for the same question.
So a fifth of the warm-up answers are right (the expert's action, what really came next) and the
others are random: the model learns the format, what can happen, and a slight leaning that RLVR then
sharpens. `learn_world` also fits what the world showed, and how episodes end.
    rows = warmup_examples(world_config, codec, ask="action", count=2000, seed=0)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

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

CORRECT_FRACTION = 0.2
"""Share of the warm-up answers that are right, unless a recipe says otherwise.

The rest RLVR must find.
"""


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
    runs = _runs(built, instance_seed(seed, WARMUP_FIRST), instances)
    rows: Iterator[TrainExample]
    if ask == "action":
        policy = Mixture.Config(
            first=Random.Config(), second=Expert.Config(), share=correct_fraction
        ).build()
        if history == "sampled":
            rows = (_doubtful_play(run, codec, policy, learn_world=learn_world) for run in runs)
        else:
            rows = itertools.chain.from_iterable(
                _doubtful_turns(run, codec, policy, history) for run in runs
            )
    else:
        rows = itertools.chain.from_iterable(
            _doubtful_answers(built, run, codec, correct_fraction) for run in runs
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


def _runs(world: World, first: int, instances: int) -> Iterator[EpisodeRun]:
    """New episodes: instance after instance as the world draws them, or different ones in turn."""
    if not instances:
        for seed in itertools.count(first):
            yield EpisodeRun(world, seed=seed, split=Split.TRAIN, policy="random")
    seeds = even_seeds(world, first, instances, Split.TRAIN)
    for again in itertools.count():
        for seed in seeds:
            yield EpisodeRun(world, seed=seed, noise_seed=again, split=Split.TRAIN, policy="random")


def _doubtful_play(
    run: EpisodeRun, codec: Codec, policy: Policy, *, learn_world: bool
) -> TrainExample:
    """An episode of mostly random actions, in the words of a model."""
    prompt = codec.ask_action(run.situation)
    ids: list[int] = []
    mask: list[bool] = []
    while True:
        action = policy.act(run.moment)
        run.advance(action)
        reply = codec.answer_action([action])
        # How an episode ends is what an agent most needs to foresee.
        forced = () if run.over and not learn_world else codec.world_turn(run.situation)
        ids += [*reply, *forced]
        mask += [*sft_targets(codec, reply), *[learn_world] * len(forced)]
        if run.over:
            return TrainExample(prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask))


def _doubtful_turns(
    run: EpisodeRun, codec: Codec, policy: Policy, history: History
) -> Iterator[TrainExample]:
    """The turns of such an episode, each with its own prompt."""
    if not isinstance(codec, TurnCodec):
        raise ConfigError("history", f"{type(codec).__name__} has no prompts of single turns")
    while not run.over:
        prompt = codec.ask_turn(run.situation, history)
        action = policy.act(run.moment)
        reply = codec.answer_action([action])
        yield TrainExample(prompt_ids=prompt, completion_ids=reply, mask=sft_targets(codec, reply))
        run.advance(action)


def _doubtful_answers(
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
