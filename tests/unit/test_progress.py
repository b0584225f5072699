"""Progress displays: log lines, the live bar, and tables of metrics."""

import io
import logging

import pytest
from rich.console import Console

from terrella.core.protocols import Progress
from terrella.show import progress as shown


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "terrella")
    return lambda: [record.getMessage() for record in caplog.records]


def test_all_displays_are_progress():
    displays = [
        shown.PlainProgress(),
        shown.LiveProgress(Console(file=io.StringIO())),
        shown.SilentProgress(),
    ]
    assert all(isinstance(display, Progress) for display in displays)


def test_plain_lines_come_every_few_seconds_and_at_the_end(lines):
    clock = Clock()
    plain = shown.PlainProgress(every=5, clock=clock)
    plain.phase("collect", 1000)
    for done in range(0, 1001, 100):  # one hundred per second
        plain.advance(done, success=0.25, masked=3)
        clock.now += 1
    assert lines() == [
        "collect  0 of 1,000 (0%)  success=0.25 masked=3",
        "collect  500 of 1,000 (50%)  100/s, 5 s left  success=0.25 masked=3",
        "collect  1,000 of 1,000 (100%)  100/s  success=0.25 masked=3",
    ]


def test_a_resumed_run_shows_its_own_rate_and_not_that_of_the_killed_one(lines):
    clock = Clock()
    plain = shown.PlainProgress(every=0, clock=clock)
    plain.phase("collect", 1000)
    clock.now = 60  # reading what exists is not collecting
    plain.advance(900)
    clock.now = 62
    plain.advance(910)
    assert lines()[-1] == "collect  910 of 1,000 (91%)  5/s, 18 s left"


def test_a_new_phase_starts_its_own_count(lines):
    clock = Clock()
    plain = shown.PlainProgress(every=5, clock=clock)
    plain.phase("collect", 10)
    plain.advance(0)
    plain.phase("verify", 4)
    plain.advance(0)
    assert [line.split("  ")[:2] for line in lines()] == [
        ["collect", "0 of 10 (0%)"],
        ["verify", "0 of 4 (0%)"],
    ]


@pytest.mark.parametrize(
    ("duration", "text"), [(3.4, "3 s"), (200, "3:20 min"), (7500, "2:05 h"), (59.9, "1:00 min")]
)
def test_durations_are_readable(duration, text):
    assert shown.duration_text(duration) == text


def test_a_terminal_gets_a_bar_with_phase_rate_and_metrics():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with shown.make_progress(console) as progress:
        progress.phase("collect", 100)
        progress.advance(0)
        progress.advance(40, success=0.5)
    drawn = console.file.getvalue()
    assert "collect" in drawn and "40/100" in drawn and "success=0.5" in drawn and "/s" in drawn
    assert drawn.endswith("\x1b[?25h")  # the cursor is visible again


def test_many_phases_leave_room_for_the_bar_of_the_last_one():
    progress = shown.LiveProgress(Console(file=io.StringIO()))
    for number in range(40):
        progress.phase(f"part {number}", 100)
        progress.advance(7)
    drawn = [task.description for task in progress.display.tasks]
    assert drawn == [f"part {number}" for number in range(40 - shown.MOST_BARS, 40)]
    progress.display.stop()


def test_the_cursor_is_visible_again_after_an_exception():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)

    with pytest.raises(KeyboardInterrupt), shown.make_progress(console) as progress:
        progress.phase("collect", 100)
        raise KeyboardInterrupt
    assert console.file.getvalue().endswith("\x1b[?25h")


def test_log_lines_reach_standard_error_without_any_setup(capsys, monkeypatch):
    fresh = logging.Logger("terrella")  # a program that has configured nothing
    monkeypatch.setattr(shown, "logger", fresh)
    with shown.make_progress(Console(file=io.StringIO())) as progress:
        progress.phase("collect", 2)
        progress.advance(2)
    captured = capsys.readouterr()
    assert "collect  2 of 2 (100%)" in captured.err and captured.out == ""


def test_metrics_are_a_table_in_a_terminal_and_lines_elsewhere():
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    pipe = Console(file=io.StringIO(), width=20)
    rows = [("success", "0.2578 [0.2500, 0.2658] (95%, n=11,718) [bold]")]
    shown.show_metrics("lake", rows, terminal)
    shown.show_metrics("lake", rows, pipe)
    assert "│" in terminal.file.getvalue() and "[bold]" in terminal.file.getvalue()
    assert pipe.file.getvalue() == "success: 0.2578 [0.2500, 0.2658] (95%, n=11,718) [bold]\n"


def test_of_several_ranks_only_the_first_shows_its_progress(monkeypatch):
    shown_by = {}
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        console = Console(file=io.StringIO(), force_terminal=True)
        with shown.make_progress(console) as progress:
            progress.phase("collect", total=10)
            progress.advance(5)
        shown_by[rank] = console.file.getvalue()
    assert "collect" in shown_by["0"]
    assert shown_by["1"] == ""


def test_a_phase_shows_where_the_reward_began_and_what_it_must_beat(lines):
    plain = shown.PlainProgress(every=0, clock=Clock())
    beside = shown.BesideBaselines(plain, {"random": 0.3})
    assert isinstance(beside, Progress)
    beside.phase("rlvr", 2)
    beside.advance(0)
    beside.advance(1, reward=0.25, zero_variance=0.5)
    beside.advance(2, reward=0.8125)
    beside.note("runs/x: before ...")
    assert lines()[-1] == "runs/x: before ..."
    beside.phase("again", 1)
    beside.advance(1, reward=0.5)
    assert [line[line.index("reward") :] for line in lines()[1:] if "reward" in line] == [
        "reward 0.25 (random 0.30)  zero_variance=0.5",
        "reward 0.25 -> 0.81 (random 0.30)",
        "reward 0.50 (random 0.30)",
    ]


def test_the_baseline_to_beat_is_random_play_where_there_is_some():
    from terrella.evals.baselines import to_beat

    played = {"random_exact": 0.25, "random": 0.27, "expert": 1.0}
    assert to_beat(played) == {"random": 0.25}
    assert to_beat({**played, "random_exact": None}) == {"random": 0.27}
    assert to_beat({"no_change": 0.1}) == {"no change": 0.1}
