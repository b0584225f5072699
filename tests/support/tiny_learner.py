"""Learners on a tiny model, and examples for them."""

import random
from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_model import tiny_model

from terrella.core.tokens import TrainExample
from terrella.engines.configs import LearnerConfig
from terrella.engines.trl.learner import TrlLearner


def tiny_learner(model: Any = None, **options: Any) -> TrlLearner:
    """A learner; options are those of `TrlLearner` and of its config."""
    default_model, tokenizer = tiny_model()
    settings = {name: options.pop(name) for name in list(options) if hasattr(LearnerConfig, name)}
    return TrlLearner(
        default_model if model is None else model, tokenizer, LearnerConfig(**settings), **options
    )


def made_examples(count: int = 8, *, seed: int = 0, prompts: int = 3) -> list[TrainExample]:
    """Examples with every column that a loss may read; neighbours share prompts."""
    draw = random.Random(seed)
    shared = [[draw.randrange(30) for _ in range(4 + index)] for index in range(prompts)]
    return [_example(draw, shared[index * prompts // count], index) for index in range(count)]


def _example(draw: random.Random, prompt: list[int], index: int) -> TrainExample:
    length = draw.randrange(2, 9)
    facts = {
        "outcome": float(index % 2),
        "label": float(index % 2),
        "steps_to_go": float(index % 3),
        "next_value": draw.random(),
        "advantage": draw.uniform(-1, 1),
        "value": draw.random(),
    }
    columns = {name: [value] * length for name, value in facts.items()}
    for name in ("old", "reference", "sampled"):
        columns[name] = [draw.uniform(-4, -1) for _ in range(length)]
    columns["return"] = [draw.random() for _ in range(length)]
    columns["weight"] = [draw.uniform(0.1, 1) for _ in range(length)]
    return TrainExample(
        prompt_ids=prompt,
        completion_ids=[draw.randrange(30) for _ in range(length)],
        mask=[position != 1 for position in range(length)],
        columns=columns,
    )
