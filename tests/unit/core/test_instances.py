"""Instances: a name depends on the state alone, splits are disjoint, streams are independent."""

import enum
from collections import Counter
from dataclasses import dataclass

import pytest

from terrella.core.instances import instance_id, plain, split_of
from terrella.core.seeds import (
    INSTANCE_STREAM,
    NOISE_STREAM,
    POLICY_STREAM,
    instance_seed,
    stream,
)
from terrella.core.types import Split


class Side(enum.Enum):
    LEFT = "left"


@dataclass(frozen=True)
class Board:
    cells: tuple[tuple[int, ...], ...]
    boxes: frozenset[tuple[int, int]] = frozenset()
    side: Side = Side.LEFT


def test_a_state_becomes_plain_json():
    board = Board(((1, 2), (3,)), frozenset({(2, 1), (0, 5)}))
    assert plain({"board": board, "n": None}) == {
        "board": {"cells": [[1, 2], [3]], "boxes": [[0, 5], [2, 1]], "side": "left"},
        "n": None,
    }
    assert plain(Board) is Board  # a class is not a state


def test_a_name_depends_on_the_state_and_on_nothing_else():
    one = instance_id(Board(((1,),), frozenset({(0, 1), (1, 0)})))
    assert (
        one
        == instance_id(Board(((1,),), frozenset({(1, 0), (0, 1)})))
        == instance_id({"side": "left", "boxes": [[0, 1], [1, 0]], "cells": [[1]]})
    )
    assert one == "f612b4a549225e9a"  # of all machines and versions: data sets are split by it
    assert one != instance_id(Board(((2,),), frozenset({(0, 1), (1, 0)})))


def test_splits_have_their_shares():
    counts = Counter(split_of(instance_id(i)) for i in range(20_000))
    assert counts[Split.TEST] == pytest.approx(2000, abs=150)
    assert counts[Split.VALIDATION] == pytest.approx(2000, abs=150)


@pytest.mark.parametrize(
    ("instance", "split"),
    [
        ("0" * 16, Split.TEST),
        ("1999000000000000", Split.TEST),
        ("19a0000000000000", Split.VALIDATION),
        ("3333000000000000", Split.VALIDATION),
        ("3334000000000000", Split.TRAIN),
        ("f" * 16, Split.TRAIN),
    ],
)
def test_the_split_is_read_off_the_name(instance, split):
    assert split_of(instance) is split


def test_runs_with_different_seeds_draw_different_instances():
    drawn = [
        tuple(stream(INSTANCE_STREAM, instance_seed(run, index), attempt).integers(2**62, size=3))
        for run in range(4)
        for index in range(5)
        for attempt in range(6)
    ]
    assert len(set(drawn)) == len(drawn)


def test_streams_repeat_and_do_not_overlap():
    def draw(*key):
        return tuple(stream(*key).integers(2**62, size=3))

    keys = [
        (tag, seed, noise)
        for tag in (INSTANCE_STREAM, NOISE_STREAM, POLICY_STREAM)
        for seed in (0, 1, -1)
        for noise in (0, 1)
    ]
    assert len({draw(*key) for key in keys}) == len(keys)
    assert all(draw(*key) == draw(*key) for key in keys)
    assert draw(1, 2**80) == draw(1, 2**80)
