"""Configs.

They survive disk, they refuse typos and wrong types by name, and they import nothing behind your
back.
"""

import enum
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from terrella.core.config import (
    Configurable,
    Recorded,
    dump,
    load,
    record_from_json,
)
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.types import Split


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Wheel(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        radius: float = 1.0


class SpikedWheel(Wheel):
    @dataclass(frozen=True, kw_only=True)
    class Config(Wheel.Config):
        spikes: int = 3


class Plain(Configurable):
    """Has no Config of its own."""


class Cart(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        seats: int = 2
        speed: float = 1.5
        open: bool = False
        label: Recorded[str] = "cart"
        note: Recorded[str | None] = None
        limit: int | None = None
        home: Recorded[Path] = Path("/tmp")
        split: Split = Split.TRAIN
        colour: Colour = Colour.RED
        mode: Literal["slow", "fast"] = "slow"
        gear: Literal[1, 2] = 1
        code: Literal["1", "2"] = "1"
        sizes: tuple[int, ...] = (1, 2)
        box: Recorded[tuple[str, float]] = ("a", 0.5)
        extra: Recorded[Mapping[str, Any]] = field(default_factory=dict)
        stops: Recorded[Mapping[str, int]] = field(default_factory=dict)
        spare: SpikedWheel.Config | None = None
        wheel: Wheel.Config = field(default_factory=Wheel.Config)
        anything: Configurable.Config = field(default_factory=Plain.Config)

        def __post_init__(self):
            if self.seats < 1:
                raise ConfigError("seats", f"must be at least 1, not {self.seats}")


class Train(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        wheels: tuple[Wheel.Config, ...] = ()


class Needy(Configurable):
    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        needed: int


FULL = Cart.Config(
    seats=4,
    speed=2,
    open=True,
    note="x",
    limit=3,
    home=Path("/x"),
    split=Split.TEST,
    colour=Colour.BLUE,
    mode="fast",
    gear=2,
    code="2",
    sizes=(),
    box=("b", 1.0),
    extra={"a": [1, None]},
    wheel=SpikedWheel.Config(spikes=9),
)


@pytest.mark.parametrize("config", [Cart.Config(), FULL, Plain.Config(), SpikedWheel.Config()])
def test_a_config_survives_disk_and_builds_its_owner(config):
    again = load(json.loads(json.dumps(dump(config), allow_nan=False)))
    assert again == config and type(again) is type(config)
    built = again.build()
    assert type(built) is type(config).owner and built.config is again


def test_what_json_cannot_hold_is_refused_when_written():
    with pytest.raises(ConfigError, match="set: this type cannot be written to JSON"):
        dump(Cart.Config(extra={"a": {1}}))


def test_a_class_without_a_config_gets_its_own():
    assert (
        Plain.Config.owner is Plain
        and Wheel.Config.owner is Wheel
        and SpikedWheel.Config.owner is SpikedWheel
    )


def test_configs_are_frozen_and_replaced():
    config = Cart.Config()
    with pytest.raises(AttributeError):
        config.seats = 3
    assert config.replace(seats=3).seats == 3 and config.seats == 2
    with pytest.raises(ConfigError, match="seats"):
        config.replace(seats=0)


REFUSED = {
    "an unknown key": ({"seat": 1}, r"Cart\.seat: unknown key\n  -> known keys: seats, speed"),
    "text for a number": ({"seats": "2"}, r"Cart\.seats: expected a value of type int, got '2'"),
    "a fraction for an integer": ({"seats": 2.0}, r"Cart\.seats"),
    "a truth value for an integer": ({"seats": True}, r"Cart\.seats"),
    "a truth value for a float": ({"speed": True}, r"Cart\.speed: expected a number"),
    "a number for a truth value": ({"open": 1}, r"Cart\.open"),
    "a number for text or none": ({"note": 3}, r"Cart\.note: expected a value of type str"),
    "an unknown member": (
        {"split": "tset"},
        r"Cart\.split: expected one of 'train', 'validation', 'test'",
    ),
    "an unknown word": ({"mode": "medium"}, r"Cart\.mode: expected one of 'slow', 'fast'"),
    "a truth value for a literal 1": ({"gear": True}, r"Cart\.gear"),
    "a truth value for a member 1": ({"colour": True}, r"Cart\.colour"),
    "too few values": ({"box": ["a"]}, r"Cart\.box: expected 2 values"),
    "a wrong value in a list": ({"sizes": [1, "b"]}, r"Cart\.sizes\[1\]"),
    "text for a list": ({"sizes": "12"}, r"Cart\.sizes: expected a list"),
    "a list for a mapping": ({"extra": [1]}, r"Cart\.extra: expected a mapping"),
    "an unknown key further in": ({"wheel": {"size": 1}}, r"Cart\.wheel\.size: unknown key"),
    "a config of another class": (
        {"wheel": {"class": f"{__name__}:Plain"}},
        r"Cart\.wheel: expected a Wheel.Config",
    ),
    "a value out of range": ({"seats": 0}, "must be at least 1"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_loading_names_the_key_and_what_was_expected(change, message):
    with pytest.raises(ConfigError, match=message):
        load({**dump(Cart.Config()), **change})


def test_a_missing_field_is_named():
    with pytest.raises(ConfigError, match="needed"):
        load({"class": f"{__name__}:Needy"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "turtledemo.chaos:main",
            "turtledemo.chaos is not imported",
        ),  # real, but never imported here
        ("os:system", "os is not imported, and a file may not import it"),
        ("terrella.core.config:dump", "no config class has this name"),
        ("terrella.core.config:NoSuch", "not found"),
        ("terrella.core.no_such_module:X", "not found"),
        ("terrella.no_such_module:X", "a file may not import it"),
        ("terrella.cli.__main__:X", "a file may not import it"),
        ("terrella.__main__:X", "a file may not import it"),
        ("terrella.worlds.__main__:X", "a file may not import it"),
        ("terrella.worlds..:X", "a file may not import it"),
        ("__main__:X", "a file may not import it"),
        ("Cart", "expected 'module:Class'"),
        (None, "expected 'module:Class'"),
        (3, "expected 'module:Class'"),
    ],
)
def test_a_config_file_cannot_name_what_it_likes(name, message):
    assert "turtledemo.chaos" not in sys.modules
    with pytest.raises(ConfigError, match=message):
        load({"class": name})
    assert "turtledemo.chaos" not in sys.modules


@pytest.mark.parametrize("data", [[], "x", None, 3])
def test_what_is_no_mapping_is_no_config(data):
    with pytest.raises(ConfigError, match="mapping"):
        load(data)


OVERRIDES = {
    "seats=5": ("seats", 5),
    "speed=3": ("speed", 3.0),
    "speed=1e-3": ("speed", 0.001),
    "open=TRUE": ("open", True),
    "open=false": ("open", False),
    "label=none": ("label", "none"),
    "label=a=b": ("label", "a=b"),
    "label=12": ("label", "12"),
    "note=none": ("note", None),
    "note=nonesuch": ("note", "nonesuch"),
    "limit=None": ("limit", None),
    "limit=7": ("limit", 7),
    "home=/y/z": ("home", Path("/y/z")),
    "split=test": ("split", Split.TEST),
    "colour=2": ("colour", Colour.BLUE),
    "mode=fast": ("mode", "fast"),
    "gear=2": ("gear", 2),
    "code=2": ("code", "2"),
    "sizes=3, 4,5": ("sizes", (3, 4, 5)),
    "sizes=()": ("sizes", ()),
    "sizes=[8]": ("sizes", (8,)),
    "box=c,2": ("box", ("c", 2.0)),
    "wheel.radius=2.5": ("wheel", Wheel.Config(radius=2.5)),
}


@pytest.mark.parametrize(("assignment", "expected"), OVERRIDES.items())
def test_the_command_line_is_read_as_the_type_of_the_field(assignment, expected):
    key, value = expected
    got = getattr(override(Cart.Config(), [assignment]), key)
    assert got == value and type(got) is type(value)


def test_overrides_reach_the_fields_of_the_config_that_is_there():
    config = override(Cart.Config(wheel=SpikedWheel.Config()), ["wheel.spikes=5", "seats=1"])
    assert config.wheel == SpikedWheel.Config(spikes=5) and config.seats == 1


def test_overrides_make_a_config_that_was_left_out_and_entries_of_a_mapping():
    config = override(Cart.Config(), ["spare.spikes=5", "stops.a.b=1", "stops.c=2"])
    assert config.spare == SpikedWheel.Config(spikes=5) and config.stops == {"a.b": 1, "c": 2}
    assert override(config, ["spare=none", "stops.c=3"]) == config.replace(
        spare=None, stops={"a.b": 1, "c": 3}
    )


def test_a_list_of_nested_configs_is_given_by_their_names():
    def wheel(name):
        return SpikedWheel.Config(spikes=3) if name == "spiked" else Wheel.Config()

    named = {Wheel.Config: wheel}
    config = override(Train.Config(), ["wheels=spiked, plain"], named=named)
    assert config.wheels == (SpikedWheel.Config(spikes=3), Wheel.Config())
    assert override(config, ["wheels="], named=named).wheels == ()
    with pytest.raises(ConfigError, match=r"wheels: expected a Wheel"):
        override(config, ["wheels=spiked"])


WRONG_OVERRIDES = {
    "seat=1": "unknown key 'seat'",
    "wheel.size=1": r"wheel\.size: unknown key 'size'\n  -> known keys: radius",
    "seats.x=1": "'seats' has no fields",
    "limit.x=1": "'limit' has no fields",
    "spare.size=1": r"spare\.size: unknown key 'size'",
    "stops.a=far": r"stops\.a: expected a value of type int",
    "seats": "is not an assignment",
    "=3": "is not an assignment",
    "seats=two": "seats: expected a value of type int, got 'two'",
    "seats=2.5": "seats: expected a value of type int",
    "speed=fast": "speed: expected a number",
    "open=yes": "open: expected a value of type bool",
    "split=tset": "split: expected one of",
    "mode=medium": "mode: expected one of",
    "gear=3": "gear: expected one of",
    "colour=3": "colour: expected one of",
    "limit=many": "limit: 'many' fits none of",
    "box=c": "box: expected 2 values",
    "sizes=1,b": "sizes: expected a value of type int",
    "seats=0": "must be at least 1",
}


@pytest.mark.parametrize(("assignment", "message"), WRONG_OVERRIDES.items())
def test_a_wrong_override_names_the_key(assignment, message):
    with pytest.raises(ConfigError, match=message):
        override(Cart.Config(), [assignment])


@dataclass(frozen=True)
class Room:
    size: int
    boxes: frozenset[tuple[int, int]] = frozenset()
    doors: list[str] = field(default_factory=list)
    inner: "Room | None" = None


def test_records_come_back_from_json_with_their_types():
    room = Room(2, frozenset({(1, 2), (0, 1)}), ["north"], Room(1))
    data = {"size": 2, "boxes": [[0, 1], [1, 2]], "doors": ["north"], "inner": {"size": 1}}
    assert record_from_json(Room, data) == room


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 1, "boxes": [[0, 1], [0, 1]]},
        {"size": 1, "boxes": 3},
        {"size": 1, "doors": [1]},
        [],
        {"size": None},
    ],
)
def test_records_refuse_other_shapes(wrong):
    with pytest.raises(ConfigError, match="Room"):
        record_from_json(Room, wrong)
