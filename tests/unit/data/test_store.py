"""The store gives back what was put in, whole, and refuses everything else with a reason."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.errors import StoreError
from terrella.core.types import Episode, Frames, Split, State, Status, Stop, Text, Transition, Tree, Verdict
from terrella.data import parts, schema, store
from terrella.data.parts import Counts, decode_part, describe_part, encode_part, episode_lengths
from terrella.data.store import EpisodeStore

# Text of an untrusted model: everything Python can hold, lone surrogates and our own escape character included.
texts = st.text(st.characters() | st.sampled_from("\ud800\udfff\x1a\0d8"), max_size=12)
frames = st.tuples(*[st.integers(0, 3)] * 4).flatmap(
    lambda shape: st.binary(min_size=(n := int(np.prod(shape))), max_size=n).map(lambda data: Frames(data, shape))
)
observations = st.one_of(texts.map(Text), texts.map(Tree), texts.map(lambda text: State.of({"x": text})), frames)
plain_values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | texts, lambda v: st.lists(v, max_size=2))
infos = st.dictionaries(texts, plain_values, max_size=2)
floats = st.floats(allow_nan=False)
verdicts = st.one_of(
    st.builds(
        lambda value, words, share: Verdict.of(value, words, share=share),
        st.floats(0, 1), texts, st.floats(allow_nan=False, allow_infinity=False),
    ),
    texts.map(Verdict.unparsable),
    st.builds(Verdict.failed, st.sampled_from([Status.TIMEOUT, Status.ERROR]), texts),
)  # fmt: skip


@st.composite
def episodes(draw):
    seen = draw(st.lists(observations, min_size=1, max_size=5))
    transitions = tuple(
        Transition(
            observation=before, action=draw(texts), next_observation=after, reward=draw(floats),
            terminated=draw(st.booleans()), truncated=draw(st.booleans()), info=draw(infos),
        )
        for before, after in pairwise(seen)
    )  # fmt: skip
    return Episode(
        world=draw(texts), instance=draw(texts), split=draw(st.sampled_from(Split)), policy=draw(texts),
        seed=draw(st.integers(-(2**63), 2**63 - 1)), noise_seed=draw(st.integers(0, 2**63 - 1)), first=seen[0],
        transitions=transitions, stop=draw(st.sampled_from(Stop)), outcome=draw(verdicts), error=draw(texts),
    )  # fmt: skip


def episode(steps=2, *, seed=0, action="go"):
    seen = [Text(str(n)) for n in range(steps + 1)]
    moves = [Transition(observation=a, action=action, next_observation=b, info={"valid": True})
             for a, b in pairwise(seen)]  # fmt: skip
    return Episode(
        world="toy", instance="i", split=Split.TRAIN, seed=seed, noise_seed=0, policy="p", first=seen[0],
        transitions=tuple(moves), stop=Stop.TERMINATED, outcome=Verdict.of(1.0),
    )  # fmt: skip


def broken(status=Status.ERROR, stop=Stop.WORLD_ERROR):
    return replace(episode(0), instance="", stop=stop, outcome=Verdict.failed(status, "boom"), error="boom")


def write_store(folder, *chunks):
    folder.mkdir(exist_ok=True)
    plan, first, written = store.settle_plan(folder, {"config": {"seed": 1}}), 0, []
    for chunk in chunks:
        written.append(store.write_part(folder, encode_part(chunk, first, plan)))
        first += len(chunk)
    return store.finish(folder, written, {"target": {"episodes": first}})


# --- round trip -------------------------------------------------------------------------------------------------


@given(st.lists(episodes(), min_size=1, max_size=4), st.integers(0, 2**40))
@settings(max_examples=150, deadline=None)
def test_what_goes_in_comes_out(some, first):
    data = encode_part(some, first, "plan")
    assert decode_part(data) == some
    assert episode_lengths(data) == [len(one.transitions) for one in some]
    assert encode_part(decode_part(data), first, "plan") == data


@given(texts)
def test_escaped_text_is_utf8_and_comes_back(text):
    schema.escape(text).encode("utf-8")
    assert schema.unescape(schema.escape(text)) == text


def test_only_what_must_be_escaped_is():
    assert schema.escape("plain d800 \N{SNOWMAN} \U0001f600") == "plain d800 \N{SNOWMAN} \U0001f600"
    assert schema.escape("a\ud83d") == "a\x1ad83d" and schema.escape("\x1a") == "\x1a\x1a"


@pytest.mark.parametrize("action", ["\x1a", "\x1a\x1a", "\x1ad800", "\ud800", "\x1a\ud800d800"])
def test_text_that_looks_escaped_comes_back(action):
    assert decode_part(encode_part([episode(action=action)], 0, "p")) == [episode(action=action)]


def test_episodes_that_span_row_groups_come_back_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ROWS_PER_GROUP", 3)
    some = [episode(steps, seed=steps) for steps in (5, 0, 1, 7, 0, 0, 2)]
    write_store(tmp_path / "s", some[:4], some[4:])
    with next((tmp_path / "s").glob("part-000000000*")).open("rb") as file:
        assert pq.ParquetFile(file).num_row_groups > 3
    opened = EpisodeStore.open(tmp_path / "s")
    assert list(opened.episodes()) == some and len(opened) == 7
    assert list(opened.transitions()) == [step for one in some for step in one.transitions]


def test_frames_make_small_row_groups(monkeypatch):
    monkeypatch.setattr(parts, "BYTES_PER_GROUP", 10_000)
    pixels = np.arange(20 * 64 * 3, dtype=np.uint8).reshape(20, 8, 8, 3)
    seen = [Frames.of(pixels[i : i + 1]) for i in range(20)]
    moves = tuple(Transition(observation=a, action="x", next_observation=b) for a, b in pairwise(seen))
    one = replace(episode(0), first=seen[0], transitions=moves)
    data = encode_part([one], 0, "plan")
    assert pq.read_metadata(pa.BufferReader(data)).num_row_groups >= 2
    (back,) = decode_part(data)
    assert back == one and np.array_equal(back.transitions[3].next_observation.array, pixels[4:5])


def test_any_parquet_reader_can_use_the_rows(tmp_path):
    write_store(tmp_path / "s", [episode(2), broken()])
    rows = pq.read_table(next((tmp_path / "s").glob("*.parquet"))).to_pylist()
    assert [(row["episode"], row["step"], row["action"]) for row in rows] == [(0, 0, "go"), (0, 1, "go"), (1, -1, None)]
    assert rows[1]["observation"] == rows[0]["next_observation"] == "1"
    assert [row["outcome"] for row in rows] == [1.0, 1.0, None]  # masked is null, not 0
    assert json.loads(rows[0]["info"]) == {"valid": True} and rows[2]["error"] == "boom"


def test_counts_are_those_of_the_episodes():
    masked = broken(Status.TIMEOUT, Stop.WORLD_TIMEOUT)
    counts = describe_part(encode_part([episode(2), masked, episode(3)], 0, "p")).counts
    assert (counts.episodes, counts.transitions, counts.successes, counts.broken, counts.judged) == (3, 5, 2, 1, 2)
    assert counts.masked == {"timeout": 1} and counts.first_error == "boom"
    assert counts.stops == {"terminated": 2, "world_timeout": 1}
    assert counts + Counts.of([episode(1)]) == Counts.of([episode(2), masked, episode(3), episode(1)])


# --- what cannot be stored says why --------------------------------------------------------------------------------


def test_info_that_is_not_json_is_named():
    whole = episode(1)
    bad = replace(whole.transitions[0], info={"at": float("nan")})
    with pytest.raises(StoreError, match="info: cannot be written as JSON"):
        encode_part([replace(whole, transitions=(bad,))], 0, "p")


def test_a_seed_that_does_not_fit_is_named():
    with pytest.raises(StoreError, match="seed: cannot be stored as int64"):
        encode_part([episode(seed=2**63)], 0, "p")


def test_an_episode_that_does_not_begin_at_its_first_observation_is_refused():
    with pytest.raises(StoreError, match=r"seed 5.*does not begin"):
        encode_part([replace(episode(2, seed=5), first=Text("elsewhere"))], 0, "p")


# --- whole or absent --------------------------------------------------------------------------------------------


def test_same_episodes_same_bytes_and_no_trace_of_when_or_where(tmp_path):
    for name in ("a", "b"):
        write_store(tmp_path / name, [episode(3)], [episode(1)])
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_a_store_without_manifest_is_not_opened(tmp_path):
    with pytest.raises(StoreError, match="check the path"):
        EpisodeStore.open(tmp_path)
    plan = store.settle_plan(tmp_path, {"seed": 1})
    store.write_part(tmp_path, encode_part([episode()], 0, plan))
    with pytest.raises(StoreError, match=r"not finished.*\n.*resumes"):
        EpisodeStore.open(tmp_path)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": 99}, "schema version 99.*reads 1"),
        ({"format": "lerobot"}, "is not an episode store"),
        ({"parts": [{"name": "x"}]}, "lists its parts wrongly"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path, values, message):
    write_store(tmp_path, [episode()])
    change(tmp_path / "manifest.json", **values)
    with pytest.raises(StoreError, match=message):
        EpisodeStore.open(tmp_path)


def test_a_manifest_cannot_point_out_of_its_folder(tmp_path):
    manifest = write_store(tmp_path / "s", [episode()])
    part = manifest["parts"][0]
    (tmp_path / part["name"]).write_bytes((tmp_path / "s" / part["name"]).read_bytes())
    change(tmp_path / "s/manifest.json", parts=[{**part, "name": f"../{part['name']}"}])
    with pytest.raises(StoreError, match="is missing"):
        EpisodeStore.open(tmp_path / "s")


def test_a_missing_part_is_noticed_at_once_and_a_changed_byte_by_verify(tmp_path):
    write_store(tmp_path, [episode()], [episode(3)])
    victim = max(tmp_path.glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    opened = EpisodeStore.open(tmp_path)
    with pytest.raises(StoreError, match=victim.name):
        opened.verify()
    victim.unlink()
    with pytest.raises(StoreError, match="is missing"):
        EpisodeStore.open(tmp_path)


def test_verify_passes_a_store_that_is_whole(tmp_path):
    manifest = write_store(tmp_path, [episode()], [episode(3)])
    EpisodeStore.open(tmp_path).verify()
    assert [part["bytes"] for part in manifest["parts"]] == [
        p.stat().st_size for p in sorted(tmp_path.glob("*.parquet"))
    ]


@pytest.mark.parametrize("content", [b"", b"PAR1 not a footer PAR1", None])
def test_a_file_that_is_not_a_part_is_refused(tmp_path, content):
    path = tmp_path / "part-000000000-000000001.parquet"
    if content is None:
        pq.write_table(pa.table({"x": [1]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot be read|not part of an episode store"):
        describe_part(path)


def test_a_part_of_another_version_or_plan_is_refused(monkeypatch):
    data = encode_part([episode()], 0, "mine")
    with pytest.raises(StoreError, match="another plan"):
        describe_part(data, plan="yours")
    monkeypatch.setattr(parts, "VERSION", 2)
    with pytest.raises(StoreError, match="schema version 1; this terrella reads 2"):
        describe_part(data)


def test_reading_touches_one_part_at_a_time(tmp_path):
    write_store(tmp_path, [episode(2)], [episode(3)])
    stream = EpisodeStore.open(tmp_path).episodes()
    max(tmp_path.glob("*.parquet")).write_bytes(b"destroyed meanwhile")
    assert next(stream) == episode(2)
    with pytest.raises(StoreError, match="cannot be read"):
        next(stream)


# --- plans and writers ----------------------------------------------------------------------------------------------


def test_a_folder_keeps_its_plan(tmp_path):
    plan = {"config": {"world": {"size": 4}, "seed": 0}}
    digest = store.settle_plan(tmp_path, plan)
    assert store.settle_plan(tmp_path, plan) == digest
    with pytest.raises(StoreError, match=r"config\.world\.size is 4 there, 6 here"):
        store.settle_plan(tmp_path, {"config": {"world": {"size": 6}, "seed": 0}})


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        store.settle_plan(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_writers_do_not_share_a_folder(tmp_path):
    with store.locked(tmp_path / "s"), pytest.raises(StoreError, match="another process"), store.locked(tmp_path / "s"):
        pass
    with store.locked(tmp_path / "s"):
        pass  # the lock of the first went with it
    assert list((tmp_path / "s").iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    store.write_atomic(tmp_path / "x", b"old")

    def full(handle):
        raise OSError("disk full")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        store.write_atomic(tmp_path / "x", b"new, half wr")
    assert (tmp_path / "x").read_bytes() == b"old"


def test_leftovers_go_and_unfinished_extensions_stay(tmp_path):
    manifest = write_store(tmp_path, [episode()] * 4)
    for name in (parts.part_name(0, 2), parts.part_name(0, 8), "manifest.json.tmp"):
        (tmp_path / name).write_bytes(b"")
    store.remove_leftovers(tmp_path, EpisodeStore.open(tmp_path).parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json", manifest["parts"][0]["name"], parts.part_name(0, 8), "plan.json",
    ]  # fmt: skip
