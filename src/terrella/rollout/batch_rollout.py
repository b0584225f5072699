"""Plays practice tasks in several worlds at once, one batch of policy inputs at a time.

The order of everything follows from the tasks alone, so the same tasks and weights give the same
attempts, bit for bit. A world that fails leaves a masked attempt, and the others continue. Slow
worlds (browsers) are stepped beside each other in threads. Attempts that a journal has kept take
their place in the batch without a world, so a resumed run makes the same choices.
    with BatchRollout(families, slots=32) as rollout:
        attempts = rollout.play(expert_actions, tasks, split=Split.TRAIN)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeVar

import numpy as np

from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.types import Split, Stop, show_text
from terrella.core.world import World
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.models.policy_input import PolicyInput
from terrella.rollout.tasks import start_or_name, warn_of_reset

logger = logging.getLogger("terrella")
TRIES = 2
"""Seeds that are tried for each distinct instance that is wanted: each takes a reset."""
LISTED_TRIES = 100
"""The same for a world that lists its instances, which takes none."""
MAX_IDLE = 48
"""Worlds kept open between episodes: a web page is slow to open, but costs memory while open."""


Watch = Callable[[int, int], None]
"""Told of the env steps and the finished attempts so far."""


def unwatched(env_steps: int, attempts: int) -> None:
    """Default callback: does nothing."""


@dataclass(slots=True)
class WorldSlot:
    """A task that is being played."""

    index: int
    task: PracticeTask
    world: World | None
    """None for an attempt that was kept."""
    run: EpisodeRun | None
    """None where the world could not be reset."""
    choices: list[Choice] = field(default_factory=list[Choice])
    kept: Attempt | None = None
    """Played before a kill: its choices are repeated, and no world is stepped."""

    @property
    def over(self) -> bool:
        if self.kept is not None:
            return len(self.choices) == len(self.kept.choices)
        return self.run is None or self.run.over

    @property
    def rng(self) -> np.random.Generator:
        """The episode's own random numbers; what is drawn for a kept attempt is not used."""
        if self.run is None:
            return stream(POLICY_STREAM, self.task.seed, self.task.noise_seed)
        return self.run.rng


class Chosen(NamedTuple):
    """An action that was chosen among the offered ones."""

    taken: int
    logprob: float
    written: str = ""
    """How a language model wrote it; empty if the world gets it as it was offered."""
    reply_ids: tuple[int, ...] = ()


ActionSampler = Callable[[Sequence[PolicyInput], Sequence[WorldSlot]], list[Chosen]]
"""Chooses an action for each situation."""
T = TypeVar("T")
R = TypeVar("R")


def draw_index(probs: Sequence[float], rng: np.random.Generator, *, greedy: bool) -> int:
    """An index drawn with these weights, or the likeliest one."""
    summed = np.cumsum(np.asarray(probs, dtype=np.float64))
    # Drawn even if not used: the episode's random stream must not depend on `greedy`.
    drawn = int(np.searchsorted(summed, rng.random() * float(summed[-1]), side="right"))
    return int(np.argmax(probs)) if greedy else min(drawn, len(probs) - 1)


class BatchRollout:
    """Worlds of several families, reused between episodes."""

    def __init__(
        self,
        families: Mapping[str, World.Config],
        *,
        slots: int = 32,
        read_instruction: bool = False,
        threads: int = 0,
    ) -> None:
        """`read_instruction` puts the instruction before the text: it may hold the goal.

        `threads` step worlds beside each other; with 0 they are stepped one after the other.
        """
        self.families = families
        self.slots = slots
        self.threads = threads
        self.read_instruction = read_instruction
        self._idle: list[tuple[str, World]] = []
        self._threads = ThreadPoolExecutor(threads, "world") if threads else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for _, world in self._idle:
            world.close()
        self._idle.clear()

    # --- worlds -----------------------------------------------------------------------------------

    def _borrow(self, family: str) -> World:
        for index, (name, world) in enumerate(self._idle):
            if name == family:
                del self._idle[index]
                return world
        if family not in self.families:
            raise ConfigError(
                family, "no such family of tasks", f"known: {', '.join(self.families)}"
            )
        built: World = self.families[family].build()
        return built

    def _give_back(self, family: str, world: World) -> None:
        """Keep the world for the next task of its family; close the oldest of too many."""
        world.leave()
        self._idle.append((family, world))
        if len(self._idle) > MAX_IDLE:
            self._idle.pop(0)[1].close()

    @contextlib.contextmanager
    def world(self, family: str) -> Iterator[World]:
        """A world of a family, between episodes."""
        world = self._borrow(family)
        try:
            yield world
        finally:
            self._give_back(family, world)

    def first_inputs(self, tasks: Sequence[PracticeTask], split: Split) -> list[PolicyInput | None]:
        """The first policy input of each task; None where the world cannot be reset.

        Slow worlds are reset beside each other, in the threads.
        """
        inputs: list[PolicyInput | None] = []
        at_once = max(1, min(self.slots, self.threads))
        if any(world.exclusive for world in self.families.values()):
            at_once = 1
        for start in range(0, len(tasks), at_once):
            borrowed = [
                (task, self._borrow(task.family)) for task in tasks[start : start + at_once]
            ]
            for slot in self._each(lambda new: self._start(0, new[0], new[1], split), borrowed):
                inputs.append(self.policy_input(slot) if slot.run is not None else None)
                self._finish(slot)
        return inputs

    def policy_input(self, slot: WorldSlot) -> PolicyInput:
        """What the policy sees now."""
        if slot.kept is not None:
            return _kept_input(slot.kept, len(slot.choices))
        assert slot.run is not None
        situation = slot.run.situation
        text = show_text(situation.observation)
        if self.read_instruction:
            text = f"{situation.instruction}\n{text}"
        past_actions = tuple(choice.action for choice in slot.choices)
        return PolicyInput(
            text, situation.actions, past_actions, situation.steps_left, situation.instruction
        )

    def distinct_seeds(self, family: str, count: int, split: Split, *, first: int = 0) -> list[int]:
        """The seed of each of `count` instances that begin differently, from `first` on.

        Fewer, with a warning, where a world has no more, or where `TRIES` times as many seeds draw
        fewer. A seed whose world cannot be reset is kept; its attempt will be masked.
        """
        seeds: dict[str, int] = {}
        with self.world(family) as world:
            listed = world.instances(split)
            most = count if listed is None else min(count, len(listed))
            tries = (TRIES if listed is None else LISTED_TRIES) * count
            for seed in range(first, first + tries):
                if len(seeds) == most:
                    break
                seeds.setdefault(start_or_name(world, seed, split), seed)
        if len(seeds) < count:
            message = "%s: %d distinct %s instances found, of %d that were asked for"
            logger.warning(message, family, len(seeds), split, count)
        return list(seeds.values())

    # --- play -------------------------------------------------------------------------------------

    def play(
        self,
        sampler: ActionSampler,
        tasks: Sequence[PracticeTask],
        *,
        split: Split,
        max_env_steps: int = 0,
        watch: Watch = unwatched,
        journal: AttemptJournal | None = None,
    ) -> list[Attempt]:
        """Attempts in the order of the tasks.

        No task is started once `max_env_steps` are used; 0 plays all tasks. What a journal has kept
        is not played again.
        """
        kept = journal.known(tasks) if journal else {}
        waiting = list(enumerate(tasks))
        active: list[WorldSlot] = []
        finished: dict[int, Attempt] = {}
        env_steps = 0
        while waiting or active:
            starting: list[tuple[int, PracticeTask, World | None]] = []
            while waiting and len(active) + len(starting) < self.slots:
                if 0 < max_env_steps <= env_steps:
                    break
                playing = [slot.task for slot in active] + [task for _, task, _ in starting]
                if self._must_wait(waiting[0][1], playing):
                    break
                index, task = waiting.pop(0)
                world = None if index in kept else self._borrow(task.family)
                starting.append((index, task, world))
            active += self._each(
                lambda new: self._start(new[0], new[1], new[2], split, kept.get(new[0])), starting
            )
            live = [slot for slot in active if not slot.over]
            if live:
                self._step(sampler, live)
                env_steps += len(live)
            for slot in [slot for slot in active if slot.over]:
                active.remove(slot)
                finished[slot.index] = slot.kept or self._finish(slot)
                if journal and slot.kept is None:
                    journal.keep(slot.index, finished[slot.index])
            watch(env_steps, len(finished))
            if not active and 0 < max_env_steps <= env_steps:
                break
        return [finished[index] for index in sorted(finished)]

    def _must_wait(self, task: PracticeTask, playing: Iterable[PracticeTask]) -> bool:
        """Whether it would disturb an episode that is being played (`World.Config.exclusive`)."""
        alone = self._exclusive(task)
        return bool(alone) and any(self._exclusive(each) == alone for each in playing)

    def _exclusive(self, task: PracticeTask) -> str:
        return self.families[task.family].exclusive if task.family in self.families else ""

    def _each(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call for each item, in order or in threads; the results are in order."""
        mapped = map if self._threads is None else self._threads.map
        return list(mapped(call, items))

    def _start(
        self,
        index: int,
        task: PracticeTask,
        world: World | None,
        split: Split,
        kept: Attempt | None = None,
    ) -> WorldSlot:
        if world is None:
            return WorldSlot(index, task, None, None, kept=kept)
        try:
            run = EpisodeRun(
                world,
                seed=task.seed,
                noise_seed=task.noise_seed,
                split=split,
                policy="actor",
                written=task.written,
            )
        except Exception as error:  # noqa: BLE001  it masks its attempt, not the phase
            warn_of_reset(world, error)
            return WorldSlot(index, task, world, None)
        return WorldSlot(index, task, world, run)

    def _step(self, sampler: ActionSampler, slots: Sequence[WorldSlot]) -> None:
        played = [slot for slot in slots if slot.kept is None]
        if played:
            # Of the kept ones, too: the last bits of what is computed may depend on all of a batch.
            self._choose(sampler, slots)
            self._each(self._advance, played)
        for slot in slots:
            if slot.kept is not None:
                slot.choices.append(slot.kept.choices[len(slot.choices)])

    def _choose(self, sampler: ActionSampler, slots: Sequence[WorldSlot]) -> None:
        inputs = [self.policy_input(slot) for slot in slots]
        sampled = sampler(inputs, slots)
        for slot, shown, chosen in zip(slots, inputs, sampled, strict=True):
            if slot.kept is not None:
                continue
            choice = Choice(
                observation=shown.text,
                offered=shown.offered,
                taken=chosen.taken,
                logprob=chosen.logprob,
                steps_left=shown.steps_left,
                written=chosen.written,
                reply_ids=chosen.reply_ids,
            )
            slot.choices.append(choice)

    def _advance(self, slot: WorldSlot) -> None:
        """Carry out the last choice."""
        assert slot.run is not None
        try:
            slot.run.advance(slot.choices[-1].action)
        except Exception as error:  # noqa: BLE001  as in `_start`
            slot.run.end(Stop.WORLD_ERROR, f"{type(error).__name__}: {error}")

    def _finish(self, slot: WorldSlot) -> Attempt:
        assert slot.world is not None
        self._give_back(slot.task.family, slot.world)
        run = slot.run
        if run is None or not run.over:
            return Attempt(
                task=slot.task,
                instruction="",
                choices=tuple(slot.choices),
                last="",
                success=None,
                stop=str(Stop.WORLD_ERROR),
            )
        value = run.episode.outcome.value
        return Attempt(
            task=slot.task,
            instruction=run.instruction,
            choices=tuple(slot.choices),
            last=self.policy_input(slot).text,
            success=None if value is None else value == 1.0,
            stop=str(run.stop or Stop.WORLD_ERROR),
            instance=run.episode.instance,
        )


def _kept_input(attempt: Attempt, step: int) -> PolicyInput:
    """What the policy saw before a step of a kept attempt."""
    choice = attempt.choices[step]
    past = attempt.actions[:step]
    return PolicyInput(
        choice.observation, choice.offered, past, choice.steps_left, attempt.instruction
    )


def expert_actions(inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]) -> list[Chosen]:
    """Actions of the world's expert.

    An action that is not offered ends the attempt with a policy error.
    """
    chosen = []
    for shown, slot in zip(inputs, slots, strict=True):
        assert slot.run is not None
        action = slot.run.moment.expert()
        if action not in shown.offered:
            slot.run.end(Stop.POLICY_ERROR, f"the expert chose {action!r}, which is not offered")
        taken = shown.offered.index(action) if action in shown.offered else 0
        chosen.append(Chosen(taken, 0.0))
    return chosen


def expert_writes(inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]) -> list[Chosen]:
    """Actions of the world's expert, offered or not: answers to questions never are."""
    chosen = []
    for shown, slot in zip(inputs, slots, strict=True):
        assert slot.run is not None
        action = slot.run.moment.expert()
        if action in shown.offered:
            chosen.append(Chosen(shown.offered.index(action), 0.0))
        else:
            chosen.append(Chosen(-1, 0.0, written=action))
    return chosen
