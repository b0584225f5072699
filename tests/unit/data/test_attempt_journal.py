"""Attempts that ended before a kill are kept; broken ones are not, and too many end the run."""

import dataclasses

import pytest

from terrella.core.errors import StoreError, WorldError
from terrella.data.attempt_journal import LEAST_PATIENCE, AttemptJournal, play_once
from terrella.data.attempts import Attempt, Choice, PracticeTask, read_attempts

TASKS = [PracticeTask(family="shop", seed=seed, written="Find a lamp. \u2028") for seed in range(4)]


def attempt(index, *, stop="terminated"):
    choice = Choice(
        observation='[1] link "Löffel"',
        offered=("click 1", "back"),
        taken=-1,
        logprob=-0.1234567890123456,
        steps_left=3,
        written="click 1",
        reply_ids=(5, 70_000),
    )
    return Attempt(
        task=TASKS[index],
        instruction="Shop.",
        choices=(choice,) * (index + 1),
        last="done",
        success=None if stop == "world_error" else index % 2 == 0,
        stop=stop,
        instance=f"{index:016x}",
    )


def journal(folder):
    return AttemptJournal(folder / "attempts.jsonl", patience=1)


def test_what_was_kept_is_the_same_attempt_and_broken_ones_are_played_again(tmp_path):
    with journal(tmp_path) as kept:
        kept.keep(2, attempt(2))
        kept.keep(1, attempt(1, stop="world_error"))
        kept.keep(0, attempt(0))
    with journal(tmp_path) as again:
        assert again.known(TASKS) == {0: attempt(0), 2: attempt(2)}
        # A phase whose tasks were chosen anew does not take attempts at others for its own.
        other = [dataclasses.replace(task, seed=task.seed + 1) for task in TASKS]
        assert again.known(other) == {} and again.known(TASKS[:1]) == {0: attempt(0)}


def test_a_line_that_a_kill_cut_off_is_dropped_and_a_changed_one_is_refused(tmp_path):
    with journal(tmp_path) as kept:
        kept.keep(0, attempt(0))
        kept.keep(1, attempt(1))
    (rows,) = tmp_path.iterdir()
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-9])
    with journal(tmp_path) as again:
        assert again.known(TASKS) == {0: attempt(0)}
        again.keep(1, attempt(1))
    assert rows.read_bytes() == whole
    rows.write_bytes(whole.replace(b"link", b"sink", 1))
    with pytest.raises(StoreError, match="line 1: is damaged"):
        journal(tmp_path)


def test_attempts_are_played_once_and_only_one_file_is_left(tmp_path):
    path, wanted = tmp_path / "attempts.jsonl", [attempt(n) for n in range(3)]

    def killed(kept):
        kept.keep(1, attempt(1))
        raise KeyboardInterrupt

    def rest(kept):
        assert kept.known(TASKS) == {1: attempt(1)}
        return wanted

    with pytest.raises(KeyboardInterrupt):
        play_once(path, killed, patience=1)
    play_once(path, rest, patience=1)
    with journal(tmp_path) as kept:  # killed after the attempts were written
        kept.keep(0, attempt(0))
    play_once(path, killed, patience=1)
    assert read_attempts(path) == wanted
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}.sha256"}


def test_a_world_that_is_down_ends_the_run_and_one_that_fails_now_and_then_does_not(tmp_path):
    broken = attempt(3, stop="world_error")
    with journal(tmp_path) as kept:
        for _ in range(3):
            for _ in range(LEAST_PATIENCE - 1):
                kept.keep(3, broken)
            kept.keep(0, attempt(0))
        for _ in range(LEAST_PATIENCE - 1):
            kept.keep(3, broken)
        with pytest.raises(WorldError, match="shop: broke 20 attempts in a row"):
            kept.keep(3, broken)
    path = tmp_path / "others.jsonl"
    with pytest.raises(WorldError, match="broke all of 2 attempts"):
        play_once(path, lambda kept: [broken, broken], patience=1)
    assert not path.exists()
