"""Plays practice tasks with a pointing policy, several worlds in step, one batch of situations at a time.

The order of everything follows from the tasks alone, so the same tasks and weights give the same attempts, bit by bit.
A world that breaks leaves a masked attempt and the others go on.
    with Players(families, slots=32) as players: attempts = players.play(policy, tasks, split=Split.TRAIN)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.types import Split, Stop, show_text
from terrella.core.world import World
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.engines.pointer.learn import Net
from terrella.models.pointer import Reader, Sight

MOST_IDLE = 48
"""Worlds kept open between episodes: a web page is dear to open and dear to keep."""


@dataclass(slots=True)
class Seat:
    """A task being played."""

    place: int
    task: PracticeTask
    world: World | None
    run: EpisodeRun | None
    choices: list[Choice] = field(default_factory=list)
    error: str = ""

    @property
    def over(self) -> bool:
        """Nothing left to do here."""
        return self.run is None or self.run.over


class Players:
    """Worlds of several families, lent out and taken back."""

    def __init__(
        self, families: Mapping[str, World.Config], *, slots: int = 32, reader: Reader | None = None,
        read_instruction: bool = False,
    ) -> None:  # fmt: skip
        """`read_instruction` puts the world's instruction before what is seen: for worlds whose goal stands there."""
        self.families, self.slots, self.reader = families, slots, reader or Reader()
        self.read_instruction = read_instruction
        self._idle: list[tuple[str, World]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _, world in self._idle:
            world.close()
        self._idle.clear()

    # --- worlds -----------------------------------------------------------------------------------------------------

    def borrow(self, family: str) -> World:
        """A world of this family, idle or new."""
        for index, (name, world) in enumerate(self._idle):
            if name == family:
                del self._idle[index]
                return world
        if family not in self.families:
            raise ConfigError(family, "no such family of tasks", f"known: {', '.join(self.families)}")
        built: World = self.families[family].build()
        return built

    def give_back(self, family: str, world: World) -> None:
        """Keep it for the next task of its family; the one unused longest is closed when there are too many."""
        self._idle.append((family, world))
        if len(self._idle) > MOST_IDLE:
            self._idle.pop(0)[1].close()

    def first_sights(self, tasks: Sequence[PracticeTask], split: Split) -> list[tuple[Sight, str] | None]:
        """How each task looks before anything is done, and which instance it is; None where it cannot be begun."""
        found: list[tuple[Sight, str] | None] = []
        for index, task in enumerate(tasks):
            seat = self._begin(index, task, split)
            known = seat.run is not None and seat.world is not None
            found.append((self.sight(seat), seat.world.instance) if known and seat.world else None)
            self._leave(seat)
        return found

    def sight(self, seat: Seat) -> Sight:
        """What the policy is shown now."""
        assert seat.run is not None
        now = seat.run.situation
        text = show_text(now.observation)
        text = f"{now.instruction}\n{text}" if self.read_instruction else text
        done = tuple(choice.action for choice in seat.choices)
        return Sight(text, now.actions, done, now.steps_left)

    # --- play -------------------------------------------------------------------------------------------------------

    def play(self, choose: Chooser, tasks: Sequence[PracticeTask], *, split: Split, budget: int = 0) -> list[Attempt]:
        """Attempts in the order of the tasks; with a budget of real steps, no task is begun once it is spent."""
        waiting, seats = list(enumerate(tasks)), list[Seat]()
        finished: dict[int, Attempt] = {}
        spent = 0
        while waiting or seats:
            while waiting and len(seats) < self.slots and not (budget and spent >= budget):
                place, task = waiting.pop(0)
                seats.append(self._begin(place, task, split))
            live = [seat for seat in seats if not seat.over]
            if live:
                self._step(choose, live)
                spent += len(live)
            for seat in [seat for seat in seats if seat.over]:
                finished[seat.place] = self._leave(seat)
                seats.remove(seat)
            if not seats and budget and spent >= budget:
                break
        return [finished[place] for place in sorted(finished)]

    def _begin(self, place: int, task: PracticeTask, split: Split) -> Seat:
        world = self.borrow(task.family)
        try:
            run = EpisodeRun(world, seed=task.seed, noise_seed=task.noise_seed, split=split, policy="pointer")
        except Exception as error:  # noqa: BLE001  a world that cannot be reset masks its attempt, not the phase
            return Seat(place, task, world, None, error=f"{type(error).__name__}: {error}")
        return Seat(place, task, world, run)

    def _step(self, choose: Chooser, seats: Sequence[Seat]) -> None:
        sights = [self.sight(seat) for seat in seats]
        for seat, sight, (taken, logprob) in zip(seats, sights, choose(sights, seats), strict=True):
            assert seat.run is not None
            seat.choices.append(Choice(
                observation=sight.text, offered=sight.offered, taken=taken, logprob=logprob,
                steps_left=sight.steps_left,
            ))  # fmt: skip
            try:
                seat.run.advance(sight.offered[taken])
            except Exception as error:  # noqa: BLE001  as in `_begin`
                seat.run.end(Stop.WORLD_ERROR, f"{type(error).__name__}: {error}")

    def _leave(self, seat: Seat) -> Attempt:
        if seat.world is not None:
            self.give_back(seat.task.family, seat.world)
        run = seat.run
        if run is None or not run.over:
            instruction, last, success, stop = "", "", None, Stop.WORLD_ERROR
        else:
            value = run.episode.outcome.value
            instruction, last, stop = run.instruction, self.sight(seat).text, run.stop or Stop.WORLD_ERROR
            success = None if value is None else value == 1.0
        return Attempt(task=seat.task, instruction=instruction, choices=tuple(seat.choices), last=last, success=success,
                       stop=str(stop))  # fmt: skip


Chooser = Callable[[Sequence[Sight], Sequence[Seat]], list[tuple[int, float]]]
"""For each situation: which of the offered actions, and how likely that was."""


def policy_chooser(net: Net, reader: Reader, *, greedy: bool = False) -> Chooser:
    """The policy's own choices, at temperature 1 with each episode's own random numbers, or its best guess."""

    def choose(sights: Sequence[Sight], seats: Sequence[Seat]) -> list[tuple[int, float]]:
        with torch.no_grad():
            chances = net.module(reader.read(sights)).double().exp()
        found = []
        for row, sight, seat in zip(chances, sights, seats, strict=True):
            assert seat.run is not None
            summed = row[: len(sight.offered)].cumsum(0)
            drawn = int(torch.searchsorted(summed, seat.run.rng.random() * float(summed[-1]), right=True))
            taken = int(row.argmax()) if greedy else min(drawn, len(sight.offered) - 1)
            found.append((taken, float(row[taken].log())))
        return found

    return choose


def expert_chooser(sights: Sequence[Sight], seats: Sequence[Seat]) -> list[tuple[int, float]]:
    """The world's own teacher; an action that is not among the offered ones ends the attempt as broken."""
    found = []
    for sight, seat in zip(sights, seats, strict=True):
        assert seat.run is not None
        action = seat.run.moment.expert()
        if action not in sight.offered:
            seat.run.end(Stop.POLICY_ERROR, f"the teacher wants {action!r}, which is not offered")
        found.append((sight.offered.index(action) if action in sight.offered else 0, 0.0))
    return found
