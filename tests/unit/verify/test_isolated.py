"""Isolation: whatever a verifier does, the run continues and the verdict says what happened."""

import gc
import importlib
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from terrella.core.config import dump, rebuild
from terrella.core.errors import ConfigError, VerifierError
from terrella.core.judge import judge
from terrella.core.types import Frames, State, Status, Text, Tree
from terrella.verify.isolated import Isolated
from terrella.verify.state import StateDiff
from terrella.verify.text import Exact

MODULE = "hostile_verifiers"


@pytest.fixture
def hostile(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module(MODULE)


@pytest.fixture
def isolated(hostile):
    config = Isolated.Config(
        inner=hostile.Hostile.Config(), timeout=0.5, memory_mb=256, imports=(MODULE,)
    )
    with config.build() as verifier:
        yield verifier


def ask(verifier, word):
    return verifier.verify(Text(word), Text("fine"), Text("before"))


def child_of(verifier):
    return int(ask(verifier, "fine").evidence.split()[0])


def test_verdicts_come_back_whole_and_from_one_other_process(isolated):
    verdict = ask(isolated, "fine")
    assert (
        verdict.value == 1.0
        and verdict.parts == {"half": 0.5}
        and verdict.evidence.endswith(" fine")
    )
    assert child_of(isolated) == child_of(isolated) != os.getpid()
    assert ask(isolated, "wrong\ud800\0☃").evidence.endswith("wrong\ud800\0☃")


@pytest.mark.parametrize(
    "observation", [Text("a\nb"), Tree("[1] link"), State.of({"ü": [1.5, None]})]
)
def test_it_judges_as_the_inner_verifier_does(observation):
    inner = StateDiff.Config() if isinstance(observation, State) else Exact.Config()
    with Isolated.Config(inner=inner).build() as verifier:
        for reply in (observation, type(observation)("{"), type(observation)("")):
            expected = inner.build().verify(reply, observation, observation)
            assert verifier.verify(reply, observation, observation) == expected


def test_frames_are_sent_and_received(isolated):
    frames = Frames.of(np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3))
    verdict = isolated.verify(frames, frames, frames)
    assert verdict.value == 1.0 and verdict.parts == {"mean": 11.5}


@pytest.mark.parametrize("word", ["sleep", "spin"])
def test_a_verifier_that_hangs_is_killed_and_masked_and_the_next_request_works(isolated, word):
    first = child_of(isolated)
    began = time.perf_counter()
    verdict = ask(isolated, word)
    assert time.perf_counter() - began < 15  # it would hang for 60, or forever
    assert (
        verdict.value is None and verdict.status is Status.TIMEOUT and "0.5 s" in verdict.evidence
    )
    assert not psutil.pid_exists(first)
    assert ask(isolated, "fine").value == 1.0


def test_processes_that_a_verifier_started_are_killed_with_it(hostile, tmp_path):
    note = tmp_path / "pid"
    inner = hostile.Hostile.Config(note=str(note))
    with Isolated.Config(inner=inner, timeout=1.0, imports=(MODULE,)).build() as verifier:
        assert ask(verifier, "spawn_and_sleep").status is Status.TIMEOUT
    grandchild = int(note.read_text())
    assert wait_until(lambda: not psutil.pid_exists(grandchild) or is_zombie(grandchild))


def wait_until(holds, seconds=3.0):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def is_zombie(pid):
    """Whether the process is dead but not reaped, as happens to orphans in some containers."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


FAULTS = {
    "stumble": "Hostile raised LookupError: no such thing",
    "leave": "Hostile raised SystemExit",
    "vanish": "failed (code 3)",
    "crash": "failed (code -6)",
    "hog": "Hostile raised MemoryError",
    "number": "Hostile returned float, not a Verdict",
    "nan": "Hostile raised ValueError",
}


@pytest.mark.parametrize("word", FAULTS)
def test_a_fault_is_an_error_with_its_name_never_a_zero(isolated, word, capfd):
    verdict = ask(isolated, word)
    assert verdict.value is None and verdict.status is Status.ERROR
    assert FAULTS[word] in verdict.evidence
    assert ask(isolated, "fine").value == 1.0


@pytest.mark.parametrize("word", ["chatter", "read"])
def test_printing_and_reading_cannot_reach_the_protocol(isolated, word, capfd):
    assert ask(isolated, word).value == 1.0
    assert ask(isolated, "fine").value == 1.0
    assert capfd.readouterr().out == ""  # what a verifier prints goes to the error stream


def test_what_the_verifier_breaks_is_masked_and_the_others_count(isolated, capfd):
    words = ("fine", "stumble", "sleep", "fine", "wrong", "vanish", "fine")
    verdicts = [ask(isolated, word) for word in words]
    assert [verdict.value for verdict in verdicts] == [1.0, None, None, 1.0, 0.0, None, 1.0]
    assert verdicts[2].status is Status.TIMEOUT


def test_nothing_is_left_after_close(hostile):
    before = set(psutil.Process().children(recursive=True))
    descriptors = psutil.Process().num_fds()
    verifier = Isolated.Config(inner=Exact.Config()).build()
    # Nothing is started before it is needed.
    assert set(psutil.Process().children(recursive=True)) == before
    ask(verifier, "fine")
    assert len(set(psutil.Process().children(recursive=True)) - before) == 1
    verifier.close()
    verifier.close()
    assert set(psutil.Process().children(recursive=True)) == before
    assert psutil.Process().num_fds() == descriptors
    assert ask(verifier, "fine").value == 1.0  # it starts a new child
    del verifier
    gc.collect()
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_child_ends_when_its_parent_is_killed():
    code = (
        "import os, signal\n"
        "from terrella.core.types import Text\n"
        "from terrella.verify.isolated import Isolated\n"
        "from terrella.verify.text import Exact\n"
        "verifier = Isolated.Config(inner=Exact.Config()).build()\n"
        "verifier.verify(Text('a'), Text('a'), Text('b'))\n"
        "print(verifier._child.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = psutil.Popen([sys.executable, "-c", code], stdout=-1, text=True)
    child = int(parent.communicate(timeout=30)[0])
    assert wait_until(lambda: not psutil.pid_exists(child) or is_zombie(child))


def test_threads_take_turns(isolated):
    answers = {}

    def work(name):
        answers[name] = [ask(isolated, f"{name}{i}").evidence.split(" ", 1)[1] for i in range(50)]

    threads = [threading.Thread(target=work, args=(f"t{k}x",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {f"t{k}x": [f"t{k}x{i}" for i in range(50)] for k in range(4)}


def test_a_forked_process_gets_its_own_child(isolated):
    own = child_of(isolated)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=lambda: answers.put(child_of(isolated)))
    process.start()
    process.join(30)
    assert process.exitcode == 0 and answers.get() != own
    assert child_of(isolated) == own


def test_the_config_survives_the_disk_and_refuses_invalid_limits(hostile):
    config = Isolated.Config(inner=hostile.Hostile.Config(note="x"), timeout=2.0, imports=(MODULE,))
    assert rebuild(dump(config)) == config
    for wrong in ({"timeout": 0.0}, {"memory_mb": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            config.replace(**wrong)


def test_a_verifier_that_cannot_be_built_in_the_child_says_why(hostile):
    unnamed = Isolated.Config(inner=hostile.Hostile.Config()).build()
    with pytest.raises(VerifierError, match=r"hostile_verifiers is not imported[\s\S]*`imports`"):
        ask(unnamed, "fine")
    broken = Isolated.Config(inner=hostile.Unbuildable.Config(), imports=(MODULE,)).build()
    masked = judge(broken, reply=Text("a"), truth=Text("a"), before=Text("b"))
    assert masked.status is Status.ERROR and "no licence" in masked.evidence


def test_the_overhead_is_small():
    with Isolated.Config(inner=Exact.Config()).build() as verifier:
        ask(verifier, "fine")
        rounds = []
        for _ in range(5):  # the best of five: other processes share this machine
            began = time.perf_counter()
            for _ in range(100):
                ask(verifier, "fine")
            rounds.append((time.perf_counter() - began) / 100)
    assert min(rounds) < 0.002
