"""The settings of a video model that was trained before, read from its manifest.

A manifest describes a run. Which folders are opened here is said on this machine, so the folder of
videos and tokenizer must be named.
    config = recorded_model(manifest.config, Path("runs/video"), videos=Path("runs/films"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.core.config import load
from terrella.core.errors import ConfigError
from terrella.pipelines.video.pipeline import VideoModel


def recorded_model(
    recorded: Mapping[str, Any],
    folder: Path,
    *,
    videos: Path | None,
    stores: Sequence[Path] = (),
) -> VideoModel.Config:
    """`recorded` is the config in the manifest of the run in `folder`."""
    if "videos" not in recorded:
        raise not_a_video_model(folder)
    if videos is None or not videos.exists():
        trained_with = recorded.get("videos", {}).get("out")
        raise ConfigError(
            str(videos or folder),
            "the videos of this model are in a folder of their own",
            f"name it with --set videos=FOLDER (where it was trained: {trained_with!r})",
        )
    here = {"out": folder, "videos.out": videos, "videos.stores": tuple(stores)}
    config = load(recorded, here=here)
    if not isinstance(config, VideoModel.Config):
        raise not_a_video_model(folder)
    return config


def not_a_video_model(folder: Path) -> ConfigError:
    return ConfigError(
        str(folder), "is not the run of a video model", "name the folder of a trained video model"
    )
