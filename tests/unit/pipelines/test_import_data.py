"""Importers: what comes in is what was there, a kill loses one chunk, other data is refused."""

import json
import lzma
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.made_games import official_rows

from terrella.core.errors import StoreError
from terrella.core.instances import split_of
from terrella.data import recorded_store
from terrella.data.chat_rows import read_chat_rows
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.store import EpisodeStore
from terrella.data.webrl_formats import Trace, TraceStep, write_trace
from terrella.pipelines.import_data import IMPORTERS
from terrella.show.progress import SilentProgress
from terrella.worlds.bytesized32.sample import sample_games
from terrella.worlds.bytesized32.sources import load_records


def imported(kind, source, out, **settings):
    importer = IMPORTERS[kind]
    config = importer.Config(source=source, out=out, **settings)
    return dict(importer(config).run(SilentProgress()))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- WebRL's traces -------------------------------------------------------------------------------


def traces(folder, count=7):
    for number in range(count):
        pages = [f"<p>{number} {index}</p>" for index in range(3)]
        steps = tuple(
            TraceStep(
                trace_id=str(number),
                index=index,
                prompt="x",
                html=html,
                response=f'do(action="Click", element="{index}")',
                target=f"Task {number // 2}",
            )
            for index, html in enumerate(pages)
        )
        score = (1.0, 0.0, -0.1)[number % 3]
        write_trace(folder, Trace(task_id=f"{number:03d}", score=score, steps=steps))
    return folder


def test_traces_become_episodes_with_their_task_and_outcome(tmp_path):
    shown = imported("webrl", traces(tmp_path / "in"), tmp_path / "out")
    assert shown["episodes"] == "7" and shown["transitions"] == "21"
    assert shown["masked: no_outcome"] == "2" and "n=5" in shown["success"]
    episodes = list(EpisodeStore.open(tmp_path / "out").episodes())
    first = episodes[0]
    assert [step.observation.text for step in first.transitions] == [
        "<p>0 0</p>",
        "<p>0 1</p>",
        "<p>0 2</p>",
    ]
    assert first.transitions[0].next_observation.text == "<p>0 1</p>" and first.success
    assert first.transitions[0].action == 'do(action="Click", element="0")'
    assert first.transitions[-1].terminated and first.transitions[-1].reward == 1.0
    assert episodes[2].outcome.value is None and episodes[2].transitions[-1].truncated
    # Two traces of one task are never in different splits.
    assert episodes[0].instance == episodes[1].instance != episodes[2].instance
    assert first.split is split_of(first.instance)
    assert first.transitions[0].info["task"] == "Task 0"


def test_a_killed_import_continues_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_store, "CHUNK_EPISODES", 2)
    source = traces(tmp_path / "in")
    imported("webrl", source, tmp_path / "whole")
    read, seen = recorded_store.encode_part, []

    def killed(chunk, first, spec):
        if first >= 4:
            raise KeyboardInterrupt
        return read(chunk, first, spec)

    monkeypatch.setattr(recorded_store, "encode_part", killed)
    with pytest.raises(KeyboardInterrupt):
        imported("webrl", source, tmp_path / "out")
    assert "manifest.json" not in contents(tmp_path / "out")
    counted = lambda *each: seen.append(each[1]) or read(*each)  # noqa: E731
    monkeypatch.setattr(recorded_store, "encode_part", counted)
    imported("webrl", source, tmp_path / "out")
    assert seen == [4, 6] and contents(tmp_path / "out") == contents(tmp_path / "whole")
    # A whole store is left as it is; one with a damaged part is repaired.
    part = next((tmp_path / "out").glob("part-000000002-*"))
    part.write_bytes(b"damaged")
    imported("webrl", source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_data_does_not_go_into_a_store_that_was_begun(tmp_path):
    imported("webrl", traces(tmp_path / "in"), tmp_path / "out")
    traces(tmp_path / "in", count=9)
    with pytest.raises(StoreError, match="source_files"):
        imported("webrl", tmp_path / "in", tmp_path / "out")
    with pytest.raises(StoreError, match=r"has no traces/\*\.jsonl"):
        imported("webrl", tmp_path, tmp_path / "nothing")


def test_other_scores_of_the_same_traces_are_other_data(tmp_path):
    imported("webrl", traces(tmp_path / "in"), tmp_path / "out")
    score = tmp_path / "in/actions/000.json"
    before = score.read_text()
    assert "1.0" in before
    score.write_text(before.replace("1.0", "0.0"))
    with pytest.raises(StoreError, match="scores"):
        imported("webrl", tmp_path / "in", tmp_path / "out")
    score.write_text(before)
    imported("webrl", tmp_path / "in", tmp_path / "out")


def test_a_trace_without_steps_or_with_a_strange_score_is_named(tmp_path):
    traces(tmp_path / "in", count=1)
    (tmp_path / "in/traces/000.jsonl").write_text("")
    with pytest.raises(StoreError, match="trace 000: has no step"):
        imported("webrl", tmp_path / "in", tmp_path / "out")


# --- robots ---------------------------------------------------------------------------------------


def test_robot_video_becomes_a_store_in_parts_of_bounded_size(tmp_path, monkeypatch):
    pytest.importorskip("av", reason="pip install 'terrella[video]'")
    from terrella.data.lerobot import write_lerobot

    def episode(number):
        video = np.full((4, 32, 32, 3), 20 * number, np.uint8)
        actions = np.full((4, 2), float(number))
        recording = Recording(source="x", number=number, video=video, actions=actions, success=True)
        return recorded_episode(recording)

    write_lerobot(tmp_path / "set", [episode(number) for number in range(5)])
    monkeypatch.setattr(recorded_store, "CHUNK_BYTES", 2 * 3 * 16 * 16 * 3)
    shown = imported("lerobot", tmp_path / "set", tmp_path / "out", size=(16, 16))
    store = EpisodeStore.open(tmp_path / "out")
    assert shown["observations"] == "frames of 16 x 16 x 3" and shown["episodes"] == "5"
    assert [part.counts.episodes for part in store.parts] == [2, 2, 1]
    assert [e.transitions[0].action for e in store.episodes()][3] == "+3 +3"
    # The command in a process of its own, where nothing else has imported parts of pyarrow.
    words = ["import", "lerobot", str(tmp_path / "set"), "--out", str(tmp_path / "alone")]
    done = subprocess.run([sys.executable, "-m", "terrella.cli", *words], capture_output=True)
    assert done.returncode == 0 and b"episodes: 5" in done.stdout, done.stdout + done.stderr


def test_a_lerobot_file_that_changed_is_noticed_though_others_have_its_name(tmp_path):
    """LeRobot calls every table file-000.parquet."""
    pytest.importorskip("av", reason="pip install 'terrella[video]'")
    from terrella.data.lerobot import write_lerobot

    video = np.zeros((4, 32, 32, 3), np.uint8)
    recording = Recording(source="x", number=0, video=video, actions=np.zeros((4, 2)), success=True)
    write_lerobot(tmp_path / "set", [recorded_episode(recording)])
    imported("lerobot", tmp_path / "set", tmp_path / "out")
    imported("lerobot", tmp_path / "set", tmp_path / "out")
    for file in sorted((tmp_path / "set").rglob("file-000.parquet")):
        before = file.read_bytes()
        pq.write_table(pq.read_table(file), file, compression="none")
        assert len(before) != file.stat().st_size
        with pytest.raises(StoreError, match="source_files"):
            imported("lerobot", tmp_path / "set", tmp_path / "out")
        file.write_bytes(before)


def test_a_lerobot_dataset_is_imported_by_a_fresh_process(tmp_path):
    """No other test has imported anything for it there."""
    pytest.importorskip("av", reason="pip install 'terrella[video]'")
    from terrella.data.lerobot import write_lerobot

    video = np.zeros((4, 32, 32, 3), np.uint8)
    recording = Recording(source="x", number=0, video=video, actions=np.zeros((4, 2)), success=True)
    write_lerobot(tmp_path / "set", [recorded_episode(recording)])
    words = ("import", "lerobot", "set", "--out", "out", "--set", "size=16,16")
    command = [sys.executable, "-m", "terrella.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(EpisodeStore.open(tmp_path / "out").episodes())) == 1


def test_rlds_shards_become_a_store_and_are_counted_without_reading_them(tmp_path):
    pytest.importorskip("av", reason="pip install 'terrella[video]'")
    from tests.support.made_rlds import shard

    from terrella.data.tfrecord import count_records

    path = tmp_path / "in" / "x.tfrecord-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(shard() + shard() + shard())
    assert count_records(path) == 3
    settings = {"actions": ("action/world_vector", "action/gripper")}
    shown = imported("rlds", path.parent, tmp_path / "out", **settings)
    assert shown["episodes"] == "3" and shown["success"].startswith("1.0000")
    with pytest.raises(StoreError, match=r"config\.actions"):
        imported("rlds", path.parent, tmp_path / "out", actions=("action/gripper",))


# --- chains of thought ----------------------------------------------------------------------------


def test_chains_of_thought_become_rows_for_sft_and_a_kill_loses_one_file(tmp_path, monkeypatch):
    from terrella.pipelines.import_data import chats

    monkeypatch.setattr(chats, "ROWS_PER_FILE", 4)
    questions = [f"q{number}" for number in range(10)]
    answers = [f"Hm {number}. The final answer is: {number}" for number in range(10)]
    pq.write_table(pa.table({"question": questions, "answer": answers}), tmp_path / "cot.parquet")
    columns = chats.Columns(answer_mark="The final answer is:")
    write, done = chats.write_atomic, []

    def killed(path, data):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path.name)
        write(path, data)

    monkeypatch.setattr(chats, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        imported("cot", tmp_path / "cot.parquet", tmp_path / "out", columns=columns)
    monkeypatch.setattr(
        chats, "write_atomic", lambda *each: done.append(each[0].name) or write(*each)
    )
    shown = imported("cot", tmp_path / "cot.parquet", tmp_path / "out", columns=columns)
    assert done == [f"chats-{a:09d}-{b:09d}.parquet" for a, b in ((0, 4), (4, 8), (8, 10))]
    assert shown["columns"] == "question -> answer" and shown["rows"] == "10"
    assert shown["learnt messages"] == "10, of which 10 have a thought"
    rows = list(read_chat_rows(tmp_path / "out"))
    assert [row.messages[0].content for row in rows] == questions
    assert rows[3].messages[1].content == "<think>\nHm 3.\n</think>\n\nThe final answer is: 3"
    damaged = tmp_path / "out/chats-000000004-000000008.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(StoreError, match="differs from its hash"):
        list(read_chat_rows(tmp_path / "out"))


# --- ByteSized32 ----------------------------------------------------------------------------------


def official(folder):
    """The generated sample in the official format: whole states in every row."""
    folder.mkdir()
    lines = {"train": [], "test": []}
    for game in sample_games():
        for split, row in official_rows(game):
            lines[split].append(json.dumps(row))
    for split, texts in lines.items():
        (folder / f"{split}.jsonl").write_text("\n".join(texts))
    return folder


def test_official_games_are_packed_and_load_as_the_same_records(tmp_path):
    source = official(tmp_path / "official")
    shown = imported("bytesized32", source, tmp_path / "packed")
    before, after = load_records(source), load_records(tmp_path / "packed")
    assert len(after) > 300 and before == after
    assert shown["records"].startswith(f"{len(after):,}: ") and "world.path" in shown["use it"]
    small = sum(path.stat().st_size for path in (tmp_path / "packed").glob("*.xz"))
    assert small < sum(path.stat().st_size for path in source.iterdir()) / 10
    game = json.loads(lzma.decompress(next((tmp_path / "packed").glob("*.xz")).read_bytes()))
    assert len(game["states"]) < len(game["transitions"]) / 5
    assert imported("bytesized32", source, tmp_path / "packed") == shown


@pytest.mark.parametrize(
    ("row", "what"),
    [('{"game": "x"}', "KeyError"), ("[1]", "TypeError"), ('{"game": ', "cannot be read")],
)
def test_a_row_of_another_kind_is_named_by_its_line(tmp_path, row, what):
    source = official(tmp_path / "official")
    with (source / "test.jsonl").open("a") as file:
        file.write(f"\n{row}\n")
    with pytest.raises(StoreError, match=what) as caught:
        imported("bytesized32", source, tmp_path / "packed")
    assert "test.jsonl" in caught.value.where and "line" in caught.value.where


def test_the_name_of_a_game_does_not_lead_out_of_the_folder(tmp_path):
    source = official(tmp_path / "official")
    text = (source / "test.jsonl").read_text()
    game = json.loads(text.splitlines()[0])["game"]
    (source / "test.jsonl").write_text(text.replace(f'"game": "{game}"', '"game": "../../x"'))
    with pytest.raises(StoreError, match="has a game with the name"):
        imported("bytesized32", source, tmp_path / "packed")
    assert not list(tmp_path.glob("**/*x.json.xz"))
