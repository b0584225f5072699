"""`terrella check NAME... --all`: a world that cannot be made here does not stop the others."""

import pytest

from terrella.cli.worlds import check
from terrella.core.errors import ConfigError, WorldError

NOT_CHECKED = "browsergym: not checked: no task is named -> for example browsergym/miniwob"


@pytest.fixture
def quick(monkeypatch):
    """Two worlds that ship and one check, which is enough to see what is called."""
    from terrella.commands.check import runner

    monkeypatch.setattr("terrella.worlds.builtin_names", lambda: ["browsergym", "counter"])
    monkeypatch.setattr(runner, "CHECKS", runner.CHECKS[:1])


def test_all_goes_on_after_a_world_that_cannot_be_made(quick, capsys):
    with pytest.raises(SystemExit) as done:
        check(all=True)
    shown = capsys.readouterr().out
    assert done.value.code == 0 and NOT_CHECKED in shown
    assert shown.index(NOT_CHECKED) < shown.index("config survives disk")
    assert "2 worlds, 0 broken properties, 0 that do not apply, 1 not checked" in shown


def test_a_named_world_that_cannot_be_made_is_an_error_after_the_others(quick, capsys):
    with pytest.raises(ConfigError, match="no task is named"):
        check(("browsergym", "counter"))
    shown = capsys.readouterr().out
    assert "config survives disk" in shown and NOT_CHECKED in shown


def test_a_mistyped_name_is_refused_before_the_first_check(quick, capsys):
    with pytest.raises(ConfigError, match="no such world"):
        check(("counter", "conter"))
    assert capsys.readouterr().out == ""


def test_a_world_that_cannot_be_drawn_is_an_error_in_a_line(monkeypatch):
    with pytest.raises(ConfigError, match="goals: must be at least 1"):
        check(("counter",), assignments=("goals=0",))
    monkeypatch.setattr("terrella.worlds.counter.Counter.draw", lambda world, rng: 1 // 0)
    with pytest.raises(WorldError, match="cannot be built: ZeroDivisionError"):
        check(("counter",))
