"""LeRobot (v3) and RLDS datasets: written here in their layouts, and read as episodes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

av = pytest.importorskip("av", reason="pip install 'terrella[video]'")

from tests.support.made_rlds import shard, video

from terrella.core.errors import StoreError
from terrella.core.instances import split_of
from terrella.data import videos
from terrella.data.lerobot import read_lerobot, write_lerobot
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.rlds import read_rlds
from terrella.data.videos import read_video, resize, video_of, write_video

SHARED = Path(__file__).parents[4] / "shared/data/robot_video"


def episode(number, frames=6, success=None):
    actions = np.random.default_rng(number).uniform(-1, 1, (frames, 3))
    return recorded_episode(
        Recording(
            source="mine",
            number=number,
            video=video(frames, seed=number),
            actions=actions,
            success=success,
        )
    )


def test_a_recording_with_unknown_success_is_masked_not_failed():
    unknown, success = episode(0), episode(1, success=True)
    assert unknown.outcome.value is None and unknown.split is split_of(unknown.instance)
    assert success.success and success.transitions[-1].terminated
    assert len(success.transitions) == 5
    with pytest.raises(StoreError, match="2 frames"):
        recorded_episode(Recording(source="x", number=0, video=video(2), actions=np.zeros((0, 3))))


def test_video_is_read_back_almost_unchanged(tmp_path):
    write_video(tmp_path / "a.mp4", video(), fps=10)
    back = read_video(tmp_path / "a.mp4")
    assert back.shape == video().shape and np.abs(back.astype(int) - video()).mean() < 3
    assert len(read_video(tmp_path / "a.mp4", 0.2, 0.5)) == 3
    assert resize(video()[0], (16, 24)).shape == (16, 24, 3)
    with pytest.raises(StoreError, match="no frame"):
        read_video(tmp_path / "a.mp4", 99.0)


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def write_groups(path, codec, options, frames=90):
    """A file of noise with a key frame every few frames, as LeRobot writes them."""
    noise = np.random.default_rng(0).integers(0, 255, (frames, 8, 8, 3), np.uint8)
    with av.open(str(path), "w") as container:
        try:
            stream = container.add_stream(codec, rate=30, options=options)
        except av.FFmpegError:
            pytest.skip(f"this PyAV has no {codec}")
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for image in noise:
            image = np.kron(image, np.ones((8, 8, 1), np.uint8))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


OPEN = "open-gop=1:keyint=12:bframes=4:log-level=none"
"""Frames before a key frame are stored after it, and need the group before."""


@pytest.mark.parametrize(
    "codec, options",
    [
        ("libx264", {"g": "6"}),
        ("libx264", {"x264-params": OPEN}),
        ("libx265", {"x265-params": OPEN}),
    ],
)
def test_a_part_of_a_shared_video_is_decoded_alone_and_is_that_of_a_full_decode(
    codec, options, tmp_path, monkeypatch
):
    path = tmp_path / "shared.mp4"
    write_groups(path, codec, options)
    whole = read_video(path)
    assert len(whole) == 90
    monkeypatch.setattr(videos, "_time", count := Counted(videos._time))
    for start in range(0, 84, 3):
        assert np.array_equal(read_video(path, start / 30, (start + 6) / 30), whole[start:][:6])
    # 28 parts of 6 frames, and at most two groups before each.
    assert count.calls < 28 * (6 + 2 * 12 + 2) < 28 * 90 / 2
    assert np.array_equal(read_video(path, 80 / 30), whole[80:])


def test_episodes_that_share_a_video_cost_what_they_hold(tmp_path, monkeypatch):
    """LeRobot puts hundreds of episodes into a file; each decoded all of it."""
    write_lerobot(tmp_path / "set", [episode(number) for number in range(20)])
    shared = next(tmp_path.glob("set/videos/**/*.mp4"))
    write_groups(shared, "libx264", {"g": "2"}, frames=120)
    monkeypatch.setattr(videos, "_time", count := Counted(videos._time))
    index = tmp_path / "set/meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(index).to_pylist()
    for number, row in enumerate(rows):
        row["videos/observation.images.camera/from_timestamp"] = number * 6 / 30
        row["videos/observation.images.camera/to_timestamp"] = (number + 1) * 6 / 30
    pq.write_table(pa.Table.from_pylist(rows), index)
    assert [len(each.transitions) for each in read_lerobot(tmp_path / "set")] == [5] * 20
    assert count.calls < 20 * 12


@pytest.mark.parametrize("drift", [1e-3, -1e-3])
def test_frames_stay_with_their_actions_where_the_times_of_a_shared_video_drift(drift, tmp_path):
    def counted(number):  # its grey level says which frame of the file it is
        grey = 30 + 10 * (number * 3 + np.arange(3))
        frames = np.broadcast_to(grey[:, None, None, None], (3, 16, 16, 3)).astype(np.uint8)
        return recorded_episode(
            Recording(source="x", number=number, video=frames, actions=np.zeros((3, 2)))
        )

    written = [counted(number) for number in range(6)]
    write_lerobot(tmp_path / "set", written, fps=30)
    index = tmp_path / "set/meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(index).to_pylist()
    for number, row in enumerate(rows):
        row["videos/observation.images.camera/from_timestamp"] += drift * number
        row["videos/observation.images.camera/to_timestamp"] += drift * (number + 1)
    pq.write_table(pa.Table.from_pylist(rows), index)
    for before, after in zip(written, read_lerobot(tmp_path / "set"), strict=True):
        assert np.abs(video_of(after).astype(int) - video_of(before)).max() < 4


def test_lerobot_round_trip_of_episodes_that_share_files(tmp_path):
    episodes = [
        episode(0, 6, success=True),
        episode(1, 4, success=False),
        episode(2, 5, success=True),
    ]
    write_lerobot(tmp_path / "set", episodes, fps=10, task="move the square")
    back = list(read_lerobot(tmp_path / "set"))

    assert [len(e.transitions) for e in back] == [5, 3, 4]
    assert [e.success for e in back] == [True, False, True]
    for before, after in zip(episodes, back, strict=True):
        assert [s.action for s in after.transitions] == [s.action for s in before.transitions]
        assert np.abs(video_of(after).astype(int) - video_of(before)).mean() < 4
    assert back[0].transitions[0].info["task"] == "move the square"
    small = next(read_lerobot(tmp_path / "set", size=(16, 16)))
    assert video_of(small).shape == (6, 16, 16, 3)

    rows = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    assert (
        rows["index"].to_pylist() == list(range(15)) and rows["episode_index"].to_pylist()[6] == 1
    )


def lerobot_by_hand(folder, rows, frames):
    """A dataset of one episode as LeRobot writes it: `next.*` of row t is what action t led to."""
    camera = "observation.images.top"
    data, video_path = "data/chunk-000/file-000.parquet", "videos/top/chunk-000/file-000.mp4"
    for name in (data, video_path, "meta/episodes/chunk-000/file-000.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_video(folder / video_path, video(frames), fps=10)
    actions = [[float(t)] for t in range(frames)]
    pq.write_table(
        pa.table({"episode_index": [0] * frames, "action": actions, **rows}), folder / data
    )
    index = {"episode_index": 0, "tasks": ["push"], "data/chunk_index": 0, "data/file_index": 0}
    place = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0, "to_timestamp": frames / 10}
    index |= {f"videos/{camera}/{key}": value for key, value in place.items()}
    pq.write_table(
        pa.Table.from_pylist([index]), folder / "meta/episodes/chunk-000/file-000.parquet"
    )
    info = {
        "codebase_version": "v3.0",
        "total_episodes": 1,
        "data_path": data,
        "video_path": video_path,
        "features": {camera: {"dtype": "video"}},
    }
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def test_a_step_gets_the_reward_that_its_own_action_led_to(tmp_path):
    rows = {"next.reward": [0.0, 1.0, 2.0, 3.0, 4.0], "next.success": [False] * 4 + [True]}
    (read,) = read_lerobot(lerobot_by_hand(tmp_path, rows, 5))
    steps = [(step.action, step.reward) for step in read.transitions]
    assert steps == [("+0", 0.0), ("+1", 1.0), ("+2", 2.0), ("+3", 3.0)]
    assert read.success


def test_the_writer_puts_rewards_and_success_beside_the_actions_that_earned_them(tmp_path):
    recorded = Recording(
        source="mine",
        number=0,
        video=video(4),
        actions=np.zeros((4, 3)),
        rewards=[9.0, 1.0, 2.0, 3.0],  # the first frame comes with no action
        success=True,
    )
    before = recorded_episode(recorded)
    write_lerobot(tmp_path / "set", [before, episode(1, 3, success=False)])
    rows = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    assert rows["next.reward"].to_pylist() == [1.0, 2.0, 3.0, 3.0, 0.0, 0.0, 0.0]
    assert rows["next.success"].to_pylist() == [False, False, True, True, False, False, False]
    back = next(read_lerobot(tmp_path / "set"))
    assert [step.reward for step in back.transitions] == [1.0, 2.0, 3.0] and back.success


def test_an_unknown_success_is_not_written_as_a_failure(tmp_path):
    write_lerobot(tmp_path / "set", [episode(0), episode(1)])
    features = json.loads((tmp_path / "set/meta/info.json").read_text())["features"]
    rows = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    assert "next.success" not in features and "next.success" not in rows.column_names
    assert [each.outcome.value for each in read_lerobot(tmp_path / "set")] == [None, None]
    with pytest.raises(StoreError, match=r"episode 1: .*not known"):
        write_lerobot(tmp_path / "mixed", [episode(0, success=True), episode(1)])
    assert not (tmp_path / "mixed").exists()


def test_other_lerobot_versions_and_damage_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"meta/info\.json"):
        next(read_lerobot(tmp_path))
    write_lerobot(tmp_path / "set", [episode(0)])
    path = tmp_path / "set/meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "codebase_version": "v2.1"}))
    with pytest.raises(StoreError, match=r"v2\.1"):
        next(read_lerobot(tmp_path / "set"))


@pytest.mark.parametrize(
    ("asked", "dtypes", "said"),
    [
        ("wrist", {"top": "video"}, r"has no camera 'wrist'\n.*set camera to one of: top"),
        (None, {"top": "video", "side": "video"}, r"has 2 cameras\n.*one of: top, side"),
        (None, {"top": "image"}, r"no video of a camera; as single images it has \['top'\]"),
        ("side", {"top": "video", "side": "image"}, r"no video of side; as single images"),
    ],
)
def test_a_camera_that_is_not_there_as_a_video_is_named(asked, dtypes, said, tmp_path):
    write_lerobot(tmp_path / "set", [episode(0)])
    path = tmp_path / "set/meta/info.json"
    features = {name: {"dtype": dtype} for name, dtype in dtypes.items()}
    path.write_text(json.dumps({**json.loads(path.read_text()), "features": features}))
    with pytest.raises(StoreError, match=said):
        next(read_lerobot(tmp_path / "set", camera=asked))


def test_small_actions_keep_their_digits(tmp_path):
    actions = np.array([[1.25e-5, -0.333333], [-2e-7, 123.25], [0.0, 0.0]])
    recorded = Recording(source="mine", number=0, video=video(3), actions=actions)
    before = recorded_episode(recorded)
    assert [step.action for step in before.transitions] == [
        "+1.25e-05 -0.333333",
        "-2e-07 +123.25",
    ]
    write_lerobot(tmp_path / "set", [before])
    (after,) = read_lerobot(tmp_path / "set")
    assert [step.action for step in after.transitions] == [s.action for s in before.transitions]


# --- RLDS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["png", "mjpeg"])
def test_rlds_shards_are_read_without_tensorflow(codec, tmp_path):
    (tmp_path / "x-train.tfrecord-00000-of-00001").write_bytes(shard(codec, 4) + shard(codec, 3))
    first, second = read_rlds(tmp_path, actions=("action/world_vector", "action/gripper"))
    assert np.abs(video_of(first).astype(int) - video(4)).mean() < (1 if codec == "png" else 6)
    assert first.transitions[1].action == "+0.3 +0.4 +0.5 +1" and first.success
    assert len(second.transitions) == 2 and second.transitions[0].info["task"] == "open the drawer"


def test_a_damaged_shard_or_an_unknown_column_says_so(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(shard()[:-10])
    with pytest.raises(StoreError, match="cut off"):
        list(read_rlds(path))
    path.write_bytes(shard())
    with pytest.raises(StoreError, match="no column 'action'"):
        list(read_rlds(path))
    with pytest.raises(StoreError, match=r"no \.tfrecord"):
        list(read_rlds(tmp_path / "nowhere"))


@pytest.mark.skipif(not SHARED.exists(), reason="the shared robot clips are not installed")
def test_a_real_robot_clip_becomes_an_episode():
    clip = np.load(SHARED / "bair_sample.npz", allow_pickle=False)
    images = next(clip[k] for k in clip.files if clip[k].ndim == 4)
    actions = next(clip[k] for k in clip.files if clip[k].ndim == 2)
    converted = recorded_episode(
        Recording(source="bair", number=0, video=images.astype(np.uint8), actions=actions)
    )
    assert len(converted.transitions) == len(images) - 1
    assert video_of(converted).shape == images.shape
