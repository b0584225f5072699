"""Rows for SFT in the bare format, in which the states are what the world shows between the replies.

    <obs> now <end> <act> Up <end> <obs> next <end> <act> ...
There is nothing to copy: a true state stands there already, and learning the world is having it as a target. The last
state is shown, too, though no reply follows. `stages/tagged_rows.py` is the same for replies with tags.
    rows = [shown_row(episode, codec, max_actions=1, states="true", loss="reply") for episode in episodes]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TaggedCodec
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import Sampler, Task, TokenEpisode
from terrella.core.types import Situation, show_text
from terrella.core.world import World
from terrella.engines.episodes.driver import Driver
from terrella.engines.trl.packs import TrainingRow
from terrella.policies.basic import Random
from terrella.stages.tagged_rows import (
    Collected,
    Loss,
    Script,
    States,
    Turn,
    WriteRow,
    random_coordinates,
    scripted_rows,
    turns,
)

BELIEF_TOKENS = 96
"""How long the model may go on saying what it believes it will see."""


class ShownTape:
    """A row as it is written: reply, what is shown, reply, ..."""

    def __init__(self, codec: TaggedCodec, loss: Loss) -> None:
        """`loss` is about both: whole, states only, or all but the states."""
        if not isinstance(codec.inner, InterleavedCodec):
            raise ConfigError("form", "'shown' is for models of our own, in the interleaved format",
                              "choose form=worldmodel for a chat model")  # fmt: skip
        self.codec, self.loss = codec.inner, loss
        self.ids: list[int] = []
        self.mask: list[bool] = []

    def _add(self, ids: Sequence[int], *, target: bool) -> None:
        self.ids += ids
        self.mask += [target] * len(ids)

    def turn(self, reply: Sequence[int], shown: str) -> None:
        """A reply and the state after it."""
        if self.ids:
            self._add(self.codec.open_action, target=False)
        self._add(reply, target=self.loss != "states")
        if not reply or reply[-1] not in self.codec.stop_ids:  # cut off: the world ends the turn
            self._add(self.codec.stop_ids[:1], target=False)
        self._add(self.codec.shown(shown), target=self.loss != "no_states")

    def row(self, prompt_ids: Sequence[int]) -> TrainingRow:
        """The whole."""
        return TrainingRow(prompt_ids=tuple(prompt_ids), completion_ids=tuple(self.ids), mask=tuple(self.mask))


def shown_row(
    episode: TokenEpisode, codec: TaggedCodec, *, max_actions: int, states: States, loss: Loss,
    beliefs: Sequence[str] = (),
) -> TrainingRow:  # fmt: skip
    """A played episode as a row: sampled replies, and after each the true state, a believed or a garbled one."""
    tape = ShownTape(codec, loss)
    for number, turn in enumerate(turns(episode, codec, max_actions=max_actions)):
        tape.turn(turn.reply, beliefs[number] if states == "believed" else _state(turn, states, seed=number))
    return tape.row(episode.prompt_ids)


def _state(turn: Turn, states: States, *, seed: int) -> str:
    return turn.after if states == "true" else random_coordinates(turn.after, stream(TASK_STREAM, seed))


def believed_states(
    driver: Driver, sampler: Sampler, episodes: Sequence[TokenEpisode], codec: TaggedCodec, *, seed: int
) -> list[list[str]]:
    """What the model itself says will be seen after each turn of these episodes, sampled."""
    cut = [turns(episode, codec, max_actions=driver.config.max_actions) for episode in episodes]
    played = [(number, turn) for number, found in enumerate(cut) for turn in found]
    tasks = [_question(turn, seed=place) for place, (_, turn) in enumerate(played)]
    asker = Driver(driver.config.replace(turn_tokens=BELIEF_TOKENS), codec)
    answers = asker.run(sampler, tasks, group_size=1, seed=seed)
    said: list[list[str]] = [[] for _ in episodes]
    for (number, _), answer in zip(played, answers, strict=True):
        said[number].append(codec.inner.text([i for i in answer.completion_ids if i not in codec.stop_ids]))
    return said


def _question(turn: Turn, *, seed: int) -> Task:
    step = turn.steps[0]
    seen = Situation(instruction="", observation=step.observation, actions=(), history=(), steps_left=1)
    return Task(seed=seed, noise_seed=seed, situation=seen, transition=step)


def script_of_form(world: World.Config, codec: TaggedCodec, script: Script, *, count: int, seed: int) -> Collected:
    """Scripted rows in the codec's form, with tags or without."""
    write: WriteRow | None = scripted_shown_row if codec.form == "shown" else None
    return scripted_rows(world, codec, script, count=count, seed=seed, write=write)


def scripted_shown_row(run: EpisodeRun, codec: TaggedCodec, script: Script, inventions: Iterator[str]) -> TrainingRow:
    """Random actions; the states are true, or those of other instances: well formed, and wrong."""
    policy, tape, prompt = Random.Config().build(), ShownTape(codec, script.loss), codec.ask_action(run.situation)
    for _ in range(script.max_turns):
        action = policy.act(run.moment)
        run.advance(action)
        tape.turn(codec.answer_action([action]), show_text(run.observation) if script.truthful else next(inventions))
        if run.over:
            break
    return tape.row(prompt)
