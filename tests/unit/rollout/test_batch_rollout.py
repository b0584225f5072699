"""A world that cannot be reset masks its attempt and says why; play goes on after a kill."""

import threading
import zlib
from typing import ClassVar

import pytest

from terrella.core.errors import WorldError
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import PracticeTask, count_steps
from terrella.rollout.batch_rollout import BatchRollout, Chosen, draw_index, expert_actions
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban


class Closed(Counter):
    """Cannot be reset with an odd seed."""

    def reset(self, *, seed=None, options=None):
        if seed % 2:
            raise WorldError("browser", "libnss3.so is missing")
        return super().reset(seed=seed, options=options)


def test_a_world_that_cannot_be_reset_leaves_a_warning_with_its_message(caplog):
    tasks = [PracticeTask(family="count", seed=seed) for seed in (2, 3)]
    with BatchRollout({"count": Closed.Config()}) as rollout:
        played, masked = rollout.play(expert_actions, tasks, split=Split.TRAIN)
    assert played.success is not None and masked.success is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "the world closed cannot be reset: WorldError" in record.getMessage()
    assert "libnss3.so is missing" in record.getMessage()


def test_seeds_of_distinct_instances_are_found_and_no_more_than_there_are():
    families = {"few": Counter.Config(goals=5), "many": Sokoban.Config(longest=7, max_steps=6)}
    with BatchRollout(families) as rollout:
        for family, enough in (("few", False), ("many", True)):
            seeds = rollout.distinct_seeds(family, 40, Split.TEST)
            assert (len(seeds) == 40) is enough
            tasks = [PracticeTask(family=family, seed=seed) for seed in seeds]
            played = rollout.play(expert_actions, tasks, split=Split.TEST)
            assert len({attempt.name for attempt in played}) == len(seeds)


def test_instances_that_begin_alike_are_one_and_other_seeds_find_others(monkeypatch):
    with BatchRollout({"many": Sokoban.Config(longest=7, max_steps=6)}) as rollout:
        seeds = rollout.distinct_seeds("many", 5, Split.TEST)
        others = rollout.distinct_seeds("many", 5, Split.TEST, first=1_000_000)
        assert min(others) >= 1_000_000 > max(seeds)
        monkeypatch.setattr(Sokoban, "start_of", lambda *_: "the same page")
        assert rollout.distinct_seeds("many", 5, Split.TEST) == [0]


class Kill(BaseException):
    """Stands for a kill: nothing catches it."""


def by_the_batch(limit):
    """Choices that depend on all of the batch, as the last bits of a network's scores may."""
    calls = []

    def choose(inputs, slots):
        calls.append(len(inputs))
        if len(calls) > limit:
            raise Kill
        batch = zlib.crc32(repr(inputs).encode())
        weights = [[1.0 + (batch + n) % 7 for n in range(len(each.offered))] for each in inputs]
        drawn = [
            draw_index(each, slot.rng, greedy=False)
            for each, slot in zip(weights, slots, strict=True)
        ]
        return [Chosen(index, batch / 7) for index in drawn]

    return choose, calls


class Steps(Counter):
    """Counts its steps, of all its worlds."""

    taken: ClassVar[list[int]] = []

    def step(self, action):
        self.taken.append(self.seed)
        return super().step(action)


@pytest.mark.parametrize("budget", [0, 45])
def test_play_that_is_killed_anywhere_goes_on_to_the_same_attempts(tmp_path, budget):
    tasks = [PracticeTask(family="count", seed=seed) for seed in range(12)]

    def play(name, limit):
        choose, calls = by_the_batch(limit)
        Steps.taken.clear()
        with (
            AttemptJournal(tmp_path / name, patience=20) as journal,
            BatchRollout({"count": Steps.Config(goals=6, max_steps=7)}, slots=4) as rollout,
        ):
            known = journal.known(tasks)
            played = rollout.play(
                choose, tasks, split=Split.TRAIN, max_env_steps=budget, journal=journal
            )
        return played, known, len(calls)

    wanted, _, rounds = play("whole", 10**6)
    steps = len(Steps.taken)
    assert len({len(attempt.choices) for attempt in wanted}) > 1 and rounds > 12
    assert (len(wanted) < len(tasks)) == bool(budget)
    for kill in range(1, rounds):
        with pytest.raises(Kill):
            play(f"kill-{kill}", kill)
        played, known, asked = play(f"kill-{kill}", 10**6)
        assert played == wanted
        # What had ended takes no steps, and no questions beyond those of what was being played.
        assert len(Steps.taken) == steps - count_steps(known.values())
        assert asked <= rounds - kill + 7
    assert known


class Slow(Counter):
    """Its resets wait until two of them are under way."""

    under_way: ClassVar[threading.Barrier] = threading.Barrier(2, timeout=20)

    def reset(self, *, seed=None, options=None):
        if seed == 5:
            raise WorldError("shop", "is down")
        if seed < 4:
            self.under_way.wait()
        return super().reset(seed=seed, options=options)


def test_worlds_are_reset_beside_each_other_for_the_critic():
    tasks = [PracticeTask(family="count", seed=seed) for seed in (0, 1, 2, 3, 4, 5)]
    with BatchRollout({"count": Counter.Config(goals=9)}, slots=3) as rollout:
        wanted = rollout.first_inputs(tasks[:5], Split.TRAIN)
    with BatchRollout({"count": Slow.Config(goals=9)}, slots=2, threads=2) as rollout:
        assert rollout.first_inputs(tasks, Split.TRAIN) == [*wanted, None]
    assert len({shown.text for shown in wanted}) > 1
