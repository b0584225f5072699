"""The episode store: exact round trips, complete or absent files, and clear errors."""

import errno
import hashlib
import io
import json
import math
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core import files
from terrella.core.errors import StoreError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.core.run_folder import check_spec
from terrella.core.types import (
    Episode,
    Frames,
    Split,
    State,
    Status,
    Stop,
    Text,
    Transition,
    Tree,
    Verdict,
)
from terrella.data import parts, schema, store
from terrella.data.parts import (
    EpisodeCounts,
    decode_part,
    describe_part,
    encode_part,
    episode_lengths,
)
from terrella.data.store import EpisodeStore

# Text of an untrusted model: anything that a Python string can contain, including lone surrogates
# and the escape character itself.
texts = st.text(st.characters() | st.sampled_from("\ud800\udfff\x1a\0d8"), max_size=12)
frames = st.tuples(*[st.integers(0, 3)] * 4).flatmap(
    lambda shape: st.binary(min_size=(n := int(np.prod(shape))), max_size=n).map(
        lambda data: Frames(data, shape)
    )
)
observations = st.one_of(
    texts.map(Text), texts.map(Tree), texts.map(lambda text: State.of({"x": text})), frames
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts, lambda v: st.lists(v, max_size=2)
)
infos = st.dictionaries(texts, plain_values, max_size=2)
floats = st.floats(allow_nan=False, allow_infinity=False)
verdicts = st.one_of(
    st.builds(
        lambda value, evidence, share: Verdict.of(value, evidence, share=share),
        st.floats(0, 1),
        texts,
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    texts.map(Verdict.unparsable),
    st.builds(Verdict.failed, st.sampled_from([Status.TIMEOUT, Status.ERROR]), texts),
)


@st.composite
def episodes(draw):
    seen = draw(st.lists(observations, min_size=1, max_size=5))
    transitions = tuple(
        Transition(
            observation=before,
            action=draw(texts),
            next_observation=after,
            reward=draw(floats),
            terminated=draw(st.booleans()),
            truncated=draw(st.booleans()),
            info=draw(infos),
        )
        for before, after in pairwise(seen)
    )
    return Episode(
        world=draw(texts),
        instance=draw(texts),
        split=draw(st.sampled_from(Split)),
        policy=draw(texts),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        noise_seed=draw(st.integers(0, 2**63 - 1)),
        first=seen[0],
        transitions=transitions,
        stop=draw(st.sampled_from(Stop)),
        outcome=draw(verdicts),
        error=draw(texts),
    )


def episode(steps=2, *, seed=0, action="go"):
    seen = [Text(str(n)) for n in range(steps + 1)]
    moves = [
        Transition(observation=a, action=action, next_observation=b, info={"valid": True})
        for a, b in pairwise(seen)
    ]
    return Episode(
        world="toy",
        instance="i",
        split=Split.TRAIN,
        seed=seed,
        noise_seed=0,
        policy="p",
        first=seen[0],
        transitions=tuple(moves),
        stop=Stop.TERMINATED,
        outcome=Verdict.of(1.0),
    )


def broken(status=Status.ERROR, stop=Stop.WORLD_ERROR):
    return replace(
        episode(0), instance="", stop=stop, outcome=Verdict.failed(status, "boom"), error="boom"
    )


def write_store(folder, *chunks):
    folder.mkdir(exist_ok=True)
    spec = check_spec(folder, {"config": {"seed": 1}})
    first = 0
    written = []
    for chunk in chunks:
        written.append(store.write_part(folder, encode_part(chunk, first, spec)))
        first += len(chunk)
    return store.finish(folder, written, {"target": {"episodes": first}})


# --- round trip -----------------------------------------------------------------------------------


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
    stored = [episode(steps, seed=steps) for steps in (5, 0, 1, 7, 0, 0, 2)]
    write_store(tmp_path / "s", stored[:4], stored[4:])
    with next((tmp_path / "s").glob("part-000000000*")).open("rb") as file:
        assert pq.ParquetFile(file).num_row_groups > 3
    opened = EpisodeStore.open(tmp_path / "s")
    assert list(opened.episodes()) == stored and len(opened) == 7
    assert list(opened.transitions()) == [step for item in stored for step in item.transitions]


def test_frames_make_small_row_groups(monkeypatch):
    monkeypatch.setattr(parts, "BYTES_PER_GROUP", 10_000)
    pixels = np.arange(20 * 64 * 3, dtype=np.uint8).reshape(20, 8, 8, 3)
    seen = [Frames.of(pixels[i : i + 1]) for i in range(20)]
    moves = tuple(
        Transition(observation=a, action="x", next_observation=b) for a, b in pairwise(seen)
    )
    one = replace(episode(0), first=seen[0], transitions=moves)
    data = encode_part([one], 0, "plan")
    assert pq.read_metadata(pa.BufferReader(data)).num_row_groups >= 2
    (back,) = decode_part(data)
    assert back == one and np.array_equal(back.transitions[3].next_observation.array, pixels[4:5])


def test_any_parquet_reader_can_use_the_rows(tmp_path):
    write_store(tmp_path / "s", [episode(2), broken()])
    rows = pq.read_table(next((tmp_path / "s").glob("*.parquet"))).to_pylist()
    assert [(row["episode"], row["step"], row["action"]) for row in rows] == [
        (0, 0, "go"),
        (0, 1, "go"),
        (1, -1, None),
    ]
    assert rows[1]["observation"] == rows[0]["next_observation"] == "1"
    assert [row["outcome"] for row in rows] == [1.0, 1.0, None]  # masked is null, not 0
    assert json.loads(rows[0]["info"]) == {"valid": True} and rows[2]["error"] == "boom"


def test_counts_are_those_of_the_episodes():
    masked = broken(Status.TIMEOUT, Stop.WORLD_TIMEOUT)
    counts = describe_part(encode_part([episode(2), masked, episode(3)], 0, "p")).counts
    assert (
        counts.episodes,
        counts.transitions,
        counts.successes,
        counts.broken,
        counts.judged,
    ) == (3, 5, 2, 1, 2)
    assert counts.masked == {"timeout": 1} and counts.first_error == "boom"
    assert counts.stops == {"terminated": 2, "world_timeout": 1}
    assert counts + EpisodeCounts.of([episode(1)]) == EpisodeCounts.of(
        [episode(2), masked, episode(3), episode(1)]
    )


def test_masked_outcomes_are_not_in_the_n_of_a_success_rate():
    counted = [
        episode(1),
        replace(episode(1), outcome=Verdict.of(0.5)),
        broken(),
        broken(Status.TIMEOUT),
    ]
    counts = EpisodeCounts.of(counted)
    assert (counts.successes, counts.judged, counts.masked) == (1, 2, {"error": 1, "timeout": 1})
    both = counts + counts
    assert (both.episodes, both.transitions, both.successes, both.broken, both.judged) == (
        8,
        4,
        2,
        4,
        4,
    )
    assert both.masked == {"error": 2, "timeout": 2} and both.stops == {
        "terminated": 4,
        "world_error": 4,
    }
    assert (
        EpisodeCounts(first_error="one") + EpisodeCounts(first_error="two")
    ).first_error == "one"
    assert (
        EpisodeCounts() + EpisodeCounts(first_error="two")
    ).first_error == "two" and EpisodeCounts.of([episode(1)]).first_error == ""


def test_a_part_describes_itself(tmp_path):
    data = encode_part([episode(2), episode(0)], 7, "mine")
    path = tmp_path / "anything"
    path.write_bytes(data)
    for source in (data, path):
        part = describe_part(source, spec="mine")
        assert (part.name, part.first, part.bytes) == (
            f"part-000000007-000000009-{hashlib.sha256(data).hexdigest()[:16]}.parquet",
            7,
            len(data),
        )
        assert part.sha256 == hashlib.sha256(data).hexdigest()
    with pytest.raises(StoreError, match=r"anything.*another spec"):
        describe_part(path, spec="yours")


def test_rows_are_compressed_and_a_frame_larger_than_a_group_still_has_one(monkeypatch):
    data = encode_part([episode(300)], 0, "plan")
    column = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0)
    assert column.compression == "ZSTD" and column.is_stats_set
    monkeypatch.setattr(parts, "BYTES_PER_GROUP", 1)
    tiny = encode_part([episode(4)], 0, "plan")
    assert pq.read_metadata(pa.BufferReader(tiny)).num_row_groups == 4 and decode_part(tiny) == [
        episode(4)
    ]


def test_row_groups_are_filled_up_to_the_byte_limit(monkeypatch):
    table = schema.episodes_to_table([episode(64)], 0)
    monkeypatch.setattr(parts, "BYTES_PER_GROUP", table.nbytes // 4)
    groups = pq.read_metadata(pa.BufferReader(encode_part([episode(64)], 0, "plan"))).num_row_groups
    assert groups in (4, 5)  # a quarter each, and perhaps a few rows left
    monkeypatch.undo()
    assert (
        pq.read_metadata(pa.BufferReader(encode_part([episode(64)], 0, "plan"))).num_row_groups == 1
    )


def test_a_long_part_is_read_in_groups_of_sixteen_thousand_rows():
    stored = [episode(9_000), episode(9_000), episode(1)]
    data = encode_part(stored, 0, "plan")
    assert pq.read_metadata(pa.BufferReader(data)).num_row_groups == 2
    assert [table.num_rows for table in parts.part_tables(io.BytesIO(data), "part")] == [
        9_000,
        9_000,
        1,
    ]
    assert episode_lengths(data) == [9_000, 9_000, 1]


# --- what cannot be stored says why ---------------------------------------------------------------


def test_info_that_is_not_json_is_named():
    whole = episode(1)
    bad = replace(whole.transitions[0], info={"at": float("nan")})
    with pytest.raises(StoreError, match="info: cannot be written as JSON"):
        encode_part([replace(whole, transitions=(bad,))], 0, "p")


def test_a_seed_that_does_not_fit_is_named():
    with pytest.raises(StoreError, match="seed: cannot be stored as int64"):
        encode_part([episode(seed=2**63)], 0, "p")


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_neither_written_nor_read(reward, tmp_path, monkeypatch):
    made = episode()
    hostile = replace(
        made, transitions=(*made.transitions[:-1], replace(made.transitions[-1], reward=reward))
    )
    with pytest.raises(StoreError, match="reward: is not a finite number"):
        encode_part([hostile], 0, "p")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_check_rewards", lambda *_: None)
        write_store(tmp_path, [made], [hostile])
    with pytest.raises(StoreError, match="reward: is not a finite number"):
        list(EpisodeStore.open(tmp_path).episodes())


def test_an_episode_that_does_not_begin_at_its_first_observation_is_refused():
    with pytest.raises(StoreError, match=r"seed 5.*does not begin"):
        encode_part([replace(episode(2, seed=5), first=Text("elsewhere"))], 0, "p")


# --- whole or absent ------------------------------------------------------------------------------


def test_the_same_episodes_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_store(tmp_path / name, [episode(3)], [episode(1)])
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all(
        (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        for name in files
    )


def test_a_store_without_manifest_is_not_opened(tmp_path):
    with pytest.raises(StoreError, match="check the path"):
        EpisodeStore.open(tmp_path)
    with pytest.raises(StoreError, match=r"no such folder\n.*terrella collect WORLD --out"):
        EpisodeStore.open(tmp_path / "nowhere")
    spec = check_spec(tmp_path, {"seed": 1})
    store.write_part(tmp_path, encode_part([episode()], 0, spec))
    with pytest.raises(StoreError, match=r"not finished.*\n.*resumes"):
        EpisodeStore.open(tmp_path)


def change(path, **values):
    """Change a sealed file as its writer could have: the hash fits again."""
    write_sealed(path, {**read_sealed(path), **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": 99}, "schema version 99.*reads 2"),
        ({"format": "lerobot"}, "is not an episode store"),
        ({"parts": [{"name": "x"}]}, "malformed list of parts"),
    ],
)
def test_a_manifest_of_another_format_is_refused(tmp_path, values, message):
    write_store(tmp_path, [episode()])
    change(tmp_path / "manifest.json", **values)
    with pytest.raises(StoreError, match=message):
        EpisodeStore.open(tmp_path)


@pytest.mark.parametrize("change_of", [{"counts": {}}, {"target": {"episodes": 9}}, {"world": 1}])
def test_an_edited_manifest_is_not_opened(tmp_path, change_of):
    """Finding 24: an edited number of episodes, or another world, passed `verify`."""
    write_store(tmp_path, [episode()])
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change_of}))
    with pytest.raises(StoreError, match=r"manifest\.json: is damaged: its content differs"):
        EpisodeStore.open(tmp_path)


def test_a_manifest_cannot_point_out_of_its_folder(tmp_path):
    manifest = write_store(tmp_path / "s", [episode()])
    part = manifest["parts"][0]
    (tmp_path / part["name"]).write_bytes((tmp_path / "s" / part["name"]).read_bytes())
    change(tmp_path / "s/manifest.json", parts=[{**part, "name": f"../{part['name']}"}])
    with pytest.raises(StoreError, match="is not the name of that part"):
        EpisodeStore.open(tmp_path / "s")
    outside = "../../" + "x" * 58  # a hash that would be a path
    name = parts.part_name(0, 1, outside)
    change(tmp_path / "s/manifest.json", parts=[{**part, "name": name, "sha256": outside}])
    with pytest.raises(StoreError, match="is not the name of that part"):
        EpisodeStore.open(tmp_path / "s")


def test_a_missing_part_is_noticed_at_once_and_a_changed_byte_when_it_is_read(tmp_path):
    write_store(tmp_path, [episode()], [episode(3)])
    list(EpisodeStore.open(tmp_path).episodes())  # all parts have been checked once
    victim = max(tmp_path.glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    opened = EpisodeStore.open(tmp_path)
    with pytest.raises(StoreError, match=victim.name):
        opened.verify()
    with pytest.raises(StoreError, match=rf"{victim.name}: is damaged.*\n.*collect"):
        list(opened.episodes())
    victim.unlink()
    with pytest.raises(StoreError, match="is missing"):
        EpisodeStore.open(tmp_path)


def test_a_part_of_another_size_is_noticed_at_once(tmp_path):
    write_store(tmp_path, [episode()])
    victim = next(tmp_path.glob("*.parquet"))
    victim.write_bytes(victim.read_bytes() + b"x")
    with pytest.raises(StoreError, match="another size"):
        EpisodeStore.open(tmp_path)


def test_a_manifest_has_the_counts_the_parts_and_the_given_fields(tmp_path):
    manifest = write_store(tmp_path, [episode(2)], [episode(3), broken()])
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written == {**manifest, "sha256": EpisodeStore.open(tmp_path).sha256}
    assert (manifest["format"], manifest["schema"], manifest["target"]) == (
        "terrella-episodes",
        2,
        {"episodes": 3},
    )
    counts = manifest["counts"]
    assert [counts[name] for name in ("episodes", "transitions", "successes", "broken")] == [
        3,
        5,
        2,
        1,
    ]
    assert [part["first"] for part in manifest["parts"]] == [0, 1]
    text = (tmp_path / "manifest.json").read_text()
    # Readable, and the same for the same store.
    assert text == json.dumps(written, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("content", ["[]", "{}", "{", '"format"'])
def test_a_malformed_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match=r"is not an episode store|cannot be read"):
        EpisodeStore.open(str(tmp_path))


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        check_spec(tmp_path, {"rate": float("nan")})
    assert list(tmp_path.iterdir()) == []


def rewritten(folder, change):
    """A store of two episodes, the rows of whose part `change` rewrites, with the right hashes."""
    write_store(folder, [episode(), episode()])
    (path,) = folder.glob("part-*")
    table = pq.read_table(path)
    rows = change(table.to_pylist())
    sink = io.BytesIO()
    footer = {key: value for key, value in table.schema.metadata.items() if key != b"ARROW:schema"}
    hostile = pa.Table.from_pylist(rows, table.schema).replace_schema_metadata(footer)
    pq.write_table(hostile, sink, write_page_checksum=True)
    store.finish(folder, [store.write_part(folder, sink.getvalue())], {})
    return EpisodeStore.open(folder)


def everywhere(**values):
    return lambda rows: [row | values for row in rows]


DEEP = "[" * 100_000
REQUIRED = ["seed", "noise_seed", "world", "policy", "instance", "outcome_evidence", "error"]
REQUIRED += ["reward", "action", "terminated", "truncated"]
HOSTILE = {
    "no row": lambda rows: [],
    "no last row": lambda rows: rows[:-1],
    "no last episode": lambda rows: rows[:2],
    "one episode more": lambda rows: [*rows, *(row | {"episode": 2} for row in rows[:2])],
    "two episodes as one": lambda rows: [
        row | {"step": n, "episode": 0} for n, row in enumerate(rows)
    ],
    "steps as episodes": lambda rows: [
        row | {"step": 0, "episode": n} for n, row in enumerate(rows)
    ],
    **{
        f"{name}={str(value)[:9]}": everywhere(**{name: value})
        for name, values in {
            "info": (DEEP, "[1]", '{"a": NaN}', '{"a": 1e999}', "{", None),
            "outcome_parts": (DEEP, "[]", '{"a": "b"}', '{"a": 1e999}', None),
            "step": (None, -5, -1, 0, 1, 2**31 - 1),
            "episode": (None,),
            "outcome": (None, 7.0, math.nan),
            "kind": (None, "frames", "x"),
            "next_kind": (None, "frames"),
            "observation": (None,),
            "next_observation": (None,),
            "split": (None, "x"),
            "stop": (None, "x"),
            "outcome_status": (None, "x", "error"),
        }.items()
        for value in values
    },
    **{f"no {name}": everywhere(**{name: None}) for name in REQUIRED},
}


@pytest.mark.parametrize("change_of", HOSTILE.values(), ids=HOSTILE)
def test_rows_that_we_never_write_are_refused_with_the_place(change_of, tmp_path):
    opened = rewritten(tmp_path, change_of)
    with pytest.raises(StoreError) as caught:
        list(opened.episodes())
    assert (
        "part-" in str(caught.value) or str(tmp_path) in str(caught.value)
    ) and caught.value.remedy
    assert len(str(caught.value)) < 1500


def test_rows_that_are_as_we_write_them_are_read(tmp_path):
    assert list(rewritten(tmp_path, list).episodes()) == [episode(), episode()]


def test_parts_of_other_columns_are_refused(tmp_path):
    about = {b"terrella-episodes": json.dumps({"schema": 2, "plan": "p", "first": 0, "counts": {}})}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(about), tmp_path / "part")
    with (tmp_path / "part").open("rb") as file, pytest.raises(StoreError, match="other columns"):
        next(parts.part_tables(file, "part"))


def test_verify_passes_for_a_complete_store(tmp_path):
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


def test_a_part_of_another_version_or_spec_is_refused(monkeypatch):
    data = encode_part([episode()], 0, "mine")
    with pytest.raises(StoreError, match="another spec"):
        describe_part(data, spec="yours")
    monkeypatch.setattr(parts, "VERSION", 3)
    with pytest.raises(StoreError, match="schema version 2; this terrella reads 3"):
        describe_part(data)


def test_reading_touches_one_part_at_a_time(tmp_path):
    write_store(tmp_path, [episode(2)], [episode(3)])
    stream = EpisodeStore.open(tmp_path).episodes()
    max(tmp_path.glob("*.parquet")).write_bytes(b"destroyed meanwhile")
    assert next(stream) == episode(2)
    with pytest.raises(StoreError, match=r"part-000000001\S* is damaged"):
        next(stream)


# --- specs and writers ----------------------------------------------------------------------------


def test_a_folder_keeps_its_spec(tmp_path):
    spec = {"config": {"world": {"size": 4}, "seed": 0}}
    digest = check_spec(tmp_path, spec)
    assert check_spec(tmp_path, spec) == digest
    with pytest.raises(StoreError, match=r"config\.world\.size is 4 there, 6 here"):
        check_spec(tmp_path, {"config": {"world": {"size": 6}, "seed": 0}})


def test_fields_that_may_change_are_not_compared(tmp_path):
    check_spec(tmp_path, {"config": {"seed": 0}, "workers": {"count": 2}})
    changed = {"config": {"seed": 0}, "workers": {"count": 3, "host": "a"}}
    assert check_spec(tmp_path, changed, ignore=["workers"])
    with pytest.raises(
        StoreError,
        match=r"workers\.count is 2 there, 3 here; workers\.host is None there, 'a' here",
    ):
        check_spec(tmp_path, changed)
    with pytest.raises(StoreError, match="config is"):
        check_spec(tmp_path, {"config": 1}, ignore=["workers"])


def test_the_hash_of_a_spec_is_that_of_its_canonical_json(tmp_path):
    digest = check_spec(tmp_path, {"b": 1, "a": [2]})
    assert digest == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()


def test_temporary_files_of_a_killed_run_do_not_make_a_folder_foreign(tmp_path):
    (tmp_path / "spec.json.tmp").write_bytes(b"half")
    assert check_spec(tmp_path, {})
    for name in "dcba":
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / name).write_text("")
    with pytest.raises(StoreError, match=r"\(a, b, c\)"):
        check_spec(tmp_path / "other", {})


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        check_spec(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_writers_do_not_share_a_folder(tmp_path):
    with (
        files.locked(tmp_path / "s"),
        pytest.raises(StoreError, match="another process"),
        files.locked(tmp_path / "s"),
    ):
        pass
    with files.locked(tmp_path / "s"):
        pass  # the first lock was released
    assert list((tmp_path / "s").iterdir()) == []


def test_a_waiting_writer_gets_the_folder_when_it_is_free(tmp_path):
    folder, order = tmp_path / "deep" / "s", []

    def second():
        with files.locked(folder, wait=True):
            order.append("second")

    with files.locked(folder):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def test_a_write_leaves_one_file_and_replaces_the_old_one(tmp_path):
    for data in (b"old", b"new"):
        files.write_atomic(tmp_path / "x.json", data)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x.json", b"new")]


def test_scratch_folders_and_logs_are_not_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("kept")
    (tmp_path / "model.tmp").symlink_to(victim)
    (tmp_path / "job.log").symlink_to(victim / "kept")
    for write in (
        lambda: files.scratch_folder(tmp_path / "model"),
        lambda: files.replace_folder(tmp_path, tmp_path / "model.tmp"),
        lambda: files.open_unlinked(tmp_path / "job.log", "w"),
        lambda: files.open_unlinked(tmp_path / "job.log", "ab"),
    ):
        with pytest.raises(StoreError, match="is a link to"):
            write()
    assert [path.read_text() for path in victim.iterdir()] == ["kept"]


def test_what_a_killed_run_left_is_removed(tmp_path):
    (tmp_path / "model.tmp").mkdir()
    (tmp_path / "model.tmp/half").write_text("")
    assert files.scratch_folder(tmp_path / "model") == tmp_path / "model.tmp"
    assert not (tmp_path / "model.tmp").exists()
    files.scratch_folder(tmp_path / "model")  # and where there is none


def test_rows_are_written_one_to_a_line_and_come_back(tmp_path):
    rows = [{"b": 1, "a": "x\ny"}, {}]
    files.write_json_lines(tmp_path / "rows.jsonl", rows)
    assert (tmp_path / "rows.jsonl").read_text() == '{"b": 1, "a": "x\\ny"}\n{}\n'
    assert files.read_json_lines(tmp_path / "rows.jsonl") == rows


def test_parts_are_found_by_their_names_alone(tmp_path):
    for name in (
        parts.part_name(0, 5, "a" * 64),
        parts.part_name(5, 10**9, "b" * 64),
        "part-1-2.parquet",
        "part-000000000-000000005.parquet",
        "manifest.json",
    ):
        (tmp_path / name).write_bytes(b"")
    assert [(key, path.name) for key, path in store.find_parts(tmp_path)] == [
        ((0, 5), "part-000000000-000000005-aaaaaaaaaaaaaaaa.parquet"),
        ((5, 10**9), "part-000000005-1000000000-bbbbbbbbbbbbbbbb.parquet"),
    ]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    files.write_atomic(tmp_path / "x", b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"disk full.*/x'"):  # and says which file had no room
        files.write_atomic(tmp_path / "x", b"new, half wr")
    assert (tmp_path / "x").read_bytes() == b"old"


def test_leftovers_go_and_unfinished_extensions_stay(tmp_path):
    manifest = write_store(tmp_path, [episode()] * 4)
    sha256 = "f" * 64
    replaced = parts.part_name(0, 2, sha256), parts.part_name(2, 4, sha256)
    for name in (*replaced, parts.part_name(0, 8, sha256), "manifest.json.tmp"):
        (tmp_path / name).write_bytes(b"")
    store.remove_leftovers(tmp_path, EpisodeStore.open(tmp_path).parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        manifest["parts"][0]["name"],
        parts.part_name(0, 8, sha256),
        "spec.json",
    ]


# --- random episodes, last because this takes longest ---------------------------------------------


@given(st.lists(episodes(), min_size=1, max_size=4), st.integers(0, 2**40))
@settings(max_examples=150, deadline=None)
def test_any_episodes_are_read_back_exactly(stored, first):
    data = encode_part(stored, first, "plan")
    assert decode_part(data) == stored
    assert episode_lengths(data) == [len(item.transitions) for item in stored]
    assert encode_part(decode_part(data), first, "plan") == data
