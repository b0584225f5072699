"""Warm-up rows: what a model from scratch is shown before RLVR."""

from collections import Counter

import pytest

pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")

from terrella.codecs.choose import CodecConfig
from terrella.models.characters import character_tokenizer
from terrella.pipelines.warmup import warmup_examples
from terrella.show.progress import SilentProgress
from terrella.worlds.frozen_lake import FrozenLake

LAKE = FrozenLake.Config(size=3, max_steps=5)


class Recorded(SilentProgress):
    """Keeps what it was told."""

    def __init__(self):
        self.told = []

    def phase(self, name, total):
        self.told.append((name, total))

    def advance(self, done, **metrics):
        self.told.append(done)


def rows(*, learn_world, instances=0):
    tokenizer = character_tokenizer(("Up", "Down", "Left", "Right"))
    examples = warmup_examples(
        LAKE,
        CodecConfig().make(tokenizer),
        ask="action",
        count=200,
        seed=0,
        learn_world=learn_world,
        instances=instances,
    )
    return tokenizer, examples


def test_an_agent_that_learns_the_world_is_shown_how_episodes_end():
    tokenizer, examples = rows(learn_world=True)
    fitted = [
        tokenizer.decode(
            [token for token, fit in zip(row.completion_ids, row.mask, strict=True) if fit]
        )
        for row in examples
    ]
    falls, arrivals = (sum(mark in text for text in fitted) for mark in "X√")
    assert falls > 20 and arrivals > 20 and falls + arrivals <= len(examples)


def test_otherwise_only_its_replies_are_fitted_and_an_episode_ends_with_one():
    tokenizer, examples = rows(learn_world=False)
    for row in examples:
        text = tokenizer.decode(row.completion_ids)
        assert "X" not in text and "√" not in text and row.mask[-1]


def test_with_a_number_of_instances_each_is_shown_as_often_and_played_differently():
    _, examples = rows(learn_world=False, instances=20)
    shown = Counter(row.prompt_ids for row in examples)
    assert set(shown.values()) == {10}
    assert len({row.completion_ids for row in examples}) > 100


def test_rows_are_counted_because_a_slow_world_takes_its_time():
    progress = Recorded()
    warmup_examples(
        LAKE,
        CodecConfig().make(character_tokenizer(("Up", "Down", "Left", "Right"))),
        ask="action",
        count=3,
        seed=0,
        progress=progress,
    )
    assert progress.told == [("warm-up rows", 3), 1, 2, 3]
