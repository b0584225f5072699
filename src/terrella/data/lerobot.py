"""Read and write LeRobot datasets (v3.0 layout), without the lerobot package.

Many episodes share a Parquet file and an mp4; `meta/episodes` says where each begins. Frame t, its
action and frame t + 1 form a transition; its reward is `next.reward` of row t. The action of the
last frame leads nowhere and is dropped. Video is lossy: pixels change slightly when an episode is
written and read again. A dataset is untrusted: its files must lie in its folder, and its tables
have ceilings.
    for episode in read_lerobot(Path("pusht"), size=(64, 64)): ...
    write_lerobot(Path("my_dataset"), episodes, fps=5)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.core.untrusted import inside, read_json, reading
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.videos import FrameArray, read_video, video_of, write_video

VERSION = "v3.0"
ACTION, STATE, CAMERA = "action", "observation.state", "observation.images.camera"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
INFO = "meta/info.json"
TASKS = "meta/tasks.parquet"
STATS = "meta/stats.json"


MAX_ROWS = 10_000_000
"""Rows of one Parquet file."""
MAX_VALUES = 10**9
MAX_TABLE_BYTES = 2**32
"""Ceilings of the columns that are read of one file, as numbers and as bytes in memory."""
MAX_INDEX = 10**6
_FIELD = re.compile(r"\{(chunk_index|file_index|video_key)(?::0?([1-9])d)?\}")


def read_lerobot(
    folder: Path,
    *,
    camera: str | None = None,
    size: tuple[int, int] | None = None,
    first: int = 0,
) -> Iterator[Episode]:
    """Yield every episode in order, from the one at position `first` on.

    `camera` is the key of the video; it is required if the dataset has several.
    """
    info = _info(folder)
    with reading(f"{folder}/{INFO}"):
        camera = _chosen_camera(folder, info, camera)
    reader = _Reader(folder, info, camera, size)
    position = 0
    for part in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        name = part.relative_to(folder).as_posix()
        for row in _table(folder, name, reader.index_columns()).to_pylist():
            position += 1
            if position <= first:
                continue
            with reading(f"{part}, episode {str(row.get('episode_index'))[:20]}"):
                episode = recorded_episode(reader.recording(row))
            yield episode


def lerobot_length(folder: Path) -> int:
    """How many episodes the dataset says it has."""
    count = _info(folder).get("total_episodes")
    return count if isinstance(count, int) and 0 <= count < MAX_ROWS else 0


def _info(folder: Path) -> dict[str, Any]:
    path = folder / INFO
    if not path.exists():
        raise StoreError(str(folder), f"has no {INFO}", "this is not a LeRobot dataset")
    info = read_json(inside(folder, INFO))
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version != VERSION:
        raise StoreError(
            str(folder),
            f"has version {str(version)[:20]!r}, not {VERSION}",
            "convert it with LeRobot's own script",
        )
    return dict(info)


def _chosen_camera(folder: Path, info: Mapping[str, Any], asked: str | None) -> str:
    """The camera that was asked for, or the only one; its pictures must be videos."""
    kinds = {name: feature["dtype"] for name, feature in info["features"].items()}
    cameras = [name for name, kind in kinds.items() if kind == "video"]
    images = [name for name, kind in kinds.items() if kind == "image"]
    if not cameras or asked in images:
        what = f"has no video of {asked or 'a camera'}; as single images it has {images}"
        raise StoreError(str(folder), what, "write the dataset with videos in LeRobot")
    chosen = asked or (str(cameras[0]) if len(cameras) == 1 else "")
    if chosen not in cameras:
        what = f"has no camera {chosen!r}" if chosen else f"has {len(cameras)} cameras"
        raise StoreError(str(folder), what, f"set camera to one of: {', '.join(cameras)}")
    return chosen


def _file_name(template: str, row: Mapping[str, Any], prefix: str, camera: str = "") -> str:
    """Fill a template of `info.json`: chunk, file and camera, numbers with at most nine digits."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "video_key":
            return camera
        index = row[f"{prefix}/{match[1]}"]
        if not isinstance(index, int) or not 0 <= index < MAX_INDEX:
            raise ValueError(f"{prefix}/{match[1]} is {str(index)[:20]}")
        return str(index).zfill(int(match[2] or 1))

    filled = _FIELD.sub(value, template)
    if "{" in filled or "}" in filled:
        raise ValueError(f"the path {template[:200]!r} has a field that LeRobot does not have")
    return filled


def _table(folder: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """Some columns of a Parquet file of the dataset, within ceilings."""
    path = inside(folder, name)
    with reading(str(path)):
        if not path.is_file():
            raise StoreError(str(path), "is missing", "download the dataset again")
        with pq.ParquetFile(path) as file:
            about = file.metadata
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            values = sum(
                group.column(number).num_values
                for group in groups
                for number in range(group.num_columns)
                if group.column(number).path_in_schema.startswith(tuple(columns))
            )
            if about.num_rows > MAX_ROWS or values > MAX_VALUES:
                raise ValueError(f"it has {about.num_rows:,} rows and {values:,} values")
            known = [column for column in columns if column in file.schema_arrow.names]
            batches, size = [], 0
            for batch in file.iter_batches(batch_size=1024, columns=known):
                size += batch.nbytes
                if size > MAX_TABLE_BYTES:
                    raise ValueError(f"its columns have more than {MAX_TABLE_BYTES:,} bytes")
                batches.append(batch)
            schema = pa.schema([file.schema_arrow.field(column) for column in known])
            return pa.Table.from_batches(batches, schema)


class _Reader:
    """Reads the episodes of a dataset; the last data file stays in memory."""

    def __init__(
        self,
        folder: Path,
        info: Mapping[str, Any],
        camera: str,
        size: tuple[int, int] | None,
    ) -> None:
        self.folder = folder
        self.info = info
        self.camera = camera
        self.size = size
        self._steps = "", pa.table({})

    def index_columns(self) -> list[str]:
        """The columns of `meta/episodes` that are needed."""
        video = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        return [
            "episode_index",
            "tasks",
            "data/chunk_index",
            "data/file_index",
            *(f"videos/{self.camera}/{name}" for name in video),
        ]

    def recording(self, row: Mapping[str, Any]) -> Recording:
        number = row["episode_index"]
        steps = self._steps_of(number, _file_name(self.info["data_path"], row, "data"))
        prefix = f"videos/{self.camera}"
        video_name = _file_name(self.info["video_path"], row, prefix, self.camera)
        video = read_video(
            inside(self.folder, video_name),
            float(row[f"{prefix}/from_timestamp"]),
            float(row[f"{prefix}/to_timestamp"]),
            size=self.size,
        )
        if len(video) != len(steps):
            raise StoreError(
                str(self.folder),
                f"episode {number} has {len(steps)} rows and {len(video)} frames",
            )
        return Recording(
            source=f"lerobot/{self.folder.name}",
            number=int(number),
            video=video,
            actions=np.array(steps[ACTION].to_pylist(), float),
            rewards=_rewards(steps),
            success=_last(steps, "next.success"),
            task=" ".join(row.get("tasks") or ()),
        )

    def _steps_of(self, number: int, name: str) -> pa.Table:
        import pyarrow.compute as pc  # slow to import, and `pa.compute` exists only after it

        if name != self._steps[0]:  # episodes come in order
            columns = ("episode_index", ACTION, "next.reward", "next.success")
            self._steps = name, _table(self.folder, name, columns)
        table = self._steps[1]
        return table.filter(pc.equal(table["episode_index"], number))


def _rewards(steps: pa.Table) -> list[float] | None:
    """The reward that came with each frame: row t has that of frame t + 1."""
    if "next.reward" not in steps.column_names:
        return None
    earned = [float(value) for value in steps["next.reward"].to_pylist()]
    return [0.0, *earned[:-1]]


def _last(steps: pa.Table, name: str) -> bool | None:
    return bool(steps[name].to_pylist()[-1]) if name in steps.column_names else None


# --- writing --------------------------------------------------------------------------------------


def write_lerobot(
    folder: Path, episodes: Sequence[Episode], *, fps: int = 10, task: str = ""
) -> None:
    """Write one data file, one video, and the metadata that LeRobot's own reader expects.

    `next.success` is written if the outcome of each episode is known, and left out if none is.
    """
    has_success = _has_success(episodes)
    videos = [video_of(episode) for episode in episodes]
    actions = [_actions(episode) for episode in episodes]
    lengths = [len(video) for video in videos]
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    data = _data(episodes, actions, starts, fps)
    if has_success:
        data = data.append_column("next.success", [_success(episodes)])
    _write(folder / DATA.format(chunk_index=0, file_index=0), data)
    index = [_episode_row(number, starts, fps, task) for number in range(len(episodes))]
    _write(folder / EPISODES, pa.Table.from_pylist(index))
    _write(folder / TASKS, pa.table({"task_index": [0], "task": [task]}))
    path = folder / VIDEO.format(video_key=CAMERA, chunk_index=0, file_index=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, np.concatenate(videos), fps=fps)
    flat = np.concatenate(actions)
    stats = {
        ACTION: {
            "min": flat.min(0).tolist(),
            "max": flat.max(0).tolist(),
            "mean": flat.mean(0).tolist(),
            "std": flat.std(0).tolist(),
            "count": [len(flat)],
        }
    }
    (folder / STATS).write_text(json.dumps(stats), "utf-8")
    info = _describe(videos[0], flat.shape[1], lengths, fps)
    if has_success:
        info["features"]["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    (folder / INFO).write_text(json.dumps(info, indent=1), "utf-8")


def _has_success(episodes: Sequence[Episode]) -> bool:
    """Whether outcomes are known; the format has no value for one that is not."""
    known = [episode.outcome.value is not None for episode in episodes]
    if any(known) and not all(known):
        raise StoreError(
            f"episode {known.index(False)}",
            "its outcome is not known, and that of others is; next.success is true or false",
            "write the episodes without an outcome to a dataset of their own",
        )
    return all(known)


def _success(episodes: Sequence[Episode]) -> list[bool]:
    """One value per frame. The last repeats the one before: nothing happens after it."""
    frames: list[bool] = []
    for episode in episodes:
        won = episode.outcome.value == 1.0
        frames += [False] * (len(episode.transitions) - 1) + [won, won]
    return frames


def _actions(episode: Episode) -> np.ndarray:
    """One action per frame; the last frame has none, which is written as zeros."""
    actions = [[float(number) for number in step.action.split()] for step in episode.transitions]
    return np.array([*actions, [0.0] * len(actions[0])], np.float32)


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _data(
    episodes: Sequence[Episode], actions: Sequence[np.ndarray], starts: Sequence[int], fps: int
) -> pa.Table:
    lengths = [len(episode_actions) for episode_actions in actions]
    frame_index = [frame for length in lengths for frame in range(length)]
    rewards: list[float] = []
    for episode in episodes:
        earned = [step.reward for step in episode.transitions]
        # The last row repeats the one before: nothing happens after the last frame.
        rewards += [*earned, earned[-1]]
    flat = np.concatenate(actions)
    numbers = pa.array(flat.ravel(), pa.float32())
    return pa.table(
        {
            ACTION: pa.FixedSizeListArray.from_arrays(numbers, flat.shape[1]),
            "timestamp": pa.array([frame / fps for frame in frame_index], pa.float32()),
            "frame_index": frame_index,
            "episode_index": np.repeat(np.arange(len(lengths)), lengths),
            "index": list(range(starts[-1])),
            "task_index": [0] * len(frame_index),
            "next.reward": pa.array(rewards, pa.float32()),
        }
    )


def _episode_row(number: int, starts: Sequence[int], fps: int, task: str) -> dict[str, Any]:
    first, last = starts[number], starts[number + 1]
    video = {
        "chunk_index": 0,
        "file_index": 0,
        "from_timestamp": first / fps,
        "to_timestamp": last / fps,
    }
    return {
        "episode_index": number,
        "length": last - first,
        "tasks": [task],
        "dataset_from_index": first,
        "dataset_to_index": last,
        "data/chunk_index": 0,
        "data/file_index": 0,
        **{f"videos/{CAMERA}/{key}": value for key, value in video.items()},
    }


def _describe(video: FrameArray, size: int, lengths: Sequence[int], fps: int) -> dict[str, Any]:
    number = {"dtype": "int64", "shape": [1], "names": None}
    return {
        "codebase_version": VERSION,
        "robot_type": "terrella",
        "fps": fps,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": DATA,
        "video_path": VIDEO,
        "splits": {"train": f"0:{len(lengths)}"},
        "features": {
            ACTION: {"dtype": "float32", "shape": [size], "names": None},
            CAMERA: {
                "dtype": "video",
                "shape": list(video.shape[1:]),
                "names": ["height", "width", "channels"],
                "info": {"video.fps": fps, "video.codec": "h264", "video.pix_fmt": "yuv444p"},
            },
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            "frame_index": number,
            "episode_index": number,
            "index": number,
            "task_index": number,
            "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        },
    }
