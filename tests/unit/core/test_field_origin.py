"""A file says what was done; how it is done here, only this machine says."""

import enum
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from terrella.core.config import Configurable, Local, Recorded, dump, load, rebuild
from terrella.core.errors import ConfigError
from terrella.core.field_origin import is_open, may_come_from_file, undeclared


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Size:
    width: int


@dataclass(frozen=True)
class Place:
    file: str


class Engine(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        program: Local[str] = "/usr/bin/ours"
        threads: int = 1


class Car(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        seats: int = 4
        label: Recorded[str] = "car"
        program: Local[str] = "/usr/bin/ours"
        forgotten: str = "mine"
        options: Mapping[str, Any] = field(default_factory=dict)
        place: Local[Literal["here", "there"]] = "here"
        engine: Engine.Config = field(default_factory=Engine.Config)
        spare: tuple[Engine.Config, ...] = ()


class Taxi(Car):
    @dataclass(frozen=True, kw_only=True)
    class Config(Car.Config):
        label: str = "taxi"
        program: Recorded[str] = "/usr/bin/theirs"


class Server(Configurable):
    reaches = "a server"

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        address: Local[str] = ""


class Fleet(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        depot: Local[Path]
        lead: Configurable.Config = field(default_factory=Car.Config)


HOSTILE = Car.Config(
    seats=2,
    label="x",
    program="/tmp/evil",
    forgotten="evil",
    options={"executable_path": "/tmp/evil"},
    place="there",
    engine=Engine.Config(program="/tmp/evil", threads=3),
    spare=(Engine.Config(program="/tmp/evil"),),
)


def from_disk(config):
    return json.loads(json.dumps(dump(config)))


def test_a_file_gives_what_was_done_and_never_how():
    loaded = load(from_disk(HOSTILE))
    ours = Car.Config(seats=2, label="x", engine=Engine.Config(threads=3), spare=(Engine.Config(),))
    assert loaded == ours


def test_our_own_processes_exchange_everything():
    assert rebuild(from_disk(HOSTILE)) == HOSTILE


def test_one_sentence_names_what_was_left_out(caplog):
    with caplog.at_level(logging.WARNING, logger="terrella"):
        load(from_disk(HOSTILE))
    (record,) = caplog.records
    said = record.getMessage()
    assert "Car: not taken from the file" in said and "on the command line" in said
    for name in ("program='/tmp/evil'", "forgotten=", "options=", "place=", "engine.program="):
        assert name in said
    assert "seats" not in said and "label" not in said


def test_nothing_is_said_where_the_file_agrees_with_this_machine(caplog):
    with caplog.at_level(logging.WARNING, logger="terrella"):
        load(from_disk(Car.Config(seats=3)))
    assert not caplog.records


def test_what_a_message_shows_of_a_file_is_short_and_cannot_write_to_a_terminal(caplog):
    with caplog.at_level(logging.WARNING, logger="terrella"):
        load(from_disk(Car.Config(program="\x1b]0;evil\x07" + "x" * 5000)))
    said = caplog.records[0].getMessage()
    assert "\x1b" not in said and len(said) < 400


def test_this_machine_can_give_its_own_settings():
    here = {"depot": Path("/ours"), "lead.program": "/usr/bin/other"}
    data = from_disk(Fleet.Config(depot=Path("/theirs"), lead=Car.Config(program="/tmp/evil")))
    loaded = load(data, here=here)
    assert loaded.depot == Path("/ours") and loaded.lead.program == "/usr/bin/other"


def test_a_required_setting_of_this_machine_is_asked_for():
    with pytest.raises(ConfigError, match="depot"):
        load(from_disk(Fleet.Config(depot=Path("/theirs"))))


def test_a_declaration_holds_for_subclasses_and_cannot_be_weakened():
    assert may_come_from_file(Taxi.Config, "label")
    assert not may_come_from_file(Taxi.Config, "program")
    assert undeclared(Car.Config) == ["forgotten", "options"] == undeclared(Taxi.Config)


def test_a_class_that_reaches_outside_is_loaded_only_if_the_command_line_names_it():
    data = from_disk(Fleet.Config(depot=Path(), lead=Server.Config(address="http://evil")))
    with pytest.raises(ConfigError, match="uses a server, and a file may not start that"):
        load(data, here={"depot": Path()})
    loaded = load(data, here={"depot": Path()}, named=(Server,))
    assert loaded.lead == Server.Config(address="")


@pytest.mark.parametrize(
    ("hint", "is_it"),
    [
        (int, False),
        (float | None, False),
        (Literal["a", "b"], False),
        (Colour, False),
        (tuple[int, ...], False),
        (Car.Config, False),
        (tuple[Car.Config, ...] | None, False),
        (Size, False),
        (Place, True),
        (str, True),
        (Path | None, True),
        (tuple[str, ...], True),
        (Mapping[str, int], True),
        (dict[str, Car.Config], True),
        (Any, True),
        (object, True),
        (Local[str], True),
    ],
)
def test_types_that_could_name_a_program_are_open(hint, is_it):
    assert is_open(hint) is is_it


def test_nesting_is_bounded():
    data = {"class": "terrella.policies.basic:Random"}
    for _ in range(200):
        data = {"class": "terrella.policies.basic:Mixture", "first": data}
    with pytest.raises(ConfigError, match="nested more than"):
        load(data)


def test_loading_never_imports_what_a_file_names():
    data = {"class": "terrella.worlds.browsergym:BrowserGym", "tasks": ["x:y"], "needs": ["this"]}
    with pytest.raises(ConfigError, match="a file may not start that"):
        load(data)
    from terrella.worlds.browsergym import BrowserGym

    assert load(data, named=(BrowserGym,)) == BrowserGym.Config()
    assert "this" not in sys.modules
