"""Examples on their way to verl's SFT trainer: the same ids, and only targets in the mask."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.errors import ConfigError
from terrella.core.tokens import TrainExample
from terrella.data.train_examples import write_examples
from terrella.engines.configs import SftConfig, VerlConfig
from terrella.engines.verl.sft import (
    SftDataset,
    _keys,
    fit_examples,
    logged_losses,
    next_log,
    shuffled,
)

EXAMPLES = [
    TrainExample(prompt_ids=(1, 2), completion_ids=(3, 4, 5), mask=(True, False, True)),
    TrainExample(prompt_ids=(6,), completion_ids=(7,), mask=(True,)),
]


def test_examples_are_read_as_they_were_written(tmp_path):
    write_examples(tmp_path / "examples.parquet", EXAMPLES)
    read = SftDataset(tmp_path / "examples.parquet", tokenizer=None, config=None)
    assert len(read) == 2
    assert read[0]["input_ids"].tolist() == [1, 2, 3, 4, 5]
    assert read[0]["loss_mask"].tolist() == [0, 0, 1, 0, 1]
    assert read[1]["position_ids"].tolist() == [0, 1]


def test_too_few_examples_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="2 examples do not fill"):
        fit_examples(EXAMPLES, SftConfig(batch_size=4), VerlConfig(), tmp_path, tmp_path, seed=0)


def test_the_seed_decides_on_the_order_of_the_examples():
    """verl's own sampler has one seed for all runs."""
    examples = [
        TrainExample(prompt_ids=(1,), completion_ids=(token,), mask=(True,)) for token in range(64)
    ]
    orders = [shuffled(examples, seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(each.completion_ids for each in orders[2]) == [(token,) for token in range(64)]


def test_losses_from_before_a_restart_are_kept(tmp_path):
    for steps in ((1, 2, 3), (3, 4)):
        lines = [
            json.dumps({"step": step, "data": {"train/loss": step + 0.1 * len(steps)}})
            for step in steps
        ]
        next_log(tmp_path).write_text("\n".join(lines))
    assert logged_losses(tmp_path) == pytest.approx([1.3, 2.3, 3.2, 4.2])


def keys(tmp_path, **changes):
    run = SimpleNamespace(device="cpu", nnodes=1, n_gpus_per_node=2)
    settings = SftConfig(**changes)
    composed = SimpleNamespace(trainer=run)
    return _keys(composed, settings, tmp_path / "rows", tmp_path, longest=9, steps=100)


def test_the_gradient_is_clipped_as_on_trl_where_0_is_off(tmp_path):
    assert keys(tmp_path, max_grad_norm=0.3)["optim.clip_grad"] == 0.3
    assert keys(tmp_path, max_grad_norm=0.0)["optim.clip_grad"] == 1e9


def test_trackers_are_added_to_the_file_that_losses_are_read_from(tmp_path):
    assert keys(tmp_path)["trainer.logger"] == ["file"]
    assert keys(tmp_path, report_to=("wandb", "file"))["trainer.logger"] == ["file", "wandb"]
