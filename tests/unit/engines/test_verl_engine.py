"""The verl engine without verl: what it passes to verl's trainers."""

import contextlib
import importlib.util
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.tokens import TrainExample
from terrella.engines.configs import EngineConfig, SftConfig, VerlConfig, VllmConfig
from terrella.engines.verl import checkpoint_export, sft, verl_engine
from terrella.show.progress import make_progress


def example(number):
    return TrainExample(prompt_ids=(number,), completion_ids=(1, 2), mask=(True, True))


@pytest.mark.parametrize(
    ("actions", "batch", "devices", "trained"),
    [
        (10, 4, 2, 40),  # as many as TRL's packs hold in a step
        (10, 4, 3, 39),  # a multiple of the devices
        (1, 4, 2, 4),
    ],
)
def test_a_batch_has_as_many_examples_as_on_other_engines(
    actions, batch, devices, trained, monkeypatch, tmp_path, caplog
):
    passed = {}

    def fit(examples, settings, *_, **__):
        passed.update(examples=len(examples), batch=settings.batch_size)
        return tmp_path, [1.0]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(verl_engine, "keep_ray_on_loopback", lambda: None)
    monkeypatch.setattr(sft, "fit_examples", fit)
    monkeypatch.setattr(checkpoint_export, "export_checkpoint", lambda *_: None)
    monkeypatch.setattr("terrella.models.presets.model_folder", Path)
    config = EngineConfig(engine="verl", verl=VerlConfig(devices=devices))
    items = [[example(page)] * actions for page in range(12)]
    if actions == 1:
        items = [example(page) for page in range(12)]
    engine = verl_engine.VerlEngine(config, tmp_path)
    with make_progress() as progress, caplog.at_level(logging.INFO, "terrella"):
        engine.sft(
            tmp_path, items, SftConfig(batch_size=batch), tmp_path / "x", seed=0, progress=progress
        )
    assert passed == {"examples": 12 * actions, "batch": trained}
    assert ("items are" in caplog.text) == (actions > 1)


@pytest.mark.parametrize("sampler", ["auto", "vllm", "local"])
def test_servers_are_verls_own(sampler, monkeypatch, tmp_path, caplog):
    """A server of ours would stay awake on one of the GPUs while verl trains on them."""

    @contextlib.contextmanager
    def opened(*of):
        yield "verl's" if isinstance(of[0], EngineConfig) else "ours"

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(verl_engine, "keep_ray_on_loopback", lambda: None)
    monkeypatch.setattr("terrella.models.presets.model_folder", Path)
    servers = SimpleNamespace(open_servers=opened)
    monkeypatch.setitem(sys.modules, "terrella.engines.verl.servers", servers)
    config = EngineConfig(engine="verl", sampler=sampler, vllm=VllmConfig(memory=0.35))
    engine = verl_engine.VerlEngine(config, tmp_path)
    monkeypatch.setattr(engine.samplers, "open", opened)
    with engine.sampler(tmp_path) as found:
        assert found == ("ours" if sampler == "local" else "verl's")
    assert ("vllm.memory=0.35 is not read" in caplog.text) == (sampler == "vllm")
