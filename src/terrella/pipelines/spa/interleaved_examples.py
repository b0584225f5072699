"""SFT examples in the interleaved format, where states are what the world shows between replies.

    <obs> now <end> <act> Up <end> <obs> next <end> <act> ...

The true state is already there, so learning the world means training on it. The last state is
shown, too, although no reply follows. `tagged_examples.py` is the same for replies with tags.
    example = shown_example(episode, codec, max_actions=1, states="true", loss="reply")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TaggedCodec
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.protocols import Sampler
from terrella.core.tokens import Task, TokenEpisode, TrainExample
from terrella.core.types import Situation, show_text
from terrella.core.world import World
from terrella.pipelines.spa.tagged_examples import (
    Collected,
    Loss,
    Script,
    States,
    WriteExample,
    random_coordinates,
    scripted_examples,
    turn_rng,
)
from terrella.policies.basic import Random
from terrella.rollout.rollout import Rollout
from terrella.rollout.turns import Turn, turns

PREDICTION_TOKENS = 96
"""Longest prediction of the next observation."""


def interleaved(codec: TaggedCodec) -> InterleavedCodec:
    """The codec of a model from scratch; a chat model is refused."""
    if not isinstance(codec.inner, InterleavedCodec):
        raise refused_chat_model()
    return codec.inner


def refused_chat_model() -> ConfigError:
    """What is said of a chat model whose form is `shown`."""
    return ConfigError(
        "form",
        "shown is a form of models that are made from scratch, and the model is a chat model: it "
        "states what it sees in its replies",
        "set form=worldmodel, or form=steps with thinking=off",
    )


class ExampleBuilder:
    """Collects the tokens of an example: reply, observation, reply, ..."""

    def __init__(self, codec: TaggedCodec, loss: Loss) -> None:
        """`loss` chooses the targets: everything, the states only, or all but the states."""
        self.codec, self.loss = interleaved(codec), loss
        self.ids: list[int] = []
        self.mask: list[bool] = []

    def _add(self, ids: Sequence[int], *, target: bool) -> None:
        self.ids += ids
        self.mask += [target] * len(ids)

    def turn(self, reply: Sequence[int], shown: str) -> None:
        """Add a reply and the state after it."""
        if self.ids:
            self._add(self.codec.open_action, target=False)
        self._add(reply, target=self.loss != "states")
        if not reply or reply[-1] not in self.codec.stop_ids:  # cut off: the world ends the turn
            self._add(self.codec.stop_ids[:1], target=False)
        self._add(self.codec.shown(shown), target=self.loss != "no_states")

    def example(self, prompt_ids: Sequence[int]) -> TrainExample:
        return TrainExample(
            prompt_ids=tuple(prompt_ids), completion_ids=tuple(self.ids), mask=tuple(self.mask)
        )


def shown_example(
    episode: TokenEpisode,
    codec: TaggedCodec,
    *,
    max_actions: int,
    states: States,
    loss: Loss,
    predicted: Sequence[str] = (),
) -> TrainExample:
    """A played episode: sampled replies, each followed by the true, predicted or garbled state."""
    builder = ExampleBuilder(codec, loss)
    for number, turn in enumerate(turns(episode, codec, max_actions=max_actions)):
        if states == "believed":
            state = predicted[number]
        else:
            state = _state(turn, states, turn_rng(episode, number))
        builder.turn(turn.reply, state)
    return builder.example(episode.prompt_ids)


def _state(turn: Turn, states: States, rng: np.random.Generator) -> str:
    return turn.after if states == "true" else random_coordinates(turn.after, rng)


def predicted_states(
    rollout: Rollout,
    sampler: Sampler,
    episodes: Sequence[TokenEpisode],
    codec: TaggedCodec,
    *,
    seed: int,
) -> list[list[str]]:
    """The model's own sampled prediction of what is seen after each turn of these episodes."""
    limits = rollout.config.replace(turn_tokens=PREDICTION_TOKENS)
    cut = [turns(episode, codec, max_actions=limits.max_actions) for episode in episodes]
    played = [(number, turn) for number, episode in enumerate(cut) for turn in episode]
    tasks = [_prediction_task(turn, seed=index) for index, (_, turn) in enumerate(played)]
    with Rollout(limits, codec) as predictions:
        answers = predictions.run(sampler, tasks, group_size=1, seed=seed)
    states: list[list[str]] = [[] for _ in episodes]
    for (number, _), answer in zip(played, answers, strict=True):
        written = [token for token in answer.completion_ids if token not in codec.stop_ids]
        states[number].append(codec.inner.text(written))
    return states


def _prediction_task(turn: Turn, *, seed: int) -> Task:
    step = turn.steps[0]
    seen = Situation(
        instruction="", observation=step.observation, actions=(), history=(), steps_left=1
    )
    return Task(seed=seed, noise_seed=seed, situation=seen, transition=step)


def script_of_form(
    world: World.Config, codec: TaggedCodec, script: Script, *, count: int, seed: int
) -> Collected:
    """Scripted examples in the codec's form, with tags or without."""
    write: WriteExample | None = scripted_shown_example if codec.form == "shown" else None
    return scripted_examples(world, codec, script, count=count, seed=seed, write=write)


def scripted_shown_example(
    run: EpisodeRun, codec: TaggedCodec, script: Script, invented: Iterator[list[str]]
) -> TrainExample:
    """Random actions; the states are true, or those of other instances: well formed, and wrong."""
    policy = Random.Config().build()
    builder = ExampleBuilder(codec, script.loss)
    prompt = codec.ask_action(run.situation)
    for _ in range(script.max_turns):
        action = policy.act(run.moment)
        run.advance(action)
        state = show_text(run.observation) if script.truthful else next(invented)[0]
        builder.turn(codec.answer_action([action]), state)
        if run.over:
            break
    return builder.example(prompt)
