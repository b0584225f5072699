"""Single bits are flipped in everything that a later stage reads: detected by name, or harmless.

Each flip is made in place, read by the function that the stage uses, and undone. A flip may be
refused with an error that names the file, or change nothing; a result that differs in silence and
an error that is not ours are failures.
"""

import collections
import json
import random
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import numpy as np
import torch
from safetensors.torch import save_file
from tests.attack.campaign import record, trials

from terrella.core.config import dump
from terrella.core.errors import TerrellaError
from terrella.core.files import write_json, write_json_lines
from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder, check_model, check_spec, read_manifest
from terrella.core.tokens import TrainExample
from terrella.data.attempts import Attempt, Choice, PracticeTask, read_attempts, write_attempts
from terrella.data.store import EpisodeStore
from terrella.data.train_examples import read_examples, write_examples
from terrella.engines.checkpoints import listed_names, newest_complete, write_manifest
from terrella.engines.pointer.learner import make_net
from terrella.engines.tinker.trainer import SavedProgress
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.export import export_model
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.frame_tokenizers import load_frame_tokenizer
from terrella.models.pointer import PointerSizes
from terrella.models.presets import load_model
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.show.runs import read_run
from terrella.trust.certificate import RULES, Certificate
from terrella.world_models.certified import CERTIFICATE, certified_hashes, read_certificate
from terrella.worlds.counter import Counter

SIZES = PointerSizes(width=8, layers=1)


class Subject:
    """Files of one kind, and how a stage reads them; `read` returns what can be compared."""

    def __init__(self, files, read):
        self.files = sorted(files)
        assert self.files
        self.read = read
        self.expected = read()


# --- what is attacked -----------------------------------------------------------------------------


def stored(folder):
    return Collect.Config(
        world=Counter.Config(), policy=Random.Config(), out=folder, episodes=40, chunk_episodes=10
    )


def read_store(folder):
    store = EpisodeStore.open(folder)
    return dict(store.manifest), list(store.episodes())


def finished_run(folder):
    """A world model's folder as `train-world-model` and `certify` leave it, in a second."""
    config = TrainWorldModel.Config(world=Counter.Config(), out=folder)
    with RunFolder(folder, config, progress=SilentProgress()) as run:
        Collect(stored(folder / "data")).run(SilentProgress())
        export_model(*load_model("tiny-0.3m", vocabulary=("up",), seed=0), folder / "model")
        run.part("before", Metric, lambda: Metric.of([0.0, 1.0]))
        write_json_lines(folder / "curve.jsonl", [{"step": n, "reward": n / 7} for n in range(9)])
        run.finish({"real_steps": {"data": 40, "rlvr": 0}, "rl": None})
    hashes = certified_hashes(folder)
    sections = {
        "about": {f"{name}_sha256": value for name, value in hashes.items()} | {"rules": RULES},
        "certified": True,
        "reasons": [],
        "safe_horizon": 3,
        "risk": {"threshold": 0.1},
    }
    Certificate(sections).save(folder / CERTIFICATE)
    return config


def read_weights(folder):
    model, tokenizer = load_model(str(folder))
    return [tensor.tolist() for tensor in model.state_dict().values()][:2], len(tokenizer)


def checkpoint(folder, step):
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(step)
    save_file({"weight": torch.rand(64, generator=generator)}, folder / "model.safetensors")
    save_file({"0/exp_avg": torch.rand(64, generator=generator)}, folder / "optimizer.safetensors")
    write_json(folder / "progress.json", {"loss": 0.25 * step})
    write_manifest(folder, step)


class Checkpoints:
    """Reads as a resumed run does: the newest intact one, in a copy: damaged ones are removed."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = folder, scratch

    def __call__(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.folder, self.scratch)
        step = newest_complete(self.scratch)
        newest = self.scratch / f"checkpoint-{step}"
        return step, {name: (newest / name).read_bytes() for name in sorted(listed_names(newest))}


class FakeAdapter:
    def save_state(self, name):
        return f"tinker://{name}"


def read_progress(folder, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    saved = SavedProgress(scratch)
    return saved.step, saved.state, saved.env_steps, saved.curve


def read_net(path):
    net = make_net("actor", SIZES, seed=1, path=path)
    return [tensor.tolist() for tensor in net.module.state_dict().values()]


def attempts():
    choice = Choice(observation="a", offered=("x", "y"), taken=1, logprob=-0.5, steps_left=3)
    task = PracticeTask(family="f", seed=3)
    made = Attempt(
        task=task, instruction="go", choices=(choice,) * 3, last="end", success=True, stop="done"
    )
    return [made] * 20


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    root = tmp_path_factory.mktemp("flips")
    config = finished_run(root / "run")
    run = config.out
    spec = json.loads((run / "data/spec.json").read_text())
    for step in (2, 4):
        checkpoint(root / f"checkpoints/checkpoint-{step}", step)
    saved = SavedProgress(root / "tinker")
    for step in (1, 2):
        saved.curve.append({"step": step, "reward": step / 3})
        saved.save(FakeAdapter(), step, env_steps=10 * step)
    make_net("actor", SIZES, seed=0).save(root / "actor.safetensors")
    write_attempts(root / "attempts.jsonl", attempts())
    example = TrainExample(prompt_ids=(1, 2), completion_ids=(3, 4), mask=(True, False))
    write_examples(root / "examples.parquet", [example] * 50)
    FrameTokenizer(FrameTokenizerConfig(size=16)).save(root / "tokenizer")
    frames = np.zeros((2, 16, 16, 3), np.uint8)

    def resume():
        """The parts of an unfinished run, read as the same command does."""
        with RunFolder(run, config, progress=SilentProgress()) as opened:
            return opened.part("before", Metric, lambda: Metric.of([9.0]))

    def certificate():
        read = read_certificate(run)
        if read.void:
            raise TerrellaError("certificate", f"model.safetensors or part-: {read.void}")
        return dict(read.sections)

    model = [path for path in (run / "model").iterdir() if path.is_file()]
    hashed = [root / "actor.safetensors", root / "attempts.jsonl", root / "examples.parquet"]
    beside = [path.with_name(path.name + ".sha256") for path in hashed]
    made = {
        "parts": Subject((run / "data").glob("*.parquet"), lambda: read_store(run / "data")),
        "store manifest": Subject([run / "data/manifest.json"], lambda: read_store(run / "data")),
        "spec": Subject(
            [run / "data/spec.json"],
            lambda: check_spec(
                run / "data", {k: v for k, v in spec.items() if k not in ("schema", "sha256")}
            ),
        ),
        "run manifest": Subject(
            [run / "manifest.json"], lambda: (read_manifest(run), read_run(run).manifest)
        ),
        "run parts": Subject([run / "before.json", run / "spec.json"], resume),
        "curve": Subject([run / "curve.jsonl"], lambda: read_run(run).curve),
        "exported model": Subject(model, lambda: read_weights(run / "model")),
        "certificate": Subject([run / CERTIFICATE], certificate),
        "certified weights": Subject(
            [path for path in model if path.name != "files.json"], certificate
        ),
        "checkpoints": Subject(
            (root / "checkpoints/checkpoint-4").iterdir(),
            Checkpoints(root / "checkpoints", root / "scratch"),
        ),
        "tinker progress": Subject(
            (root / "tinker/checkpoint-2").iterdir(),
            lambda: read_progress(root / "tinker", root / "scratch"),
        ),
        "networks": Subject([hashed[0], beside[0]], lambda: read_net(hashed[0])),
        "attempts": Subject([hashed[1], beside[1]], lambda: read_attempts(hashed[1])),
        "examples": Subject([hashed[2], beside[2]], lambda: read_examples(hashed[2])),
        "frame tokenizer": Subject(
            (root / "tokenizer").iterdir(),
            lambda: load_frame_tokenizer(root / "tokenizer").write(frames, frames[0]),
        ),
    }
    assert dump(config)
    return made


# --- flips ----------------------------------------------------------------------------------------


def flipped(path, rng):
    """Flip one bit in place; returns the whole content and the bit."""
    whole = path.read_bytes()
    bit = rng.randrange(len(whole) * 8)
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return whole, bit


FALLBACKS = ("checkpoints", "tinker progress")
"""Kinds that are not refused: the checkpoint before the damaged one is used, with a warning."""


def outcome(name, subject, path, caplog):
    """refused, fell back, same, silent or raw."""
    caplog.clear()
    try:
        read = subject.read()
    except TerrellaError as error:
        named = path.name.removesuffix(".sha256") in str(error) or name == "certified weights"
        return "refused" if named else f"not named: {error}"
    except Exception as error:  # noqa: BLE001  whatever it is, it must not come through
        return f"raw {type(error).__name__}: {error}"
    if _same(read, subject.expected):
        return "same"
    if name in FALLBACKS and path.name in caplog.text and path.parent.name in caplog.text:
        return "fell back"
    return "silent"


def _same(read, expected):
    return repr(read) == repr(expected) if isinstance(read, np.ndarray) else read == expected


def test_no_flipped_bit_is_read_in_silence(subjects, caplog):
    rng = random.Random(0)
    counts = collections.Counter()
    by_kind = collections.defaultdict(collections.Counter)
    names = list(subjects)
    for number in range(trials(commit=200, nightly=500)):
        name = names[number % len(names)]
        path = rng.choice(subjects[name].files)
        whole, bit = flipped(path, rng)
        found = outcome(name, subjects[name], path, caplog)
        path.write_bytes(whole)
        assert found in ("refused", "fell back", "same"), f"{name}: {path}, bit {bit}: {found}"
        counts[found] += 1
        by_kind[name][found] += 1
    for name, subject in subjects.items():
        assert _same(subject.read(), subject.expected), f"{name} was not restored"
    assert counts["same"] < sum(counts.values()) / 5, "most flips must be noticed"
    record(
        "bit_flips",
        {
            "flips": sum(counts.values()),
            **counts,
            "silent": 0,
            "raw_tracebacks": 0,
            "by_kind": {name: dict(found) for name, found in by_kind.items()},
        },
    )


def test_every_flipped_bit_of_a_part_is_refused(subjects):
    """Finding 5: Parquet alone notices most flips, but not all of them."""
    rng = random.Random(2)
    subject = subjects["parts"]
    for _ in range(trials(commit=60, nightly=300)):
        path = rng.choice(subject.files)
        whole, bit = flipped(path, rng)
        try:
            with pytest.raises(TerrellaError, match=path.name):
                subject.read()
                pytest.fail(f"{path.name} was read with bit {bit} flipped")
        finally:
            path.write_bytes(whole)


def test_a_damaged_store_is_collected_again_to_the_same_bytes(tmp_path, caplog):
    rng = random.Random(1)
    config = stored(tmp_path / "store")
    Collect(config).run(SilentProgress())
    whole = {path.name: path.read_bytes() for path in config.out.iterdir()}
    files = [path for path in sorted(config.out.iterdir()) if path.name != "spec.json"]
    for _ in range(trials(commit=6, nightly=60)):
        caplog.clear()
        path = rng.choice(files)
        flipped(path, rng)
        Collect(config).run(SilentProgress())
        assert {each.name: each.read_bytes() for each in config.out.iterdir()} == whole
        assert path.name in caplog.text


def test_a_model_that_was_exchanged_as_a_whole_is_noticed(tmp_path):
    """Its listing fits its files, but not the manifest of the run."""
    finished_run(tmp_path / "run")
    export_model(*load_model("tiny-0.3m", vocabulary=("up",), seed=1), tmp_path / "run/model")
    with pytest.raises(TerrellaError, match=r"model/files\.json"):
        check_model(tmp_path / "run/model")
    assert not read_certificate(tmp_path / "run").certified
