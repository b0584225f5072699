"""The RT-1 recipes start on two CPU ranks: an imported shard, tokenizer, fit and RLVR at 256 x 320.

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

from terrella.core.types import Split
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.recorded_store import fill_store
from terrella.data.shards import StoredShards

SCRIPT = Path(__file__).parents[1] / "support" / "video_start.py"


def film(number):
    """A block that is pushed over a grey table, with 13 numbers an action."""
    rng = np.random.default_rng(number)
    video = np.full((7, 256, 320, 3), 120, np.uint8)
    video += rng.integers(0, 10, (256, 320, 1), np.uint8)
    for t, frame in enumerate(video):
        frame[100:140, 40 + 20 * t : 90 + 20 * t] = (200, 40, 30)
    actions = rng.normal(size=(7, 13))
    return recorded_episode(Recording(source="made", number=number, video=video, actions=actions))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rt1") / "store"
    fill_store(folder, {}, lambda first: map(film, range(first, 16)))
    assert StoredShards([folder], Split.TEST).count
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("recipe", "ids"), [("rt1_multi_step", 9008), ("rt1_single_step", 4633)])
def test_two_ranks_run_every_part(recipe, ids, store, tmp_path):
    first, second = launch(SCRIPT, tmp_path, recipe, 2, RECIPE=recipe, STORE=str(store))
    assert first == second
    assert np.isfinite(first["reward"]).all() and first["tokenizer"]["codes_used"] > 1
    assert first["after"]["means"]["psnr"]["mean"] > 5
    run = tmp_path / recipe / "run"
    config = json.loads((run / "model" / "config.json").read_text())
    assert (config["vocab_size"], config["hidden_size"], config["intermediate_size"]) == (
        ids,
        768,
        3072,
    )
    checkpoint = tmp_path / recipe / "films" / "tokenizer-train" / "checkpoint-2"
    with safe_open(checkpoint / "discriminator.safetensors", "pt") as kept:
        assert len(list(kept.keys())) > 4
