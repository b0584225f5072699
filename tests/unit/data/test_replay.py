"""Replay: the first success per task, the band, the limit, and the same draw after a reload."""

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.data.attempts import Attempt, Choice, PracticeTask, read_attempts, write_attempts
from terrella.data.replay import Replay


def attempt(seed, steps=2, success=True, **more):
    choices = tuple(
        Choice(
            observation=f"page {n} √",
            offered=("a", "b"),
            taken=n % 2,
            logprob=-0.25,
            steps_left=steps - n,
        )
        for n in range(steps)
    )
    task = PracticeTask(family="f", seed=seed)
    return Attempt(
        task=task,
        instruction="do",
        choices=choices,
        last="end",
        success=success,
        stop="terminated",
        **more,
    )


def test_attempts_survive_the_disk_exactly(tmp_path):
    attempts = [attempt(0), attempt(1, steps=3, success=None)]
    write_attempts(tmp_path / "a.jsonl", attempts)
    assert read_attempts(tmp_path / "a.jsonl") == attempts
    assert attempts[0].observation_after(0) == "page 1 √"
    assert attempts[0].observation_after(1) == "end"


def test_only_steps_in_the_band_are_drawn_and_no_more_than_the_limit():
    replay = Replay(Replay.Config())
    assert replay.add([attempt(0), attempt(1), attempt(0)]) == 2
    probabilities = [0.5, 0.51, 0.95, 0.96]
    drawn, counts = replay.draw(probabilities, new_steps=10, rng=np.random.default_rng(0))
    assert sorted(drawn) == [(0, 1), (1, 0)]
    assert counts == {"buffer_steps": 4, "foreign": 1, "certain": 1, "in_band": 2, "drawn": 2}
    replay.add([attempt(seed) for seed in range(2, 50)])
    drawn, _ = replay.draw([0.7] * 100, new_steps=10, rng=np.random.default_rng(0))
    assert len(drawn) == len(set(drawn)) == 20
    without = Replay(Replay.Config(ratio=0.0), [attempt(0)])
    assert without.draw([0.7, 0.7], new_steps=9, rng=np.random.default_rng(0))[0] == []


def test_an_instance_is_kept_once_whatever_its_seed():
    replay = Replay(Replay.Config(), [attempt(0, instance="room")])
    assert replay.add([attempt(1, instance="room"), attempt(2, instance="other")]) == 1


def test_a_reloaded_buffer_draws_the_same(tmp_path):
    replay = Replay(Replay.Config(ratio=1.0), [attempt(seed, steps=3) for seed in range(30)])
    replay.save(tmp_path / "r.jsonl")
    reloaded = Replay.load(replay.config, tmp_path / "r.jsonl")
    probabilities = np.random.default_rng(1).random(90)
    first, second = (
        buffer.draw(probabilities, new_steps=20, rng=np.random.default_rng(5))
        for buffer in (replay, reloaded)
    )
    assert first == second and reloaded.add([attempt(7)]) == 0


def test_an_empty_band_is_refused():
    with pytest.raises(ConfigError, match="no band"):
        Replay.Config(least_chance=0.9, most_chance=0.5)
