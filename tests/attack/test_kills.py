"""Kills, full and broken disks, two writers, clocks: nothing lost, nothing doubled, same bytes.

Every life is a fork that is killed after the n-th write, fsync or rename, or at a random moment, or
whose n-th write fails. The run is then resumed; what it leaves must be what an undisturbed run
leaves. At level `nightly` all pipelines are killed (`benchmarks/kills.py` has them).
"""

import hashlib
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time

import pytest
from tests.attack.campaign import LEVEL, ROOT, record, trials
from tests.support.disk_faults import DiskFaults, shift_clock

from terrella.cli.failures import FAILED, reported_to_user
from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forks")
FORK = multiprocessing.get_context("fork")
DAY = 86_400
LIFE_SECONDS = 600
KINDS = ("kills_at_operations", "kills_at_random", "disk_errors", "two_writers", "clocks")
FOUND = dict.fromkeys(KINDS, 0)
"""How often each attack was made, over all tests of this file."""


@pytest.fixture(scope="module", autouse=True)
def recorded(request):
    """A life that lost, doubled or changed something has failed its test."""
    before = request.session.testsfailed
    yield
    failed = request.session.testsfailed - before
    record("kills", {**FOUND, "kills": sum(map(FOUND.get, KINDS[:2])), "failed_tests": failed})


# --- lives ----------------------------------------------------------------------------------------


class Life:
    """A fork that runs a pipeline from its config as the command line would."""

    def __init__(self, config, *, fault="none", at=0, clock=0):
        self.log = config.out.with_name(f"{config.out.name}.log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.counted = FORK.Value("i", 0)
        self.process = FORK.Process(target=self._live, args=(config, fault, at, clock))
        self.process.start()

    def _live(self, config, fault, at, clock):
        handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)
        shift_clock(clock)
        faults = DiskFaults(config.out.parent, fault=fault, at=at).install()
        with reported_to_user():
            config.build().run(SilentProgress())
        self.counted.value = faults.count

    def end(self, after=LIFE_SECONDS):
        """Wait, kill it if it is still alive then, and return its exit code."""
        self.process.join(after)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode

    def finish(self):
        assert self.end() == 0, self.text()
        return self

    @property
    def operations(self):
        return self.counted.value

    def text(self):
        return self.log.read_text()


def content(folder):
    """Every file by name and hash; logs and scratch files are not results."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".tmp", ".log")
    }


def little_store(out, transitions=80):
    return Collect.Config(
        world=Counter.Config(),
        policy=Random.Config(),
        out=out / "run",
        transitions=transitions,
        chunk_episodes=6,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed collection: its content, and its number of operations."""
    config = little_store(tmp_path_factory.mktemp("whole"))
    life = Life(config).finish()
    assert life.operations > 12
    return content(config.out), life.operations


def check_store(config, expected):
    """Whole, the same bytes, and every episode exactly once."""
    assert content(config.out) == expected
    opened = EpisodeStore.open(config.out)
    opened.verify()
    assert [episode.noise_seed for episode in opened.episodes()] == list(range(1, len(opened) + 1))


# --- collect --------------------------------------------------------------------------------------


def test_a_collection_can_be_killed_after_every_operation(tmp_path, whole):
    expected, operations = whole
    for number in range(1, operations + 1):
        config = little_store(tmp_path / str(number))
        assert Life(config, fault="kill", at=number).end() == -signal.SIGKILL
        parts = {path.name for path in config.out.glob("*.parquet")}
        Life(config).finish()
        assert parts <= {path.name for path in config.out.glob("*.parquet")}, "a part was lost"
        check_store(config, expected)
        FOUND["kills_at_operations"] += 1
        shutil.rmtree(config.out.parent)


def test_a_collection_can_be_killed_at_random_moments(tmp_path):
    moments = random.Random(0)
    began = time.monotonic()
    reference = little_store(tmp_path / "reference", 1000)
    Life(reference).finish()
    seconds = time.monotonic() - began
    kills = number = 0
    while kills < trials(commit=4, nightly=80):
        number += 1
        config = little_store(tmp_path / str(number), 1000)
        for _ in range(3):
            kills += Life(config).end(moments.uniform(0, seconds)) == -signal.SIGKILL
        Life(config).finish()
        check_store(config, content(reference.out))
        shutil.rmtree(config.out.parent)
    FOUND["kills_at_random"] += kills


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_at_any_write_is_named_and_the_run_resumes(tmp_path, whole, fault):
    expected, operations = whole
    for number in range(1, operations + 1, trials(commit=3, nightly=1)):
        config = little_store(tmp_path / str(number))
        life = Life(config, fault=fault, at=number)
        assert life.end() == FAILED and "Traceback" not in life.text(), life.text()
        assert str(config.out) in life.text(), "the error does not say where"
        Life(config).finish()
        check_store(config, expected)
        FOUND["disk_errors"] += 1
        shutil.rmtree(config.out.parent)


def test_of_two_writers_one_is_refused_and_the_other_is_not_disturbed(tmp_path):
    reference = little_store(tmp_path / "reference", 600)
    Life(reference).finish()
    for number in range(trials(commit=2, nightly=20)):
        config = little_store(tmp_path / str(number), 600)
        first = Life(config)
        while not config.out.exists():
            time.sleep(0.001)
        second = Life(config.replace(workers=0))
        codes = sorted((first.end(), second.end()))
        # Either may come first; one that comes after the end finds a whole store.
        assert codes in ([0, FAILED], [0, 0]), first.text()
        check_store(config, content(reference.out))
        FOUND["two_writers"] += 1
        shutil.rmtree(config.out.parent)


def little_rlvr(out):
    """Seconds of RLVR, with parts, a warm model and checkpoints."""
    pytest.importorskip("trl")
    import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

    from terrella.engines.configs import RlvrConfig, SftConfig
    from terrella.pipelines.rlvr import Rlvr

    return Rlvr.Config(
        world=Counter.Config(goals=3, max_steps=3),
        turn_tokens=8,
        max_turns=2,
        warmup_examples=32,
        evaluate_on=2,
        warmup=SftConfig(batch_size=8),
        rlvr=RlvrConfig(steps=2, groups=2, group_size=2, save_every=1),
        out=out / "run",
    )


def test_of_two_rlvr_runs_in_one_folder_one_is_refused(tmp_path):
    """Finding 14: both ran interleaved in the same folder and ended with success."""
    config = little_rlvr(tmp_path)
    first = Life(config)
    while not (config.out / "spec.json").exists():
        assert first.process.is_alive(), first.text()
        time.sleep(0.001)
    os.kill(first.process.pid, signal.SIGSTOP)  # it holds the folder, however slow this machine is
    log = first.log.rename(tmp_path / "first.log")  # the second life writes its own
    second = Life(config)
    code = second.end()
    os.kill(first.process.pid, signal.SIGCONT)
    assert (code, first.end()) == (FAILED, 0), second.text() + log.read_text()
    assert "another process is writing here" in second.text()
    FOUND["two_writers"] += 1


@pytest.mark.parametrize("clocks", [(DAY, -DAY), (-DAY, DAY), (0, -DAY), (-DAY, 0)])
def test_a_clock_that_jumps_a_day_changes_nothing(tmp_path, whole, clocks):
    expected, operations = whole
    config = little_store(tmp_path / "clock")
    life = Life(config, fault="kill", at=operations // 2, clock=clocks[0])
    assert life.end() == -signal.SIGKILL
    life = Life(config, clock=clocks[1])
    life.finish()
    check_store(config, expected)
    FOUND["clocks"] += 1


# --- pipelines ------------------------------------------------------------------------------------


def little_practice(out):
    """WebRL on counters: parts, networks and a shared base, in a second."""
    pytest.importorskip("torch")
    from terrella.algos.webrl_config import WebRlUpdateConfig
    from terrella.pipelines.webrl.pipeline import WebRl

    return WebRl.Config(
        families={"goal_4": Counter.Config(goals=4)},
        demonstrations=2,
        imitation_updates=1,
        phases=2,
        phase_steps=8,
        slots=4,
        validation=1,
        test=2,
        width=8,
        layers=1,
        base_cache=out / "bases",
        out=out / "run",
        learner=WebRlUpdateConfig(epochs=1, critic_epochs=1, batch=8),
        curriculum="fixed",
    )


def results(folder):
    """What a run promises to be the same: all files but the manifest's wall time."""
    found = content(folder)
    found.pop("run/manifest.json", None)
    return found


@pytest.mark.timeout(3600)
def test_practice_can_be_killed_after_any_operation_and_survives_a_broken_disk(tmp_path):
    little_practice(tmp_path / "warm").build().run(SilentProgress())  # imports, for all forks
    reference = little_practice(tmp_path / "reference")
    operations = Life(reference).finish().operations
    expected = results(tmp_path / "reference")
    chosen = random.Random(0).sample(range(1, operations + 1), trials(commit=2, nightly=40))
    for number in chosen:
        fault = ("kill", "ENOSPC", "EIO")[number % 3]
        config = little_practice(tmp_path / str(number))
        life = Life(config, fault=fault, at=number)
        assert life.end() == (-signal.SIGKILL if fault == "kill" else FAILED), life.text()
        assert "Traceback" not in life.text(), life.text()
        Life(config, clock=random.Random(number).choice([-DAY, 0, DAY])).finish()
        assert results(tmp_path / str(number)) == expected, f"{fault} at {number}"
        FOUND["kills_at_operations" if fault == "kill" else "disk_errors"] += 1


@pytest.mark.skipif(LEVEL == "commit", reason="minutes: nightly")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "name", ["rlvr", "spa", "webrl", "text_games", "video", "world_model", "page_model"]
)
def test_every_pipeline_can_be_killed_anywhere(tmp_path, name):
    """Half of the kills come after operations on the disk, half at random moments."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    kills = importlib.import_module("kills")
    if name == "page_model":
        pytest.importorskip("playwright")
        kills.collect_pages()
    make_config, _ = kills.PIPELINES[name]
    rng = random.Random(name)
    reference = make_config(tmp_path / "reference")
    began = time.monotonic()
    operations = Life(reference).finish().operations
    seconds = time.monotonic() - began
    expected = kills.digest(reference.out)
    used = folders = 0
    while used < PIPELINE_KILLS:
        folders += 1
        config = make_config(tmp_path / f"killed-{folders}")
        for _ in range(kills.KILLS_PER_FOLDER):
            if used % 2:
                life = Life(config, fault="kill", at=rng.randint(1, operations))
                killed = life.end() == -signal.SIGKILL
            else:
                life = Life(config)
                killed = life.end(rng.uniform(0, seconds)) == -signal.SIGKILL
            assert killed or life.process.exitcode == 0, life.text()
            FOUND["kills_at_operations" if used % 2 else "kills_at_random"] += killed
            used += killed
        Life(config).finish()
        assert kills.digest(config.out) == expected, f"{name}, folder {folders}"


PIPELINE_KILLS = int(os.environ.get("TERRELLA_PIPELINE_KILLS", "15"))
"""Of each pipeline at level nightly."""
