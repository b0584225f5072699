"""WebRL from imitation to the manifest, and resumed after a kill at any file."""

import contextlib
import hashlib
import json
import shutil

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from tests.support.word_counter import WordCounter

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.codecs.web_prompt import WebCodec, WebCodecConfig
from terrella.core.integrity import folder_sha256
from terrella.core.run_folder import read_manifest
from terrella.data.replay import Replay
from terrella.data.row_journal import read_rows
from terrella.pipelines.webrl.curriculum import Curriculum
from terrella.pipelines.webrl.instructions import InstructionWriter
from terrella.pipelines.webrl.language_agent import LanguageAgentConfig
from terrella.pipelines.webrl.outcome_model import OutcomeModel
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban


def small(folder, **changes):
    rooms = {
        f"steps_{n}": Sokoban.Config(longest=n, max_steps=6, view="coordinates") for n in (1, 3)
    }
    plain = {
        "families": rooms,
        "demonstrations": 8,
        "imitation_updates": 6,
        "phases": 2,
        "phase_steps": 40,
        "slots": 8,
        "validation": 2,
        "test": 4,
        "width": 16,
        "layers": 1,
        "base_cache": folder / "bases",
        "out": folder / "run",
        "learner": WebRlUpdateConfig(epochs=1, critic_epochs=1, batch=16, beta=0.2),
        "practice": Curriculum.Config(tries=2),
        "replay": Replay.Config(least_chance=0.0, most_chance=1.0),
    }
    return WebRl.Config(**(plain | changes))


def digests(folder):
    """Hashes of all files, without the wall time."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".log":
            data = path.read_bytes()
            if path.name == "manifest.json":
                data = json.dumps(json.loads(data)["metrics"]).encode()
            hashes[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return hashes


def test_the_loop_runs_and_a_run_cut_at_any_file_ends_the_same(tmp_path):
    result = small(tmp_path / "whole").build().run(SilentProgress())
    assert len(result.phases) == 2 and result.test.n == 8 and result.rl.env_steps >= 80
    assert result.phases[1].replay.drawn > 0
    assert result.phases[1].curriculum.mean_value is not None
    first, second = (phase.critic_scores for phase in result.phases)
    assert first is None and second.n == result.phases[1].practice.attempts
    wanted = digests(tmp_path / "whole")
    order = sorted((tmp_path / "whole/run").rglob("*.*"), key=lambda path: path.stat().st_mtime_ns)
    for cut in range(
        1, len(order), 5
    ):  # a kill leaves the files that were whole by then, and a half one
        copy = tmp_path / f"cut-{cut}"
        for path in [*order[:cut], *(tmp_path / "whole/bases").rglob("*.*")]:
            target = copy / path.relative_to(tmp_path / "whole")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        (copy / "run" / "phase-01").mkdir(exist_ok=True)
        (copy / "run" / "phase-01" / "actor.safetensors.tmp").write_bytes(b"half")
        small(copy).build().run(SilentProgress())
        (copy / "run" / "phase-01" / "actor.safetensors.tmp").unlink(missing_ok=True)
        assert digests(copy) == wanted, cut


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "grpo", "group_size": 4, "curriculum": "fixed"},
        {
            "loss": "webrl_released",
            "outcome_judge": "model",
            "outcome_model": OutcomeModel.Config(attempts=40, epochs=1),
        },
        {"loss": "digirl", "curriculum": "fixed", "phases": 1},
        {
            "families": {f"goal_{n}": Counter.Config(goals=n) for n in (4, 9)},
            "phases": 1,
            "read_instruction": True,
        },
    ],
    ids=["grpo", "judged", "digirl", "another world"],
)
def test_every_arm_runs(tmp_path, changes):
    result = small(tmp_path, **changes).build().run(SilentProgress())
    assert result.test.n == 8 and result.phases[0].actor.loss is not None
    if changes.get("outcome_judge") == "model":
        assert result.outcome_model.n == 10 and result.phases[0].outcome_errors.n > 0


def test_new_instructions_are_practised_reported_and_written_once(tmp_path):
    """The second phase writes from failures; what is written survives a kill after it."""
    writer = InstructionWriter.Config(share=0.5)
    config = small(
        tmp_path,
        families={"count": WordCounter.Config(goals=9, max_steps=6)},
        practice=Curriculum.Config(tries=2, low=0.0, high=1.0, quota=1.0, instructions=writer),
    )
    result = config.build().run(SilentProgress())
    for phase in result.phases:
        assert phase.curriculum.written["admitted"] > 0 and phase.practice.unjudged == 0
    shown = (tmp_path / "run/instructions.md").read_text()
    assert (
        "## Phase 2" in shown and "| Count from " in shown and ("won" in shown or "lost" in shown)
    )
    assert "New instructions:" in (tmp_path / "run/curriculum.md").read_text()
    wanted = digests(tmp_path)
    for name in ("proposed", "values", "tasks", "critic", "actor"):
        (tmp_path / f"run/phase-02/{name}.json").unlink()
    (tmp_path / "run/manifest.json").unlink()
    config.build().run(SilentProgress())
    assert digests(tmp_path) == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome_judge": "model", "outcome_model": OutcomeModel.Config(attempts=4, epochs=1)},
        {"loss": "grpo", "group_size": 2, "curriculum": "fixed"},
    ],
    ids=["scoring", "writing"],
)
def test_a_language_model_runs_the_same_loop_and_resumes_to_the_same_bits(tmp_path, changes):
    """The last phase is done again from its attempts: same critic, same actor, same metrics."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    agent = LanguageAgentConfig(
        act="write" if changes.get("loss") == "grpo" else "score",
        codec=WebCodecConfig(form="compact", language="plain"),
        turn_tokens=4,
    )
    settings = {
        "model": "tiny-0.3m",
        "agent": agent,
        "families": {f"goal_{n}": Counter.Config(goals=n) for n in (4, 9)},
        "demonstrations": 2,
        "imitation_updates": 2,
        "phases": 1,
        "phase_steps": 6,
        "validation": 0,
        "test": 1,
        **changes,
    }
    config = small(tmp_path, **settings)
    result = config.build().run(SilentProgress())
    assert result.test.n == 2 and result.phases[0].actor.loss is not None
    wanted = digests(tmp_path)
    models = [name for name in wanted if name.endswith("model.safetensors")]
    assert "run/phase-01/actor/model.safetensors" in models
    for name in ("critic", "actor"):
        (tmp_path / f"run/phase-01/{name}.json").unlink()
        shutil.rmtree(tmp_path / f"run/phase-01/{name}", ignore_errors=True)
    (tmp_path / "run/manifest.json").unlink()
    config.build().run(SilentProgress())
    assert digests(tmp_path) == wanted
    if changes.get("outcome_judge") == "model":
        assert result.outcome_model.n == 1 and len(result.outcome_model.injected.by_claim) == 5


@pytest.mark.parametrize("act", ["score", "write"])
def test_a_finished_run_is_evaluated_with_the_prompt_and_the_actions_of_its_agent(
    tmp_path, act, monkeypatch
):
    """The command plays as the run's own test did: the same prompts, the same results."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    config = small(
        tmp_path,
        model="tiny-0.3m",
        agent=LanguageAgentConfig(
            act=act, codec=WebCodecConfig(form="compact", language="plain"), turn_tokens=6
        ),
        families={f"goal_{n}": Counter.Config(goals=n, max_steps=5) for n in (4, 9)},
        demonstrations=8,
        imitation_updates=30,
        learner=WebRlUpdateConfig(epochs=1, batch=16, imitation_learning_rate=1e-2),
        phases=1,
        phase_steps=6,
        validation=0,
        test=2,
    )
    asked, prompt = [], WebCodec.prompt
    monkeypatch.setattr(
        WebCodec, "prompt", lambda self, shown: asked.append(shown) or prompt(self, shown)
    )
    result = config.build().run(SilentProgress())
    own = set(asked)
    asked.clear()
    actor = config.out / "phase-01/actor"
    assert folder_sha256(config.out / "model") == folder_sha256(actor)
    for model, out in ((config.out, "evaluated"), (actor, "named")):
        terrella(
            *("evaluate", model, "counter", "--instances", "4", "--samples", "1"),
            *("--temperature", "0", "--set", "world.goals=4", "--out", tmp_path / out),
        )
        scores = read_manifest(tmp_path / out)
        played = scores.config["worlds"]["counter"]
        assert played["max_steps"] == 5  # what all families have in common
        assert scores.config["act"] == act and scores.config["turn_tokens"] == 6
        assert scores.metrics["worlds"]["counter"]["judged"] == [1] * 4
        assert scores.metrics["worlds"]["counter"]["usage"]["prompt_tokens"] > 0
    rows = read_rows(tmp_path / "evaluated" / "rows" / "counter.jsonl.gz")
    assert asked and all(row["replies"] and row["episode"] for row in rows)
    assert sum(row["value"] for row in rows[:2]) / 2 == result.test.families["goal_4"]
    assert own & set(asked), "the command asks what the run asked"


def terrella(*words):
    """The command line, in this process."""
    from terrella.cli import app

    app.cli(args=[str(word) for word in words])


class Kill(BaseException):
    """Stands for a kill: nothing catches it."""


def test_a_run_that_is_killed_in_play_ends_the_same_and_plays_only_what_is_missing(
    tmp_path, monkeypatch
):
    """In practice, in an evaluation, and while an outcome model's attempts are played."""
    changes = {"phases": 1, "outcome_judge": "model", "slots": 3, "demonstrations": 3}
    changes["outcome_model"] = OutcomeModel.Config(attempts=16, epochs=1)
    taken, left, step = [], [10**9], Sokoban.step

    def counted(self, action):
        left[0] -= 1
        if left[0] < 0:
            raise Kill
        taken.append(action)
        return step(self, action)

    monkeypatch.setattr(Sokoban, "step", counted)
    small(tmp_path / "whole", **changes).build().run(SilentProgress())
    wanted, steps = digests(tmp_path / "whole"), len(taken)
    taken.clear()
    config = small(tmp_path / "killed", **changes)
    lives, ended = 0, False
    while not ended and lives < 50:
        lives, left[0] = lives + 1, steps // 4
        with contextlib.suppress(Kill):
            config.build().run(SilentProgress())
            ended = True
    assert lives >= 4 and digests(tmp_path / "killed") == wanted
    # A kill costs the attempts that were being played: three, of at most six steps.
    assert len(taken) <= steps + lives * 3 * 6
