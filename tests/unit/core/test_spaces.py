"""Spaces: Gymnasium can sample, seed and compare them."""

import numpy as np
import pytest

from terrella.core.spaces import Names, Observations
from terrella.core.types import Frames, Kind, State, Text, Tree


def test_names_are_sampled_uniformly_and_by_seed():
    space = Names(("up", "down", "stay"), seed=3)
    drawn = [space.sample() for _ in range(600)]
    assert {name: drawn.count(name) > 150 for name in space.names} == dict.fromkeys(
        space.names, True
    )
    space.seed(3)
    assert [space.sample() for _ in range(600)] == drawn
    for arguments in ({"mask": np.ones(3)}, {"probability": np.ones(3)}):
        with pytest.raises(TypeError, match="no mask"):
            space.sample(**arguments)


def test_names_know_their_members():
    space = Names(("up", "down"))
    assert (
        "up" in space
        and "Up" not in space
        and 0 not in space
        and ["up"] not in space
        and None not in space
    )
    assert space == Names(["up", "down"]) != Names(("down", "up")) and space != "up"
    assert repr(space) == "Names(up, down)" and not space.is_np_flattenable


@pytest.mark.parametrize("kind", Kind)
def test_observations_hold_one_kind(kind):
    records = [Text("a"), State("1"), Tree("a"), Frames(b"", (0, 0, 0, 0))]
    space = Observations(kind, next(one for one in records if one.kind is kind))
    assert [one.kind for one in records if one in space] == [kind] and "a" not in space
    assert space.sample() in space and not space.is_np_flattenable
    assert space == Observations(kind) and space != Observations(
        Kind.TEXT if kind is Kind.TREE else Kind.TREE
    )


def test_without_an_example_there_is_nothing_to_sample():
    with pytest.raises(TypeError, match="no example"):
        Observations(Kind.TEXT).sample()
