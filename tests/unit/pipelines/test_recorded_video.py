"""A run of another kind is called so, before its videos are asked for."""

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.errors import ConfigError
from terrella.pipelines.video.recorded import recorded_model


def test_the_kind_of_the_run_is_looked_at_first(tmp_path):
    with pytest.raises(ConfigError, match="is not the run of a video model"):
        recorded_model({"class": "terrella.pipelines.rlvr:Rlvr"}, tmp_path, videos=None)
    video = {"class": "terrella.pipelines.video.pipeline:VideoModel", "videos": {}}
    with pytest.raises(ConfigError, match="in a folder of their own"):
        recorded_model(video, tmp_path, videos=None)
