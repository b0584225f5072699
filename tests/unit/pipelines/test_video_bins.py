"""Bins of actions lie in the folder of the videos, which runs share: each gets what it asks for."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
from tests.support.little_videos import GreyTokenizer

from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.core.run_folder import RunFolder
from terrella.models import frame_tokenizers
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.show.progress import SilentProgress
from terrella.world_models.video import BINS, read_codec
from terrella.worlds.tabletop import Tabletop


class Shards:
    """One store of actions between -1 and 1."""

    def __len__(self):
        return 1

    def actions(self, count, order):
        return [f"{number:+.4f}" for number in np.linspace(-1, 1, 200)]


@pytest.fixture
def codec(tmp_path, monkeypatch):
    """Makes the codec of a run; all runs share the folder of the videos."""
    settings = TrainTokenizer.Config(worlds=(Tabletop.Config(),), out=tmp_path / "videos")
    grey = GreyTokenizer()
    grey.tokens_per_frame = settings.trainer.tokenizer.tokens_per_frame
    monkeypatch.setattr(frame_tokenizers, "load_frame_tokenizer", lambda folder: grey)
    monkeypatch.setattr(TrainTokenizer, "shards", lambda self, split: Shards())
    videos = TrainTokenizer(settings)

    def make(name, **fields):
        out = tmp_path / name
        config = VideoModel.Config(world=Tabletop.Config(), videos=settings, out=out, **fields)
        with RunFolder(out, config, progress=SilentProgress()) as run:
            return VideoModel(config).codec(run, videos)

    return make


def test_runs_with_the_same_bins_share_them_and_other_bins_are_refused(codec, tmp_path):
    assert codec("first", bins=4).bins.bins == codec("second", bins=4).bins.bins == 4
    with pytest.raises(ConfigError, match=r"is 8; .*actions\.json was made with 4") as caught:
        codec("third", bins=8)
    assert caught.value.where == "bins" and "videos.out" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"is \[\[-1\.0, 1\.0\]\]; .* was made with \[\]"):
        codec("fourth", bins=4, action_ranges=((-1.0, 1.0),))
    assert read_codec(tmp_path / "videos", window=0).bins.bins == 4


def test_ranges_that_were_given_are_not_left_out_later(codec):
    codec("first", action_ranges=((-2.0, 2.0),))
    codec("again", action_ranges=((-2.0, 2.0),))
    with pytest.raises(ConfigError, match=r"is not given; .* was made with \[\[-2\.0, 2\.0\]\]"):
        codec("second")


def test_a_file_that_does_not_say_how_it_was_made_is_not_trusted(codec, tmp_path):
    codec("first")
    path = tmp_path / "videos" / BINS
    content = read_sealed(path)
    del content["made_with"]
    write_sealed(path, content)
    with pytest.raises(StoreError, match=r"actions\.json.*made_with"):
        codec("second")
