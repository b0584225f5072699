"""The free view: a state dataclass as JSON, read back with its types or refused."""

import enum
from dataclasses import dataclass

import pytest

from terrella.core.types import Frames, State, Text
from terrella.core.views import RecordView
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Scene:
    points: tuple[Point, ...]
    boxes: frozenset[tuple[int, int]]
    side: Side
    label: str | None = None


SCENES = [
    Scene((), frozenset(), Side.LEFT),
    Scene((Point(1), Point(-2, 3.0)), frozenset({(3, 1), (0, 2)}), Side.RIGHT, "ünï\n"),
]


@pytest.mark.parametrize("scene", SCENES)
def test_what_was_shown_can_be_read_back(scene):
    view = RecordView(Scene)
    assert view.read(view.show(scene)) == scene


def test_it_is_shown_as_canonical_json():
    assert RecordView(Point).show(Point(1, 2.0)) == State('{"x":1,"y":2.0}')


@pytest.mark.parametrize(
    "observation",
    [
        State(""),
        State("{"),
        State("[]"),
        State("null"),
        State('{"x":1.5}'),
        State('{"x":true}'),
        State('{"x":"1"}'),
        State('{"y":1.0}'),
        State('{"x":1,"z":2}'),
        State("[" * 100_000),
        State('{"x":' + "9" * 5000 + "}"),
        Text('{"x":1}'),
        Frames(b"", (0, 0, 0, 0)),
    ],
)
def test_what_is_not_such_a_state_is_none_not_an_exception(observation):
    assert RecordView(Point).read(observation) is None


def test_what_a_rendering_repeats_is_offered_as_words():
    world = Counter.Config(goals=10).build()
    observation, _ = world.reset(seed=3)
    up, down, goal, value = world.vocabulary()
    assert (
        (up, down) == ("up", "down")
        and observation.text.startswith(goal)
        and value in observation.text
    )


def test_the_words_of_the_lake_spell_its_coordinates():
    """Ten tokens where characters would be forty-six."""
    world = FrozenLake.Config(size=3, view="coordinates").build()
    observation, _ = world.reset(seed=0)
    left = observation.text
    for word in sorted(world.vocabulary(), key=len, reverse=True):
        left = left.replace(word, "")
    assert not left.strip()
