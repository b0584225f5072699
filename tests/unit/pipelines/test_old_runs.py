"""Run folders from before run schema 2 (plan.json, flat manifests) are refused with a sentence."""

import json

import pytest

from terrella.core.config import dump
from terrella.core.errors import StoreError
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.show.runs import read_run
from terrella.worlds.counter import Counter

EARLIER = r"(?s)was made by an earlier terrella .* start a new folder"


def old_run(folder, config):
    """A finished run folder as versions before run schema 2 left it."""
    folder.mkdir()
    settings = {key: value for key, value in dump(config).items() if key != "out"}
    (folder / "plan.json").write_text(json.dumps({"config": settings}))
    manifest = {"config": dump(config), "real_steps": {"data": 10, "rlvr": 0}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_pipeline_refuses_an_old_folder_and_leaves_it_alone(tmp_path):
    config = TrainWorldModel.Config(world=Counter.Config(), out=tmp_path / "run")
    old_run(config.out, config)
    before = {path.name: path.read_bytes() for path in config.out.iterdir()}
    with pytest.raises(StoreError, match=EARLIER):
        TrainWorldModel(config).run(SilentProgress())
    assert {path.name: path.read_bytes() for path in config.out.iterdir()} == before


def test_read_run_refuses_an_old_folder(tmp_path):
    config = TrainWorldModel.Config(world=Counter.Config(), out=tmp_path / "run")
    old_run(config.out, config)
    with pytest.raises(StoreError, match=EARLIER):
        read_run(config.out)


@pytest.mark.parametrize("finished", [True, False])
def test_collect_does_not_continue_an_old_store(tmp_path, finished):
    config = Collect.Config(
        world=Counter.Config(), policy=Random.Config(), episodes=20, out=tmp_path / "store"
    )
    Collect(config).run(SilentProgress())
    (config.out / "spec.json").rename(config.out / "plan.json")
    if not finished:
        (config.out / "manifest.json").unlink()
    before = {path.name: path.read_bytes() for path in config.out.iterdir()}
    with pytest.raises(StoreError, match=EARLIER):
        Collect(config.replace(episodes=40)).run(SilentProgress())
    assert {path.name: path.read_bytes() for path in config.out.iterdir()} == before
    if finished:  # what is whole can still be read
        assert len(EpisodeStore.open(config.out)) == 20
