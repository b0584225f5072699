"""The registry runs the battery, and lists the winning attacks when it refuses a verifier."""

import subprocess
import sys

import pytest

from terrella.core.config import Configurable
from terrella.core.errors import VerifierError
from terrella.core.types import Text, Verdict, show_text
from terrella.verify import registry
from terrella.verify.battery import Example
from terrella.verify.isolated import Isolated
from terrella.verify.text import Exact, LineGain

EXAMPLES = [Example(before=Text("a\nb"), truth=Text("a\nc"), others=(Text("a\nd"),))]


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


class Contains(Configurable):
    def verify(self, reply, truth, before):
        return Verdict.of(float(show_text(truth) in show_text(reply)))


class Mute(Configurable):
    pass


@pytest.mark.parametrize("name", ["exact", "line_gain", "state_diff"])
def test_built_in_verifiers_pass_the_battery_on_first_use(name, monkeypatch):
    verifier = registry.find(name).build()
    assert verifier.verify(Text("[1]"), Text("[1]"), Text("[2]")).value == 1.0
    monkeypatch.setattr(registry, "run_battery", None)  # it is not run a second time
    assert registry.find(name).build().config == verifier.config


def test_a_careless_verifier_is_not_registered_and_the_error_lists_the_wins():
    with pytest.raises(VerifierError, match=r"all_candidates scores 1\.000") as caught:
        registry.register("contains", Contains.Config(), EXAMPLES)
    assert "failed the exploit battery" in str(caught.value)
    known = r"no such verifier\n  -> known: exact, line_gain, .*state_diff"
    with pytest.raises(VerifierError, match=known):
        registry.find("contains")


def test_a_sound_verifier_is_found_under_its_name():
    registry.register("mine", LineGain.Config(), EXAMPLES)
    assert registry.find("mine") == LineGain.Config() and "mine" in registry.names()
    registry.register("mine", LineGain.Config(), EXAMPLES)  # registering it twice is fine
    with pytest.raises(VerifierError, match="taken"):
        registry.register("mine", Exact.Config(), EXAMPLES)


def test_what_cannot_be_tested_cannot_be_registered():
    unchanged = [Example(before=Text("a"), truth=Text("a"))]
    with pytest.raises(VerifierError, match="nothing was tested"):
        registry.register("lucky", Exact.Config(), unchanged)
    with pytest.raises(VerifierError, match="no examples"):
        registry.register("lucky", Exact.Config(), [])
    with pytest.raises(VerifierError, match="has no `verify"):
        registry.register("mute", Mute.Config(), EXAMPLES)


def test_an_isolated_verifier_is_registered_and_its_process_ended():
    started = []

    class Watched(Isolated):
        def close(self):
            started.append(self._child.process)
            super().close()

    registry.register("apart", Watched.Config(inner=Exact.Config()), EXAMPLES)
    assert [process.returncode for process in started] == [-9]


def test_importing_the_package_runs_and_loads_nothing():
    code = (
        "import sys, time\n"
        "began = time.process_time()\n"
        "import terrella.verify\n"
        "seconds = time.process_time() - began\n"
        "print(seconds, 'numpy' in sys.modules, 'terrella.verify.battery' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, numpy, battery = done.stdout.split()
    assert float(seconds) < 0.05 and (numpy, battery) == ("False", "False")
