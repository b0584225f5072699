"""The moving picture of held-out clips, whatever their number."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the extra: pip install 'terrella[dev]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import video_moving


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_any_number_of_clips_makes_a_picture(count):
    clips = [np.full((4, 6, 20, 3), number, np.uint8) for number in range(count)]
    video = video_moving.grid(clips)
    assert video.shape == (4, 22 * -(-count // 2), 72, 3)
    shown = {number for number in range(count) if (video == number).any()}
    assert shown == set(range(count))
    if count % 2:
        assert (video[:, -22:, 36:] == 255).all()  # the place that is left is white
