"""The steps that learners of both engines take, and what they return of them."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from terrella.algos.named_losses import STEP_FACTS
from terrella.algos.webrl import ACTOR_LOSSES
from terrella.core.protocols import Learner
from terrella.core.tokens import AdamParams, Head, TrainExample
from terrella.engines.configs import EngineConfig
from terrella.engines.engine import make_engine

PER_TOKEN = ("advantage", "old", "reference", "sampled", "weight", "return")
ADAM = AdamParams(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5)


def examples(count: int = 9, seed: int = 0) -> list[TrainExample]:
    """An odd number of them for two workers, of different lengths, some tokens no targets."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        length = 2 + number % 5
        columns = (*PER_TOKEN, *STEP_FACTS)
        made.append(
            TrainExample(
                prompt_ids=[chance.randrange(3, 40) for _ in range(1 + number % 4)],
                completion_ids=[chance.randrange(3, 40) for _ in range(length)],
                mask=[chance.random() < 0.7 for _ in range(length)],
                columns={
                    name: [
                        chance.uniform(-4, -3)
                        if name in ("old", "reference", "sampled")
                        else chance.uniform(0.1, 1)
                        for _ in range(length)
                    ]
                    for name in columns
                },
            )
        )
    return made


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("cross_entropy", {}),
    ("policy", {"kl": 0.1, "importance_cap": 2.0}),
    ("policy", {"ratio": "episode"}),
]
WEBRL: list[tuple[str, dict[str, Any]]] = [(name, {"beta": 0.3}) for name in ACTOR_LOSSES]
"""One update of WebRL with each of its losses, from the same rows."""


@contextlib.contextmanager
def trl_learner(folder: Path, head: Head, work: Path) -> Iterator[Learner]:
    """A learner of the TRL engine that starts from the model in a folder."""
    with (
        make_engine(EngineConfig(), work=work) as engine,
        engine.learner(folder, head=head, work=work) as learner,
    ):
        yield learner


def steps(
    learner: Learner, calls: list[tuple[str, dict[str, Any]]], seed: int = 0
) -> list[dict[str, Any]]:
    """An optimizer step per loss: what the learner returned of each."""
    found = []
    rows = examples(seed=seed)
    for loss, knobs in calls:
        first, second = rows[:4], rows[4:]
        learner.forward_backward(first, loss, **knobs)  # gradients add up over calls
        output = learner.forward_backward(second, loss, **knobs)
        found.append(
            {
                "loss": output.loss,
                "outputs": [number for row in output.outputs for number in row],
                **output.metrics,
                **learner.optim_step(ADAM),
            }
        )
    found.append({"outputs": [number for row in learner.forward(rows) for number in row]})
    return found


def assert_same(by_verl: list[dict[str, Any]], by_trl: list[dict[str, Any]]) -> None:
    for one, other in zip(by_verl, by_trl, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], abs=1e-4, rel=1e-4), name
