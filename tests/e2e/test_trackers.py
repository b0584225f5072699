"""A tiny run reports to TensorBoard and to an offline Weights & Biases what its curve has."""

import json
import re
import struct

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401

from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.engines.trl.arguments import trackers
from terrella.pipelines.rlvr import Rlvr
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress

SMALL = (
    "rlvr.steps=3",
    "rlvr.groups=3",
    "rlvr.group_size=4",
    "warmup_examples=64",
    "evaluate_on=4",
)


def tracked(out, tracker):
    """The reward of each step, as the curve of a run with this tracker has it."""
    settings = [*SMALL, f"rlvr.report_to={tracker}"]
    Rlvr(override(find_recipe("tiny_counter")().replace(out=out), settings)).run(SilentProgress())
    lines = (out / "curve.jsonl").read_text().splitlines()
    return [json.loads(line)["reward"] for line in lines]


def test_tensorboard_has_the_curve(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="needs the extra: pip install 'terrella[tensorboard]'"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rewards = tracked(tmp_path / "run", "tensorboard")
    (events,) = (tmp_path / "run").rglob("events.out.tfevents.*")
    read = EventAccumulator(str(events)).Reload()
    scalars = read.Scalars("train/reward")
    assert [scalar.step for scalar in scalars] == [1, 2, 3]
    assert [scalar.value for scalar in scalars] == pytest.approx(rewards)


def test_wandb_works_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install wandb")
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    rewards = tracked(tmp_path / "run", "wandb")
    wandb.finish()  # as a process does at its end
    (log,) = tmp_path.rglob("run-*.wandb")
    items = [item for data in written(log) for item in Record.FromString(data).history.item]
    found = [item for item in items if "train/reward" in (item.key, *item.nested_key)]
    assert [float(item.value_json) for item in found] == pytest.approx(rewards)


def written(log):
    """The records of an offline run: a log of LevelDB, whose blocks cut records into parts."""
    data, place, parts = log.read_bytes(), 7, b""
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_a_tracker_that_is_missing_or_unknown_is_named():
    with pytest.raises(ConfigError, match="no tracker 'tensorbord'"):
        trackers(("tensorbord",))
    with pytest.raises(ConfigError, match=re.escape("pip install swanlab")):
        trackers(("swanlab",))
    assert trackers(()) == ["none"]
