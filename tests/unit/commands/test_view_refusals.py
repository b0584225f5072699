"""What `view` refuses, and a run with a single step, which it shows."""

import json

import pytest
from tests.support.manifests import write_manifest

from terrella.commands.view import View
from terrella.core.errors import ConfigError
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


def test_another_world_than_the_recorded_one_is_refused(tmp_path):
    out = tmp_path / "store"
    config = Collect.Config(world=Counter.Config(), policy=Random.Config(), episodes=2, out=out)
    Collect(config).run(SilentProgress())
    with pytest.raises(ConfigError, match="store: is of counter, not frozen_lake"):
        View(View.Config(run=out, world=FrozenLake.Config()))
    assert View(View.Config(run=out, world=Counter.Config())).write()


@pytest.mark.parametrize("steps", [1, 0])
def test_the_metrics_of_a_single_step_are_shown(tmp_path, steps):
    run = tmp_path / "short"
    run.mkdir()
    rows = [json.dumps({"step": 1, "reward": 0.25, "entropy": 0.5})] * steps
    (run / "curve.jsonl").write_text("".join(f"{row}\n" for row in rows))
    write_manifest(run, {"class": "terrella.pipelines.rlvr:Rlvr"}, {})
    stage = View(View.Config(run=run))
    if steps:
        assert ("the only step", "reward 0.25, entropy 0.5") in stage.build_page().about
        assert stage.write()
    else:
        with pytest.raises(ConfigError, match="neither episodes nor a curve"):
            stage.write()
