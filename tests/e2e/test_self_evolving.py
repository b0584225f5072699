"""WebRL's loop from imitation to the manifest, and after kills at any file."""

import hashlib
import json

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.data.replay import Replay
from terrella.engines.pointer.learn import Learner
from terrella.stages.curriculum import Curriculum
from terrella.stages.outcome_model import OutcomeModel
from terrella.stages.self_evolving import SelfEvolving
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban


class Quiet:
    def phase(self, name, total): ...
    def advance(self, done, **figures): ...


def small(folder, **changes):
    rooms = {f"steps_{n}": Sokoban.Config(longest=n, max_steps=6, view="coordinates") for n in (1, 3)}
    plain = {
        "families": rooms, "demonstrations": 8, "imitation_updates": 6, "phases": 2, "phase_steps": 40, "slots": 8,
        "glance": 2, "evaluate": 4, "width": 16, "layers": 1, "bases": folder / "bases", "out": folder / "run",
        "learner": Learner.Config(epochs=1, critic_epochs=1, batch=16, beta=0.2),
        "practice": Curriculum.Config(tries=2), "replay": Replay.Config(least_chance=0.0, most_chance=1.0),
    }  # fmt: skip
    return SelfEvolving.Config(**(plain | changes))


def digests(folder):
    """Everything but how long it took."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.name == "manifest.json":
                whole = {k: v for k, v in json.loads(data).items() if k not in ("seconds", "config")}
                data = json.dumps(whole).encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def test_the_loop_runs_and_a_run_cut_at_any_file_ends_the_same(tmp_path):
    found = small(tmp_path / "whole").build().run(Quiet())
    assert len(found["phases"]) == 2 and found["test"]["n"] == 8 and found["rl"]["world_steps"] >= 80
    assert found["phases"][1]["replay"]["drawn"] > 0 and found["phases"][1]["curriculum"]["mean_value"] is not None
    wanted = digests(tmp_path / "whole")
    order = sorted((tmp_path / "whole/run").rglob("*.*"), key=lambda path: path.stat().st_mtime_ns)
    for cut in range(1, len(order), 5):  # a kill leaves the files that were whole by then, and a half one
        copy = tmp_path / f"cut-{cut}"
        for path in [*order[:cut], *(tmp_path / "whole/bases").rglob("*.*")]:
            target = copy / path.relative_to(tmp_path / "whole")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        (copy / "run" / "phase-01").mkdir(exist_ok=True)
        (copy / "run" / "phase-01" / "actor.safetensors.tmp").write_bytes(b"half")
        small(copy).build().run(Quiet())
        (copy / "run" / "phase-01" / "actor.safetensors.tmp").unlink(missing_ok=True)
        assert digests(copy) == wanted, cut


@pytest.mark.parametrize("changes", [
    {"loss": "grpo", "group_size": 4, "curriculum": "fixed"},
    {"loss": "webrl_released", "judge": "model", "outcome_model": OutcomeModel.Config(attempts=40, epochs=1)},
    {"loss": "digirl", "curriculum": "fixed", "phases": 1},
    {"families": {f"goal_{n}": Counter.Config(goals=n) for n in (4, 9)}, "phases": 1, "read_instruction": True},
], ids=["grpo", "judged", "digirl", "another world"])  # fmt: skip
def test_every_arm_runs(tmp_path, changes):
    found = small(tmp_path, **changes).build().run(Quiet())
    assert found["test"]["n"] == 8 and "actor_loss" in found["phases"][0]
    if changes.get("judge") == "model":
        assert found["judge"]["n"] == 10 and found["phases"][0]["judge_errors"]["n"] > 0
