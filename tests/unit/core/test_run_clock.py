"""The time of a run is that of all its sessions."""

import pytest

from terrella.core.run_clock import SAVE_SECONDS, SESSIONS, RunClock, TimedProgress
from terrella.core.run_folder import RunFolder
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


class Time:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def test_a_killed_session_counts_up_to_its_last_progress(tmp_path):
    time = Time()
    clock = RunClock(tmp_path, now=time)
    display = TimedProgress(SilentProgress(), clock)
    for passed in (SAVE_SECONDS, SAVE_SECONDS / 2):
        time.seconds += passed
        display.advance(1)
    assert clock.seconds() == 1.5 * SAVE_SECONDS
    resumed = RunClock(tmp_path, now=time)  # the first was killed
    time.seconds += 5
    resumed.save()
    assert resumed.seconds() == SAVE_SECONDS + 5
    assert len((tmp_path / SESSIONS).read_text().splitlines()) == 2


def test_one_rank_writes(tmp_path):
    RunClock(tmp_path, writes=False).save()
    assert not (tmp_path / SESSIONS).exists()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"x", b"date nan s\ndate inf s\ndate -5 s\n\n"])
def test_a_log_that_says_nothing_counts_as_nothing(text, tmp_path):
    (tmp_path / SESSIONS).write_bytes(text)
    assert RunClock(tmp_path, now=Time()).seconds() == 0.0


def test_a_resumed_run_has_the_time_of_both_sessions(tmp_path):
    def session():
        return RunFolder(tmp_path, Counter.Config(), progress=SilentProgress())

    with pytest.raises(KeyboardInterrupt), session() as run:
        run.clock._began -= 60  # a minute ago
        run.part("half", int, lambda: 1)
        raise KeyboardInterrupt
    with session() as run:
        manifest = run.finish({})
    assert 60 <= manifest.seconds < 90
    assert SESSIONS not in manifest.files
