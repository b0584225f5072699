"""What is fuzzed: each target ends in a value or in its one error, within bounded CPU.

python fuzz_targets.py NAME CORPUS_FOLDER [options of libFuzzer]    # with atheris
"""

import atexit
import contextlib
import random
import shutil
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

try:
    import atheris
except ImportError:  # `test_fuzz.py` then mutates without coverage, and says so
    atheris = None

MODULES = ["terrella", "pickletools", "json.decoder", "json.scanner"]
"""What shows its coverage; it must be imported for the first time here."""
is_guided = atheris is not None and __name__ == "__main__"
with atheris.instrument_imports(include=MODULES) if is_guided else contextlib.nullcontext():
    import json
    import pickle
    from json import decoder as decode
    from json import scanner

    import numpy as np

    from terrella.core.config import dump, load
    from terrella.core.errors import ConfigError, StoreError
    from terrella.core.untrusted import parse_json, read_json_lines
    from terrella.data.rlds import read_rlds
    from terrella.data.tfrecord import masked_checksum
    from terrella.data.webrl_formats import read_steps, read_tasks, read_traces, training_steps
    from terrella.models.array_pickles import read_array_pickle
    from terrella.pipelines.rlvr import Rlvr
    from terrella.verify.tree import parse, write
    from terrella.verify.tree_diff import read_changes
    from terrella.worlds.frozen_lake import FrozenLake
    from terrella.worlds.sokoban import Sokoban

CPU_SECONDS = 2.0
MAX_LENGTH = 4096
MEMORY = Path("/dev/shm")
SCRATCH = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
CORPUS = Path(__file__).parent / "corpus"
"""One file per target: inputs that reached new code in long runs, in hexadecimal."""


def scratch_file(name, data):
    path = SCRATCH / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


# --- targets --------------------------------------------------------------------------------------


def python_json(text):
    """Python's JSON decoder without its C code, which shows no coverage."""
    decoder = json.JSONDecoder(parse_constant=lambda name: int(name))
    decoder.parse_object, decoder.parse_string = decode.JSONObject, decode.py_scanstring
    decoder.scan_once = scanner.py_make_scanner(decoder)
    return decoder.decode(text)


def json_reader(data):
    with contextlib.suppress(ValueError, RecursionError):  # only guides the fuzzer
        python_json(data.decode())
    parse_json(data, "input")
    list(read_json_lines(scratch_file("x.jsonl", data)))


def config_loader(data):
    config = load(parse_json(data, "input"))
    assert load(dump(config)) == config


def tree_parser(data):
    text = data.decode("utf-8", "surrogatepass" if data[:1] == b"\1" else "replace")
    nodes = parse(text)
    assert parse(write(nodes)) == nodes
    page, _, changes = text.partition("\n\n")
    read_changes(changes, parse(page))


def tfrecord(data):
    if data[:1] != b"\0":  # otherwise the checksums would stop every input
        length = struct.pack("<Q", len(data[1:]))
        sums = [struct.pack("<I", masked_checksum(part)) for part in (length, data[1:])]
        data = length + sums[0] + data[1:] + sums[1]
    for episode in read_rlds(scratch_file("x.tfrecord", data)):
        assert np.isfinite([step.reward for step in episode.transitions]).all()


def unpickler(data):
    read_array_pickle(scratch_file("x.ckpt", data))


def webrl_formats(data):
    kind, data = data[:1], data[1:]
    if kind == b"s":
        for trajectory in read_steps(scratch_file("steps.json", data)):
            assert np.isfinite([step.reward for step in trajectory]).all()
    elif kind == b"t":
        read_tasks(scratch_file("tasks.json", data))
    else:
        score, _, steps = data.partition(b"\n")
        scratch_file("actions/7.json", score)
        scratch_file("traces/7.jsonl", steps)
        for trace in read_traces(SCRATCH):
            assert np.isfinite(trace.score)
            training_steps(trace)


TARGETS = {
    "json_reader": (json_reader, StoreError),
    "config_loader": (config_loader, (ConfigError, StoreError)),
    "tree_parser": (tree_parser, ValueError),
    "tfrecord": (tfrecord, StoreError),
    "unpickler": (unpickler, StoreError),
    "webrl_formats": (webrl_formats, StoreError),
}


def run_once(name, data):
    """Run one input; anything but a value or the target's error within the limit propagates."""
    target, allowed = TARGETS[name]
    began = time.process_time()
    try:
        target(data)
    except allowed as error:
        assert len(str(error)) < 5000
    used = time.process_time() - began
    assert used < CPU_SECONDS, f"{used:.1f} CPU seconds"


# --- first inputs ---------------------------------------------------------------------------------


def png():
    def chunk(name, data):
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    head = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(14)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def field(number, data):
    assert len(data) < 2**14
    size = [len(data)] if len(data) < 128 else [len(data) & 127 | 128, len(data) >> 7]
    return bytes([number << 3 | 2, *size]) + data


def example(**columns):
    entries = [
        field(1, field(1, f"steps/{name}".encode()) + field(2, values))
        for name, values in columns.items()
    ]
    return b"\1" + field(1, b"".join(entries))


def seeds(name):
    """Valid inputs that a fuzzer starts from."""
    step = {"trace_id": 7, "index": 0, "prompt": "p", "html": "h", "response": "r", "target": "t"}
    training = {"observation": "o", "next_observation": "n", "task": "t", "reward": 1.0}
    training |= {"done": True, "action": "a", "trajectory_reward": 1.0}
    arrays = {"a": {"kernel": np.ones((2, 3), np.float32)}, "n": 3, "f": 0.5, "t": "x"}
    images = field(1, field(1, png()) * 2)
    numbers = field(2, field(1, struct.pack("<2f", 0.5, 1.0)))
    trace = b'x{"score": 0.5}\n' + json.dumps(step).encode() + b"\n" + json.dumps(step).encode()
    return {
        "json_reader": [b'{"a": [1, -2.5e3, true, null, "\\u00e9\\n"]}', b"[[[]]]", b"[" * 200],
        "config_loader": [
            json.dumps(dump(config)).encode()
            for config in (Sokoban.Config(), Rlvr.Config(world=FrozenLake.Config(size=4)))
        ],
        "tree_parser": [
            b'[1] page "A"\n  [2] button "Ok" focused value="x"\n    text "b\\n"',
            b'[1] page "A"\n  [3] textbox "B"\n\n^[3] value="kai" -checked\n-[3]\n+[1] link "C"',
        ],
        "tfrecord": [
            example(**{"observation/image": images, "action": numbers, "reward": numbers}),
            example(**{"action": field(3, field(1, b"\x01\x96\x01")), "language": images}),
        ],
        "unpickler": [pickle.dumps(arrays, protocol=number) for number in (2, 4)]
        + [b"\x80\x04}\x94\x8c\x01ah\x00s."],
        "webrl_formats": [
            b"s" + json.dumps([[training]]).encode(),
            b"t" + json.dumps([{"intent": "i", "sites": ["s"], "start_url": "u"}]).encode(),
            trace,
        ],
    }[name]


def corpus(name):
    """The committed inputs of a target, after its seeds."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text("ascii").split() if path.exists() else []
    return seeds(name) + [bytes.fromhex(line) for line in lines]


# --- mutation -------------------------------------------------------------------------------------

HUGE = "1e999"
VALUES = [None, True, 0, -1, 2**63, 1e308, HUGE, "", "x", "../..", [], {}, "\ud800", "9" * 50]


def mutate_json(value, rng):
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        other = rng.choice(list(value))
        kind = rng.randrange(5)
        if kind == 0:
            return {name: item for name, item in value.items() if name != key}
        if kind == 1:
            return {**value, rng.choice(["class", "x", key + "s"]): value[other]}
        return {**value, key: value[other] if kind == 2 else mutate_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], mutate_json(value[index], rng), *value[index + rng.randrange(2) :]]
    return rng.choice([*VALUES, [value], {"class": value}, {"a": value, "b": value}])


def mutate(data, max_size, seed):
    """A custom mutator: half of the inputs that hold JSON are changed as JSON."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        start = 1 if data[:1] in (b"s", b"t", b"x") else 0
        lines = data[start:].split(b"\n")
        index = rng.randrange(len(lines))
        try:
            changed = json.dumps(mutate_json(json.loads(lines[index]), rng)).encode()
            lines[index] = changed.replace(f'"{HUGE}"'.encode(), HUGE.encode())
            return (data[:start] + b"\n".join(lines))[:max_size]
        except (ValueError, RecursionError):
            pass  # not JSON, or too deep to be changed here
    if atheris is not None:
        return atheris.Mutate(data, max_size)
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        i, j = sorted(rng.randrange(len(changed) + 1) for _ in range(2))
        changed[i:j] = rng.choice([b"", bytes([rng.randrange(256)]), changed[i:j] * 2])
    return bytes(changed[:max_size])


if __name__ == "__main__":
    name, folder, *options = sys.argv[1:]
    for number, data in enumerate(corpus(name)):
        (Path(folder) / f"seed-{number}").write_bytes(data)
    arguments = [sys.argv[0], f"-max_len={MAX_LENGTH}", *options, folder]
    atheris.Setup(arguments, lambda data: run_once(name, data), custom_mutator=mutate)
    atheris.Fuzz()
