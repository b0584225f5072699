"""Hostile datasets, weights and archives: each is refused with one error, within bounded CPU.

Every attack once ran away, read outside its folder, or raised something that no user understands.
"""

import gzip
import io
import json
import lzma
import pickle
import random
import resource
import struct
import sys
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaign import record, trials

av = pytest.importorskip("av", reason="pip install 'terrella[video]'")

from terrella.core.errors import StoreError, TerrellaError
from terrella.core.untrusted import inside, parse_json, read_json, read_xz, unpack_tar
from terrella.data import webrl_formats
from terrella.data.lerobot import read_lerobot, write_lerobot
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.rlds import read_rlds
from terrella.data.tfrecord import masked_checksum
from terrella.data.videos import decode_image, read_video
from terrella.models.array_pickles import read_array_pickle
from terrella.worlds.bytesized32.sources import load_records
from terrella.worlds.webshop.catalogue import load_catalogue

CPU_SECONDS = 2.0
GROWTH = 512 * 2**20
"""Bytes by which the peak of memory may grow in one attack."""


@pytest.fixture(autouse=True)
def bounded():
    """Every test of this file stays within CPU and memory, whatever it reads."""
    used, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    assert time.process_time() - used < CPU_SECONDS
    assert grown < GROWTH


def refused(call, *arguments):
    """The error of a refusal; it names the place and is short."""
    with pytest.raises(TerrellaError) as caught:
        result = call(*arguments)
        list(result) if hasattr(result, "__next__") else None
    assert len(str(caught.value)) < 2000
    return caught.value


# --- pickles of arrays ----------------------------------------------------------------------------


def doubled_dictionaries(levels):
    """Each dictionary holds the one below it twice: a few hundred bytes, 2^levels values."""
    parts = [b"\x80\x04", b"\x8c\x01a".join([b"}\x94"] * (levels + 1))]
    for below in range(levels, 0, -1):
        parts.append(b"s\x8c\x01bh" + bytes([below]) + b"s")
    return b"".join(parts) + b"."


def doubled_tuples(levels):
    """Opcodes for a tuple of tuples of tuples, whose hash and text take 2^levels steps."""
    return b"K\x01\x85\x94" + b"".join(b"h" + bytes([n]) + b"\x86\x94" for n in range(levels))


SELF_REFERRING = b"\x80\x04}\x94\x8c\x01ah\x00s."
DEEP = b"\x80\x04" + b"}\x8c\x01a" * 20_000 + b"N" + b"s" * 20_000 + b"."
OWN_ARRAY = pickle.dumps({"a": np.zeros(1000)}, protocol=4)
SYSTEM = b"\x80\x04cposix\nsystem\n\x8c\x04true\x85R."


def shared_array(times):
    """One array under many names, which together are larger than any memory."""
    array = np.zeros(250_000, np.float32)
    return pickle.dumps({f"w{number}": array for number in range(times)}, protocol=4)


PICKLES = {
    "doubled dictionaries": doubled_dictionaries(60),
    "doubled tuples as a key": b"\x80\x04}" + doubled_tuples(60) + b"K\x01s.",
    "doubled tuples called": b"\x80\x04" + doubled_tuples(60) + b"K\x01\x85R.",
    "doubled tuples as a type": b"\x80\x04cnumpy\ndtype\n" + doubled_tuples(60) + b"\x85R.",
    "self-referring": SELF_REFERRING,
    "deep": DEEP,
    "system": SYSTEM,
    "shared array": shared_array(1000),
    "array without content": b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n)R.",
    "empty": b"",
    "no stop": OWN_ARRAY[:-1],
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_hostile_pickle_is_refused(name, tmp_path):
    path = tmp_path / "weights.ckpt"
    path.write_bytes(PICKLES[name])
    assert "weights.ckpt" in refused(read_array_pickle, path).where


def test_an_honest_pickle_of_arrays_is_still_read(tmp_path):
    path = tmp_path / "weights.ckpt"
    path.write_bytes(pickle.dumps({"layer": {"kernel": np.arange(6.0).reshape(2, 3)}}, protocol=4))
    assert read_array_pickle(path)["layer"]["kernel"].tolist() == [[0, 1, 2], [3, 4, 5]]


# --- TFRecord -------------------------------------------------------------------------------------


def framed(data):
    length = struct.pack("<Q", len(data))
    sums = [struct.pack("<I", masked_checksum(part)) for part in (length, data)]
    return length + sums[0] + data + sums[1]


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(columns):
    entries = [field(1, field(1, name) + field(2, values)) for name, values in columns.items()]
    return field(1, b"".join(entries))


def png(width, height, extra=b""):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    packer = zlib.compressobj(9)
    rows = [packer.compress(bytes(1 + 3 * width)) for _ in range(height)]
    pixels = b"".join(rows) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    text = chunk(b"zTXt", b"a\0\0" + extra) if extra else b""
    ending = text + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ending


def floats(*numbers):
    return field(2, field(1, struct.pack(f"<{len(numbers)}f", *numbers)))


def images(*pictures):
    return field(1, b"".join(field(1, picture) for picture in pictures))


def episode_example(**changes):
    columns = {
        b"steps/observation/image": images(*[png(8, 8)] * 3),
        b"steps/action": floats(*range(3)),
        b"steps/reward": floats(0.0, 0.0, 1.0),
    }
    return example(columns | {key.encode(): value for key, value in changes.items()})


HOSTILE_EXAMPLES = {
    "endless number": b"\xff" * 400_000,  # each byte adds bits: shifting zeros would cost nothing
    "number too long": example({b"a": field(3, b"\x88" * 11 + b"\0")}),
    "no name": field(1, field(1, b"")),
    "name not utf-8": example({b"\xff\xfe": b""}),
    "float list cut": example({b"a": field(2, field(1, b"abc"))}),
    "number as float": example({b"a": field(2, b"\x08" + b"\xff" * 9 + b"\1")}),
    "unknown kind": example({b"a": field(9, b"")}),
    "message is a number": b"\x08\x01",
    "longer than its message": b"\x0a\xff\x01",
    "rewards are bytes": episode_example(**{"steps/reward": images(b"1", b"2", b"3")}),
    "reward is NaN": episode_example(**{"steps/reward": floats(0, 0, float("nan"))}),
    "action is infinite": episode_example(**{"steps/action": floats(0, 0, float("inf"))}),
    "too few rewards": episode_example(**{"steps/reward": floats(1.0)}),
    "images are numbers": episode_example(**{"steps/observation/image": floats(1, 2)}),
    "no images": episode_example(**{"steps/observation/image": field(1, b"")}),
    "not an image": episode_example(**{"steps/observation/image": images(b"GIF89a")}),
    "sizes differ": episode_example(
        **{"steps/observation/image": images(png(8, 8), png(9, 9), png(8, 8))}
    ),
}


@pytest.mark.parametrize("name", HOSTILE_EXAMPLES)
def test_a_hostile_record_is_refused_with_its_place(name, tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(framed(HOSTILE_EXAMPLES[name]))
    assert "x.tfrecord, record 0 at byte 0" in str(refused(read_rlds, path))


def test_no_flipped_bit_of_a_shard_is_trained_on(tmp_path):
    path = tmp_path / "x.tfrecord"
    whole = framed(episode_example()) + framed(episode_example())
    path.write_bytes(whole)
    assert len(list(read_rlds(path))) == 2
    rng = random.Random(0)
    flips = trials(commit=60, nightly=500)
    for _ in range(flips):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert "checksum" in refused(read_rlds, path).what
    record("importers", {"tfrecord_flips": flips, "silent": 0})


def test_a_record_that_lies_about_its_length_costs_nothing(tmp_path):
    path = tmp_path / "x.tfrecord"
    for length in (2**62, 2**30 - 1, 10):
        size = struct.pack("<Q", length)
        path.write_bytes(size + struct.pack("<I", masked_checksum(size)) + b"abc")
        refused(read_rlds, path)
    path.write_bytes(b"\0" * 5)
    assert refused(read_rlds, path).what == "is cut off"


# --- pictures and videos --------------------------------------------------------------------------


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded():
    bomb = png(12_000, 1)[:16] + struct.pack(">II", 12_000, 12_000) + png(12_000, 1)[24:]
    head = bomb[12:29]
    bomb = bomb[:29] + struct.pack(">I", zlib.crc32(head)) + bomb[33:]
    refused(decode_image, bomb)
    refused(decode_image, png(5_000, 5_000))  # a whole one, which could be decoded
    jpeg = b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", 30_000, 30_000)
    refused(decode_image, jpeg + b"\x03\x01\x11\0\x02\x11\0\x03\x11\0\xff\xd9")
    assert decode_image(png(8, 8)).shape == (8, 8, 3)


def test_text_packed_into_a_picture_is_not_unpacked():
    bomb = zlib.compress(bytes(2**26), 9)
    assert decode_image(png(8, 8, extra=bomb)).shape == (8, 8, 3)


def test_a_playlist_named_mp4_opens_nothing(tmp_path):
    secret = tmp_path / "secret.ts"
    secret.write_bytes(b"G" * 1000)
    listing = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    for text in (listing, f"ffconcat version 1.0\nfile '{secret}'\n"):
        (tmp_path / "a.mp4").write_text(text)
        error = refused(read_video, tmp_path / "a.mp4")
        assert "a.mp4" in error.where
    refused(read_video, Path("concat:a.mp4|b.mp4"))
    refused(read_video, tmp_path / "missing.mp4")


# --- LeRobot --------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    frames = np.full((4, 16, 16, 3), 90, np.uint8)
    recording = Recording(source="x", number=0, video=frames, actions=np.zeros((4, 2)))
    write_lerobot(tmp_path / "set", [recorded_episode(recording)])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file-000.parquet").write_bytes(
        (tmp_path / "set/data/chunk-000/file-000.parquet").read_bytes()
    )
    assert len(list(read_lerobot(tmp_path / "set"))) == 1
    return tmp_path / "set"


INFOS = {
    "outside": {"data_path": "../outside/file-000.parquet"},
    "absolute": {"data_path": "/etc/hostname"},
    "two gigabytes": {"data_path": "data/{chunk_index:2000000000d}.parquet"},
    "attributes": {"data_path": "{chunk_index.__class__.__mro__}"},
    "unknown field": {"data_path": "data/{password}.parquet"},
    "not a text": {"data_path": 7},
    "video outside": {"video_path": "../outside/{video_key}.mp4"},
    "no features": {"features": 3},
    "a feature is a number": {"features": {"a": 1}},
    "missing": {"data_path": "data/none.parquet"},
    "a folder": {"data_path": "data/chunk-000"},
    "nul": {"data_path": "data/\0.parquet"},
}


@pytest.mark.parametrize("name", INFOS)
def test_a_hostile_lerobot_description_is_refused(name, dataset):
    path = dataset / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **INFOS[name]}))
    refused(read_lerobot, dataset)


@pytest.mark.parametrize("text", ["[]", "3", "{", "\xff", '{"codebase_version": ' + "[" * 99_999])
def test_a_description_that_is_no_description_is_refused(text, dataset):
    (dataset / "meta/info.json").write_bytes(text.encode("latin-1"))
    refused(read_lerobot, dataset)


def test_a_link_out_of_the_dataset_is_refused(dataset):
    data = dataset / "data/chunk-000/file-000.parquet"
    data.unlink()
    data.symlink_to(dataset.parent / "outside/file-000.parquet")
    assert "leads outside" in refused(read_lerobot, dataset).what


@pytest.mark.parametrize("column", ["data/chunk_index", "data/file_index", "episode_index"])
@pytest.mark.parametrize("value", [-1, 2**40, None, "../../x"])
def test_a_hostile_index_of_episodes_is_refused(column, value, dataset):
    path = dataset / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist([{**rows[0], column: value}]), path)
    refused(read_lerobot, dataset)


def test_a_table_with_billions_of_values_is_refused(dataset):
    path = dataset / "data/chunk-000/file-000.parquet"
    rows = 11_000_000
    table = pa.table({"episode_index": pa.array(np.zeros(rows, np.int8))})
    pq.write_table(table, path)
    assert path.stat().st_size < 100_000
    assert "rows" in refused(read_lerobot, dataset).what


def test_a_damaged_parquet_file_is_named(dataset):
    path = dataset / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert "file-000.parquet" in str(refused(read_lerobot, dataset))


# --- WebRL ----------------------------------------------------------------------------------------

STEP = {"trace_id": 7, "index": 0, "prompt": "p", "html": "h", "response": "r", "target": "t"}
SCORES = ["NaN", "Infinity", "1e999", '"1"', "null", "true", "[]", "9" * 400]
STEPS = [
    "3",
    "[]",
    "{}",
    "[" * 99_999,
    '{"a":' * 99_999,
    json.dumps({**STEP, "html": 3}),
    json.dumps({**STEP, "index": 10**100}),
    json.dumps(STEP).replace('"h"', '"\\ud800"'),
    json.dumps({**STEP, "trace_id": [1]}),
    "\xff",
    "NaN",
]


def trace_folder(folder, step=None, score="1.0"):
    for name in ("traces", "actions"):
        (folder / name).mkdir()
    text = json.dumps(STEP) if step is None else step
    (folder / "traces/7.jsonl").write_bytes(text.encode("latin-1"))
    (folder / "actions/7.json").write_text(f'{{"score": {score}}}')
    return folder


@pytest.mark.parametrize("score", SCORES)
def test_a_score_is_a_finite_number(score, tmp_path):
    refused(webrl_formats.read_traces, trace_folder(tmp_path, score=score))


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_a_hostile_step_is_refused(number, tmp_path):
    error = refused(webrl_formats.read_traces, trace_folder(tmp_path, STEPS[number]))
    assert "7.jsonl" in error.where


@pytest.mark.parametrize("text", ["3", "[3]", "[[3]]", '[{"intent": 3}]', "[" * 99_999, "\xff", ""])
@pytest.mark.parametrize("read", [webrl_formats.read_steps, webrl_formats.read_tasks])
def test_hostile_steps_and_tasks_are_refused(text, read, tmp_path):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    refused(read, tmp_path / "x.json")


def test_a_trace_of_endless_length_is_refused(tmp_path):
    folder = trace_folder(tmp_path, "\n".join([json.dumps(STEP)] * 1001))
    assert "1,001 steps" in refused(webrl_formats.read_traces, folder).what


# --- archives and JSON ----------------------------------------------------------------------------


def xz_bomb(size=2**25):
    packer = lzma.LZMACompressor(preset=0)
    zeros = bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(size >> 20)) + packer.flush()


@pytest.fixture(scope="module")
def bomb():
    return xz_bomb()


def test_an_xz_bomb_is_refused(bomb, tmp_path):
    (tmp_path / "x.json.xz").write_bytes(bomb)
    assert "unpacks to more than" in refused(read_xz, tmp_path / "x.json.xz", 2**22).what
    for name in ("products_1000.json.xz", "instructions_1000.json.xz"):
        (tmp_path / name).write_bytes(lzma.compress(b"[" * 99_999))
    refused(load_catalogue, tmp_path)
    refused(load_records, tmp_path)


@pytest.mark.parametrize("rows", ["[3]", '[{"product": {}}]', "3", '[{"product": {"asin": 1}}]'])
def test_a_hostile_catalogue_is_refused(rows, tmp_path):
    (tmp_path / "products_1000.json.xz").write_bytes(lzma.compress(rows.encode()))
    (tmp_path / "instructions_1000.json.xz").write_bytes(lzma.compress(b"[]"))
    refused(load_catalogue, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "tail", "text"])
def test_a_damaged_xz_file_is_named(damage, tmp_path):
    whole = lzma.compress(b"{}" * 1000)
    data = {"cut": whole[:-5], "tail": whole + b"more", "text": b"hello"}[damage]
    (tmp_path / "x.xz").write_bytes(data)
    assert "x.xz" in refused(read_xz, tmp_path / "x.xz").where


def test_a_tar_bomb_and_a_way_out_are_refused(tmp_path):
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("big")
        member.size = 2**26
        tar.addfile(member, io.BytesIO(bytes(2**26)))
    refused(unpack_tar, path, tmp_path / "out", 2**20)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"))
    refused(unpack_tar, path, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def chain_of_links(victim):
    """Links so long that `realpath` gives up on them: `filter="data"` of Python 3.11.7 follows."""
    step, names, path = "d" * 247, "abcdefghijklmnop", ""
    for name in names:
        yield member(path + step, tarfile.DIRTYPE)
        yield member(path + name, tarfile.SYMTYPE, linkname=step)
        path += step + "/"
    end = "/".join(names) + "/" + "l" * 254
    yield member(end, tarfile.SYMTYPE, linkname="../" * len(names))
    yield member("escape", tarfile.SYMTYPE, linkname=end + "/.." * 8 + str(victim))
    yield member("escape/planted")
    yield member("flag", tarfile.LNKTYPE, linkname="escape/mine")
    yield member("flag")


def member(name, kind=tarfile.REGTYPE, data=b"not mine", **about):
    """A member of a tar archive and its data."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o755
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    for key, value in about.items():
        setattr(info, key, value)
    return info, io.BytesIO(data)


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            tar.addfile(info, data if info.isreg() else None)
    return path


def test_a_chain_of_links_leads_nowhere(tmp_path):
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    out.mkdir()
    (victim / "mine").write_text("mine")
    archive = tar_of(tmp_path / "x.tar", chain_of_links(victim))
    assert "neither file nor folder" in refused(unpack_tar, archive, out).what
    assert {file.name: file.read_text() for file in victim.iterdir()} == {"mine": "mine"}


KINDS = ("SYMTYPE", "LNKTYPE", "CHRTYPE", "FIFOTYPE", "GNUTYPE_SPARSE", "GNUTYPE_LONGLINK")
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_neither_file_nor_folder_is_refused(kind, tmp_path):
    archive = tar_of(tmp_path / "x.tar", [member("x", getattr(tarfile, kind), linkname="y")])
    refused(unpack_tar, archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "headers", [SPARSE, {"GNU.sparse.map": "0,1"}, {"size": "-512"}, {"comment": "1" * 10_000}]
)
def test_a_sparse_or_negative_size_and_a_long_header_are_refused(headers, tmp_path):
    lines = b"9999999\n" + b"0\n" * 2**23  # as a map of a sparse file, seconds of reading
    archive = tar_of(tmp_path / "x.tar", [member("x", data=lines, pax_headers=headers)])
    refused(unpack_tar, archive, tmp_path / "out")


def test_headers_that_are_slow_to_read_are_refused(tmp_path):
    slow = [member("x", pax_headers={"comment": "1" * 4000}) for _ in range(500)]
    assert "headers" in refused(unpack_tar, tar_of(tmp_path / "x.tar", slow), tmp_path / "out").what


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_the_header_of_a_tar_archive_is_no_bomb(kind, tmp_path):
    info, _ = member("x", kind, size=2**30)
    zeros = gzip.compress(bytes(2**20), 1)
    (tmp_path / "x.tar.gz").write_bytes(
        gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + zeros * 2**10
    )
    refused(unpack_tar, tmp_path / "x.tar.gz", tmp_path / "out", 10_000)


def test_an_ordinary_tar_archive_is_unpacked(tmp_path):
    names = ["adapter/" + "n" * 90 + "/weights", "u" * 200 + "/ü", "config"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=form) as tar:
            for name in names if form != tarfile.USTAR_FORMAT else names[-1:]:
                info, data = member(name, mtime=1.5 if form == tarfile.PAX_FORMAT else 1)
                tar.addfile(info, data)
        unpack_tar(tmp_path / "x.tar.gz", tmp_path / str(form))
        assert (tmp_path / str(form) / names[-1]).read_bytes() == b"not mine"
    assert (tmp_path / str(tarfile.PAX_FORMAT) / names[1]).exists()


DEEP_JSON = ["[" * 99_999, '{"a":' * 99_999, "[" * 101 + "]" * 101, '"' + '\\"' * 300_000]
NO_JSON = ["", "NaN", "\xff", "9" * 5000, "{'a': 1}", "[1,]", "\x00"]


@pytest.mark.parametrize("text", DEEP_JSON + NO_JSON)
def test_json_that_is_too_deep_or_no_json_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    assert "x.json" in refused(read_json, tmp_path / "x.json").where


def test_json_of_ordinary_depth_is_read_whatever_its_texts_contain():
    value = {"text": '[[{"' * 1000 + "\\" * 3, "rows": [[number] for number in range(500)]}
    assert parse_json(json.dumps(value), "here") == value
    assert parse_json("[" * 100 + "]" * 100, "here")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\..\\x", "", "a\0", "a" * 5000])
def test_a_name_that_leaves_its_folder_is_refused(name, tmp_path):
    refused(inside, tmp_path, name)


def test_a_hub_cache_may_link_to_its_blobs(tmp_path):
    folder = tmp_path / "snapshots/abc"
    folder.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/1").write_text("x")
    (folder / "a").symlink_to("../../blobs/1")
    assert inside(folder, "a").read_text() == "x"
    (folder / "b").symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match="leads outside"):
        inside(folder, "b")


def test_a_pipe_is_not_waited_for(tmp_path):
    if sys.platform != "linux":
        pytest.skip("pipes in the file system")
    import os

    os.mkfifo(tmp_path / "x.json")
    assert "not a file" in refused(read_json, tmp_path / "x.json").what
