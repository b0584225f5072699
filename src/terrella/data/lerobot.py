"""LeRobot datasets (v3.0 layout) as episodes, and episodes as a LeRobot dataset. Parquet and video; no lerobot needed.

Many episodes share a Parquet file and an mp4; `meta/episodes` says where each begins. A recorded frame t with its
action and frame t + 1 make a transition; the last frame's action leads nowhere and is dropped. Video is lossy: what is
written here comes back with pixels a little changed.
    for episode in read_lerobot(Path("pusht"), size=(64, 64)): ...
    write_lerobot(Path("mine"), episodes, fps=5)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.data.films import Pictures, film_of, read_video, write_video
from terrella.data.recorded import Recording, recorded_episode

VERSION = "v3.0"
ACTION, STATE, CAMERA = "action", "observation.state", "observation.images.camera"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES, INFO, TASKS, STATS = (
    "meta/episodes/chunk-000/file-000.parquet", "meta/info.json", "meta/tasks.parquet", "meta/stats.json",
)  # fmt: skip


def read_lerobot(folder: Path, *, camera: str | None = None, size: tuple[int, int] | None = None) -> Iterator[Episode]:
    """Every episode, in order. `camera` is the key of its video; needed where there are several."""
    info = _info(folder)
    camera = camera or _only_camera(folder, info)
    files: dict[str, pa.Table] = {}
    for part in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        for row in pq.read_table(part).to_pylist():
            yield _episode(folder, info, row, camera, size, files)


def _info(folder: Path) -> dict[str, Any]:
    path = folder / INFO
    if not path.exists():
        raise StoreError(str(folder), f"holds no {INFO}", "this is not a LeRobot dataset")
    info = json.loads(path.read_text("utf-8"))
    if info.get("codebase_version") != VERSION:
        what = f"is of version {info.get('codebase_version')!r}, not {VERSION}"
        raise StoreError(str(folder), what, "convert it with LeRobot's own script")
    return dict(info)


def _only_camera(folder: Path, info: Mapping[str, Any]) -> str:
    cameras = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    if len(cameras) != 1:
        raise StoreError(str(folder), f"has cameras {cameras}", "say which: camera=...")
    return str(cameras[0])


def _episode(
    folder: Path, info: Mapping[str, Any], row: Mapping[str, Any], camera: str, size: tuple[int, int] | None,
    files: dict[str, pa.Table],
) -> Episode:  # fmt: skip
    name = info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
    if name not in files:
        files.clear()  # one at a time is enough: episodes come in order
        files[name] = pq.read_table(folder / name)
    steps = files[name].filter(pa.compute.equal(files[name]["episode_index"], row["episode_index"]))
    place = {key: row[f"videos/{camera}/{key}"] for key in ("chunk_index", "file_index")}
    film = read_video(
        folder / info["video_path"].format(video_key=camera, **place), row[f"videos/{camera}/from_timestamp"],
        row[f"videos/{camera}/to_timestamp"], size=size,
    )  # fmt: skip
    if len(film) != len(steps):
        raise StoreError(str(folder), f"episode {row['episode_index']} has {len(steps)} rows and {len(film)} frames")
    return recorded_episode(Recording(
        source=f"lerobot/{folder.name}", number=int(row["episode_index"]), film=film,
        actions=np.array(steps[ACTION].to_pylist(), float), rewards=_column(steps, "next.reward"),
        success=_last(steps, "next.success"), task=" ".join(row.get("tasks") or ()),
    ))  # fmt: skip


def _column(steps: pa.Table, name: str) -> list[float] | None:
    return [float(value) for value in steps[name].to_pylist()] if name in steps.column_names else None


def _last(steps: pa.Table, name: str) -> bool | None:
    return bool(steps[name].to_pylist()[-1]) if name in steps.column_names else None


# --- writing ------------------------------------------------------------------------------------------------------


def write_lerobot(folder: Path, episodes: Sequence[Episode], *, fps: int = 10, task: str = "") -> None:
    """One data file, one video; what LeRobot's own reader expects to find."""
    films = [film_of(episode) for episode in episodes]
    actions = [_actions(episode) for episode in episodes]
    lengths = [len(film) for film in films]
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    _write(folder / DATA.format(chunk_index=0, file_index=0), _data(episodes, actions, starts, fps))
    _write(folder / EPISODES, pa.Table.from_pylist([_where(n, starts, fps, task) for n in range(len(episodes))]))
    _write(folder / TASKS, pa.table({"task_index": [0], "task": [task]}))
    path = folder / VIDEO.format(video_key=CAMERA, chunk_index=0, file_index=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, np.concatenate(films), fps=fps)
    flat = np.concatenate(actions)
    stats = {ACTION: {"min": flat.min(0).tolist(), "max": flat.max(0).tolist(), "mean": flat.mean(0).tolist(),
                      "std": flat.std(0).tolist(), "count": [len(flat)]}}  # fmt: skip
    (folder / STATS).write_text(json.dumps(stats), "utf-8")
    (folder / INFO).write_text(json.dumps(_describe(films[0], flat.shape[1], lengths, fps), indent=1), "utf-8")


def _actions(episode: Episode) -> np.ndarray:
    """One per frame: after the last frame nothing was done, which is written as zeros."""
    done = [[float(number) for number in step.action.split()] for step in episode.transitions]
    return np.array([*done, [0.0] * len(done[0])], np.float32)


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _data(episodes: Sequence[Episode], actions: Sequence[np.ndarray], starts: Sequence[int], fps: int) -> pa.Table:
    lengths = [len(few) for few in actions]
    places = [place for length in lengths for place in range(length)]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    rewards = [reward for e in episodes for reward in (0.0, *(step.reward for step in e.transitions))]
    won = [e.outcome.value == 1.0 and place == length - 1 for e, length in zip(episodes, lengths, strict=True)
           for place in range(length)]  # fmt: skip
    flat = np.concatenate(actions)
    return pa.table({
        ACTION: pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel(), pa.float32()), flat.shape[1]),
        "timestamp": pa.array([place / fps for place in places], pa.float32()), "frame_index": places,
        "episode_index": owner, "index": list(range(starts[-1])), "task_index": [0] * len(places),
        "next.reward": pa.array(rewards, pa.float32()), "next.success": won,
    })  # fmt: skip


def _where(number: int, starts: Sequence[int], fps: int, task: str) -> dict[str, Any]:
    first, last = starts[number], starts[number + 1]
    video = {"chunk_index": 0, "file_index": 0, "from_timestamp": first / fps, "to_timestamp": last / fps}
    return {
        "episode_index": number, "length": last - first, "tasks": [task], "dataset_from_index": first,
        "dataset_to_index": last, "data/chunk_index": 0, "data/file_index": 0,
        **{f"videos/{CAMERA}/{key}": value for key, value in video.items()},
    }  # fmt: skip


def _describe(film: Pictures, size: int, lengths: Sequence[int], fps: int) -> dict[str, Any]:
    number = {"dtype": "int64", "shape": [1], "names": None}
    return {
        "codebase_version": VERSION, "robot_type": "terrella", "fps": fps, "total_episodes": len(lengths),
        "total_frames": sum(lengths), "total_tasks": 1, "chunks_size": 1000, "data_path": DATA, "video_path": VIDEO,
        "splits": {"train": f"0:{len(lengths)}"},
        "features": {
            ACTION: {"dtype": "float32", "shape": [size], "names": None},
            CAMERA: {"dtype": "video", "shape": list(film.shape[1:]), "names": ["height", "width", "channels"],
                     "info": {"video.fps": fps, "video.codec": "h264", "video.pix_fmt": "yuv444p"}},
            "timestamp": {"dtype": "float32", "shape": [1], "names": None}, "frame_index": number,
            "episode_index": number, "index": number, "task_index": number,
            "next.reward": {"dtype": "float32", "shape": [1], "names": None},
            "next.success": {"dtype": "bool", "shape": [1], "names": None},
        },
    }  # fmt: skip
