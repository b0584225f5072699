"""The RT-1 recipes start on two CPU ranks: imported shards, tokenizer, fit and RLVR at 256 x 320.

One layer and few steps; ids, vocabulary and losses are the recipe's.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("av", reason="pip install 'terrella[video]'")
pytest.importorskip("mujoco", reason="pip install 'terrella[video]'")
from safetensors import safe_open
from tests.support.launched import launch
from tests.support.made_rlds import rt1_record

from terrella.core.types import Split
from terrella.data.shards import StoredShards
from terrella.pipelines.import_data.episodes import ImportRlds
from terrella.show.progress import SilentProgress

ACTIONS = tuple(
    f"action/{name}"
    for name in (
        "base_displacement_vector",
        "base_displacement_vertical_rotation",
        "gripper_closedness_action",
        "rotation_delta",
        "terminate_episode",
        "world_vector",
    )
)
SCRIPT = Path(__file__).parents[1] / "support" / "video_start.py"


def film(number):
    """A block that is pushed over a grey table, with 13 numbers an action.

    In every second film it stays: where nothing changes, also a model that has learnt nothing
    earns something, so that RLVR has differences to learn from.
    """
    rng = np.random.default_rng(number)
    video = np.full((7, 256, 320, 3), 120, np.uint8)
    video += rng.integers(0, 10, (256, 320, 1), np.uint8)
    speed = 20 * (number % 2)
    for t, frame in enumerate(video):
        frame[100:140, 40 + speed * t : 90 + speed * t] = (200, 40, 30)
    return rt1_record(video, rng.normal(size=(7, 13)))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "0.1.0"  # the splits depend on this name
    folder.mkdir()
    for number in range(16):
        (folder / f"rt1-train.tfrecord-{number:05d}-of-00016").write_bytes(film(number))
    config = ImportRlds.Config(source=folder, actions=ACTIONS, out=folder.with_name("store"))
    ImportRlds(config).run(SilentProgress())
    assert StoredShards([config.out], Split.TEST).count
    return config.out


IDS = {"rt1_multi_step": 9008, "rt1_single_step": 4633}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_run_every_part(store, tmp_path):
    first, second = launch(SCRIPT, tmp_path, "start", 2, RECIPES=" ".join(IDS), STORE=str(store))
    assert first == second
    for recipe, ids in IDS.items():
        result, folder = first[recipe], tmp_path / recipe
        # Half of the films stand still: a step that draws only those is easy.
        assert 0 <= result["reward"][0] <= 1 and result["tokenizer"]["codes_used"] > 1
        assert result["after"]["means"]["psnr"]["mean"] > 5
        config = json.loads((folder / "run/model/config.json").read_text())
        sizes = [config[name] for name in ("vocab_size", "hidden_size", "intermediate_size")]
        assert sizes == [ids, 768, 3072]
        checkpoint = folder / "films/tokenizer-train/checkpoint-2"
        with safe_open(checkpoint / "discriminator.safetensors", "pt") as kept:
            assert len(list(kept.keys())) > 4
