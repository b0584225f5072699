"""The watchdog names what hangs, and is silent when nothing does."""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from terrella.core.tokens import Sampled, Task
from terrella.core.types import Split, Status
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.rollout import Rollout
from terrella.rollout.watchdog import Hang, Watchdog
from terrella.worlds.counter import Counter

RELEASED = threading.Event()


class Stuck(Counter):
    """A counter whose step does not return until the test is over, on every other seed."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        """As a counter's."""

    def outcomes(self, state: Any, action: str) -> Any:
        if self.seed % 2:
            RELEASED.wait(10)
        return super().outcomes(state, action)


class Letters:
    """A codec of one letter per token."""

    stop_ids = (0,)

    def ask_action(self, situation: Any) -> tuple[int, ...]:
        return (1,)

    def world_turn(self, situation: Any, cut_off: bool = False) -> tuple[int, ...]:
        return (2,)

    def read_actions(self, token_ids: Any) -> tuple[str, ...]:
        return ("up",)


class Instant:
    """A sampler that always says the same."""

    async def sample(self, request: Any) -> Sampled:
        return Sampled(token_ids=(3, 0), logprobs=(0.0, 0.0), stopped=True)

    def release(self, session: str) -> None:
        """Nothing is kept."""


def play(world: Any, watchdog: Watchdog, seeds: list[int]) -> list[Any]:
    pool = EnvPool.Config(place="thread", workers=len(seeds), timeout=1.0)
    rollout = Rollout(Rollout.Config(world=world, max_turns=2, env_pool=pool), Letters())
    rollout.watchdog = watchdog
    with watchdog, watchdog.phase("generate"):
        found = rollout.run(
            Instant(), [Task(seed=seed, split=Split.TRAIN) for seed in seeds], group_size=1, seed=0
        )
    RELEASED.set()
    rollout.env_pool.close()
    return found


def test_a_hanging_world_is_named_and_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    seen: list[Hang] = []
    with (tmp_path / "stacks").open("w+") as stacks, caplog.at_level(logging.ERROR, "terrella"):
        watchdog = Watchdog(limit=0.3, rank=3, on_hang=seen.append, stacks=stacks)
        even, odd = play(Stuck.Config(), watchdog, [4, 7])
        stacks.seek(0)
        assert "outcomes" in stacks.read()  # the very line that hangs
    (hang,) = seen
    assert (hang.rank, hang.phase) == (3, "generate")
    ((name, waited),) = hang.worlds
    assert name == "Stuck (seed 7, member 0): act 'up'" and 0.2 < waited < 1.0
    assert "rank 3 hangs in generate" in caplog.text and "seed 7" in caplog.text
    assert odd.outcome.status is Status.ENV_TIMEOUT and even.outcome.value is not None


def test_worlds_that_answer_are_no_hang(tmp_path: Path):
    watchdog = Watchdog(limit=0.5)
    play(Counter.Config(), watchdog, [4, 7])
    assert watchdog.hangs == []


def test_heartbeats_keep_it_quiet_and_silence_is_reported_once(tmp_path: Path):
    with (tmp_path / "stacks").open("w") as stacks, Watchdog(limit=0.2, stacks=stacks) as watchdog:
        time.sleep(0.5)  # idle: nothing is expected of us
        with watchdog.phase("generate"):
            for _ in range(5):
                time.sleep(0.1)
                watchdog.beat()
            assert watchdog.hangs == []
            time.sleep(0.7)
    assert [hang.phase for hang in watchdog.hangs] == ["generate"]


@pytest.mark.parametrize("phase", ["train", "sync", "save"])
def test_a_model_that_computes_has_ten_times_as_long(tmp_path: Path, phase: str):
    with (
        (tmp_path / "stacks").open("w") as stacks,
        Watchdog(limit=0.05, stacks=stacks) as watchdog,
        watchdog.phase(phase),
    ):
        time.sleep(0.2)
        assert watchdog.hangs == []
        time.sleep(0.6)
    assert [hang.phase for hang in watchdog.hangs] == [phase]
