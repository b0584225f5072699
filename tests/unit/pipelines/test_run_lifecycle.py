"""A folder belongs to one run of one config, with one writer."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.made_models import certified_model_of

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked, write_json_lines
from terrella.core.integrity import read_sealed
from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.trl.sft_trainer import SftTrainer
from terrella.evals.agents import Evaluate
from terrella.evals.results import TestScores
from terrella.pipelines import world_model
from terrella.pipelines.rl_part import RlPart
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.spa import pipeline as spa
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.video.pipeline import ClipMetrics, VideoModel
from terrella.pipelines.video.tokenizer import (
    ReconstructionMetrics,
    TokenizerResult,
    TrainTokenizer,
)
from terrella.pipelines.web import page_model
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.webrl.context import base_spec
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.world_model import TrainWorldModel
from terrella.recipes import all_recipes
from terrella.show.progress import SilentProgress
from terrella.trust.certificate import Certificate
from terrella.trust.truth import TrueModel
from terrella.verify.frames import FrameDistance
from terrella.world_models import imagine, imagine_gate
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.counter import Counter
from terrella.worlds.tabletop import Tabletop

RANKS = Path(__file__).parents[2] / "support" / "rlvr_ranks.py"


class Nothing:
    """Stands for a model and its rollout where only the lifecycle is tested."""

    def __getattr__(self, name):
        return self

    def __call__(self, *_, **__):
        return self


# --- a finished run of another config is not this one's result ------------------------------------


def quick_spa(monkeypatch, out, **changes):
    """An arm whose parts cost nothing; returns its config and the list of its evaluations."""
    evaluated = []

    def evaluate(config, *_):
        evaluated.append(config.instances)
        return TestScores(successes=[1], samples=1, passes={"1": Metric.of([1.0])})

    monkeypatch.setattr(Spa, "format_model", lambda self, run: out)
    monkeypatch.setattr(Spa, "playing", lambda *_: contextlib.nullcontext([Nothing()] * 3))
    monkeypatch.setattr(spa, "evaluate_agent", evaluate)
    settings = {
        "world": Counter.Config(),
        "rlvr": RlvrConfig(steps=0),
        "self_play": SelfPlay.Config(trajectories=0),
        "validation": Evaluate.Config(instances=0),
        "out": out,
        "base_cache": out / "bases",
    }
    return Spa.Config(**{**settings, **changes}), evaluated


def test_a_finished_arm_is_not_the_result_of_another_config(tmp_path, monkeypatch):
    config, evaluated = quick_spa(monkeypatch, tmp_path / "arm")
    first = Spa(config).run(SilentProgress())
    again = Spa(config.replace(base_cache=tmp_path / "elsewhere")).run(SilentProgress())
    assert again == first and len(evaluated) == 1  # read back, not evaluated again
    with pytest.raises(StoreError, match=r"max_turns is 5 there, 3 here"):
        Spa(config.replace(max_turns=3)).run(SilentProgress())


def small_practice(folder, **changes):
    plain = {
        "families": {"goal_4": Counter.Config(goals=4)},
        "demonstrations": 2,
        "imitation_updates": 1,
        "phases": 1,
        "phase_steps": 8,
        "slots": 4,
        "validation": 1,
        "test": 2,
        "width": 8,
        "layers": 1,
        "base_cache": folder / "bases",
        "out": folder / "run",
        "learner": WebRlUpdateConfig(epochs=1, critic_epochs=1, batch=8),
        "curriculum": "fixed",
    }
    return WebRl.Config(**(plain | changes))


def test_a_shared_base_knows_all_that_it_depends_on(tmp_path, monkeypatch):
    """Otherwise an arm silently uses the base of whichever arm ran first."""
    arm, _ = quick_spa(monkeypatch, tmp_path)
    changed = [arm.replace(thinking="off"), arm.replace(format_examples=3)]
    names = {Spa(each).base_name() for each in (arm, *changed)}
    assert len(names) == 3  # each has a base of its own
    assert Spa(arm.replace(turn_tokens=9)).base_spec() == Spa(arm).base_spec()

    practice = small_practice(tmp_path)
    for name, value in {"max_norm": 0.5, "doubt": 0.1, "learning_rate": 1e-4, "batch": 4}.items():
        other = practice.replace(learner=practice.learner.replace(**{name: value}))
        assert base_spec(other) != base_spec(practice), name

    games = TextGameModel.Config(world=ByteSized32.Config(), turn_tokens=48)
    for rounds, depends in ((1, False), (2, True)):
        one, other = (
            TextGameModel(games.replace(sft_rounds=rounds, turn_tokens=tokens)).base_spec()
            for tokens in (48, 32)
        )
        assert (one != other) is depends


def test_finished_practice_is_not_the_result_of_another_config_and_can_be_continued(tmp_path):
    config = small_practice(tmp_path)
    first = WebRl(config).run(SilentProgress())
    manifest = (config.out / "manifest.json").read_text()
    assert str(tmp_path) not in manifest  # it may be uploaded
    elsewhere = config.replace(base_cache=tmp_path / "elsewhere")
    assert WebRl(elsewhere).run(SilentProgress()) == first
    assert (config.out / "manifest.json").read_text() == manifest
    with pytest.raises(StoreError, match=r"phase_steps is 8 there, 9 here"):
        WebRl(config.replace(phase_steps=9)).run(SilentProgress())
    more = WebRl(config.replace(phases=2)).run(SilentProgress())
    assert len(more.phases) == 2 and more.phases[0] == first.phases[0]


def test_a_damaged_phase_is_practised_again_from_the_one_before(tmp_path, caplog):
    config = small_practice(tmp_path, phases=2)
    first = WebRl(config).run(SilentProgress())
    weights = (config.out / "phase-02/actor.safetensors").read_bytes()
    for name in ("phase-02/actor.safetensors", "phase-01/attempts.jsonl", "phase-01/critic.json"):
        (config.out / "manifest.json").unlink()
        path = config.out / name
        data = path.read_bytes()
        path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
        assert WebRl(config).run(SilentProgress()) == first
        assert f"{path.name} is damaged" in caplog.text
        assert (config.out / "phase-02/actor.safetensors").read_bytes() == weights
    base = tmp_path / "bases/seed-0/actor.safetensors"
    base.write_bytes(base.read_bytes()[:-1] + b"x")
    (config.out / "manifest.json").unlink()
    assert WebRl(config).run(SilentProgress()) == first


def small_rlvr(out, **changes):
    plain = {
        "world": Counter.Config(goals=3, max_steps=3),
        "ask": "action",
        "turn_tokens": 4,
        "max_turns": 2,
        "warmup_examples": 32,
        "evaluate_on": 2,
        "warmup": SftConfig(batch_size=8),
        "rlvr": RlvrConfig(steps=1, groups=2, group_size=2),
        "out": out,
    }
    return Rlvr.Config(**(plain | changes))


def test_a_finished_rlvr_run_is_read_and_not_trained_again(tmp_path, monkeypatch):
    config = small_rlvr(tmp_path / "run")
    first = Rlvr(config).run(SilentProgress())
    monkeypatch.setattr(Rlvr, "warm_model", lambda *_: pytest.fail("it was trained again"))
    again = Rlvr(config.replace(record_every=5)).run(SilentProgress())
    assert again == first
    with pytest.raises(StoreError, match=r"evaluate_on is 2 there, 3 here"):
        Rlvr(config.replace(evaluate_on=3)).run(SilentProgress())


def behind_a_gate(folder, monkeypatch, make_model=TrueModel):
    """A counter whose exact model is trusted for two steps."""
    counter = Counter.Config(goals=3, max_steps=3)
    sections = {
        "certified": True,
        "reasons": [],
        "safe_horizon": 2,
        "risk": {
            "threshold": 1.0,
            "model": {"weights": [-3.0, 0, 0, 0, 0], "quantile": 0.5, "level": 0.9},
        },
        "about": {"step_error": 0.03},
    }
    model = certified_model_of(make_model(counter.build()), Certificate(sections))
    monkeypatch.setattr(imagine, "load_certified_model", lambda *_, **__: model)
    monkeypatch.setattr(imagine_gate, "cached_certificate", lambda *_: model.certificate)
    return imagine_gate.GatedWorld.Config(world=counter, folder=folder, max_steps=3)


def test_a_gated_run_reports_real_and_imagined_steps_and_is_validated_in_reality(
    tmp_path, monkeypatch
):
    config = small_rlvr(tmp_path / "run", world=behind_a_gate(tmp_path / "model", monkeypatch))
    result = Rlvr(config).run(SilentProgress())
    counts = result.gates["gated"]
    # The warm-up alone is 32 episodes. Of their steps at most two each are imagined.
    assert counts["imagined"] > 32 and counts["real_steps"] >= counts["real"] > 0
    assert counts["refused_too_deep"] == counts["real"]
    assert 0 < result.validation_steps <= 2 * 2 * 2 + 2 * 2 * 3
    metrics = json.loads((config.out / "manifest.json").read_text())["metrics"]
    assert metrics["gates"] == result.gates
    shown = dict(Rlvr(config).summary(result))
    assert f"{counts['imagined']:,} imagined" in shown["trained behind the gate of gated"]
    (saved,) = (config.out / "gates/gated").glob("*.json")  # for the next session
    assert read_sealed(saved)["ledger"] == counts


def test_a_world_of_frames_is_refused_before_the_run_has_a_folder(tmp_path):
    config = small_rlvr(tmp_path / "run", world=Tabletop.Config())
    with pytest.raises(ConfigError, match="tabletop: shows frames, and this model reads text"):
        Rlvr(config).run(SilentProgress())
    assert not config.out.exists()


def test_the_warm_up_behind_a_gate_asks_its_model_for_many_episodes_at_once(tmp_path, monkeypatch):
    asked = []

    class Counting(TrueModel):
        def predict(self, queries):
            asked.append(len(queries))
            return super().predict(queries)

    world = behind_a_gate(tmp_path / "model", monkeypatch, Counting)
    Rlvr(small_rlvr(tmp_path / "run", world=world)).run(SilentProgress())
    assert max(asked) == 32  # its episodes


TABLE = Tabletop.Config(size=TokenizerTrainConfig().tokenizer.size)


def video(out, **changes):
    videos = TrainTokenizer.Config(worlds=(TABLE,), out=out / "videos")
    return VideoModel.Config(world=TABLE, videos=videos, out=out / "model").replace(**changes)


def test_a_finished_video_model_is_not_the_result_of_other_videos(tmp_path, monkeypatch):
    error = ReconstructionMetrics(metrics={}, videos=0, codes=0, codes_used=0)
    tokenizer = TokenizerResult(videos=0, frames=0, held_out=error)
    monkeypatch.setattr(TrainTokenizer, "run", lambda self, progress: tokenizer)
    nothing = ClipMetrics(means={}, clips={}, by_depth=[])
    parts = {"codec": None, "fit": [], "evaluate": nothing, "rl_finetune": []}
    for name, value in parts.items():
        monkeypatch.setattr(VideoModel, name, lambda self, *_, value=value: value)
    config = video(tmp_path)
    VideoModel(config).run(SilentProgress())
    moved = config.videos.replace(out=tmp_path / "moved", workers=3)
    VideoModel(config.replace(videos=moved)).run(SilentProgress())
    with pytest.raises(StoreError, match=r"videos\.episodes is 100 there, 7 here"):
        VideoModel(config.replace(videos=config.videos.replace(episodes=7))).run(SilentProgress())


# --- one writer -----------------------------------------------------------------------------------


def began(*_, **__):
    pytest.fail("it began in a folder that another process writes")


def stages(out):
    return {
        "rlvr": small_rlvr(out),
        "train_world_model": TrainWorldModel.Config(world=Counter.Config(), out=out),
        "game_model": TextGameModel.Config(world=ByteSized32.Config(), out=out),
        "page_model": PageModel.Config(
            world=Counter.Config(), train=out / "a", test=out / "b", out=out
        ),
        "video_model": video(out.parent).replace(out=out),
    }


@pytest.mark.parametrize(
    "name", ["rlvr", "train_world_model", "game_model", "page_model", "video_model"]
)
def test_two_processes_do_not_train_in_one_folder(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Rlvr, "warm_model", began)
    monkeypatch.setattr(TrainWorldModel, "collect", began)
    monkeypatch.setattr(TextGameModel, "base", began)
    monkeypatch.setattr(page_model.PageModel, "preflight", lambda self: None)  # there are no pages
    monkeypatch.setattr(page_model.PageModel, "start", began)
    monkeypatch.setattr(TrainTokenizer, "run", began)
    config = stages(tmp_path / "run")[name]
    with locked(config.out), pytest.raises(StoreError, match="another process is writing here"):
        config.build().run(SilentProgress())


def test_videos_that_runs_share_are_made_by_one_and_waited_for_by_the_others(tmp_path, monkeypatch):
    freed, begun = [], []
    monkeypatch.setattr(TrainTokenizer, "collect", lambda *_: begun.append(time.monotonic()))
    videos = TrainTokenizer(TrainTokenizer.Config(worlds=(TABLE,), out=tmp_path / "videos"))

    def late():
        with contextlib.suppress(Exception):  # it stops where videos would be needed
            videos.run(SilentProgress())

    with locked(videos.config.out):
        other = threading.Thread(target=late)
        other.start()
        time.sleep(0.5)
        freed.append(time.monotonic())
    other.join(10)
    assert begun and begun[0] >= freed[0]


def test_only_the_first_process_of_a_run_takes_the_lock_and_the_others_come_in_after_it(
    tmp_path, monkeypatch
):
    config = Counter.Config(goals=4)
    with RunFolder(tmp_path / "run", config, progress=SilentProgress()) as first:
        assert first.is_main
        monkeypatch.setenv("RANK", "1")
        # The same folder, held by the first process: no error, no waiting.
        with RunFolder(tmp_path / "run", config, progress=SilentProgress()) as second:
            assert not second.is_main
            assert first.part("a", int, lambda: 1) == second.part("a", int, lambda: 2) == 1
    monkeypatch.setenv("RANK", "0")
    changed = RunFolder(tmp_path / "run", Counter.Config(goals=5), progress=SilentProgress())
    with pytest.raises(StoreError, match="goals is 4 there, 5 here"), changed:
        pytest.fail("another spec was accepted")
    with locked(tmp_path / "run"):  # a refused run does not keep the lock
        pass


def test_a_run_that_is_refused_leaves_no_folder_for_the_next_try_to_meet(tmp_path):
    config = Rlvr.Config(
        world=Counter.Config(), rlvr=RlvrConfig(group_size=1), out=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match="group_size=2 or more"):
        Rlvr(config).run(SilentProgress())
    assert not any(tmp_path.iterdir())


@pytest.mark.timeout(120)
def test_two_processes_of_one_run_warm_up_and_train_together(tmp_path):
    """Writes are slow there, so that both processes are in the middle of one together."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, *torchrun, str(RANKS), str(tmp_path / "run")]
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"run.{rank}.json").read_text()) for rank in range(2))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (
        first["before"] == second["before"] == manifest["metrics"]["before"]
        and first["after"] == manifest["metrics"]["after"]
    )


# --- every knob does something --------------------------------------------------------------------


def seeds_in(config, path=""):
    """Every nested config with a seed of its own, by where it is."""
    if isinstance(config, Configurable.Config):
        parts = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
        if "seed" in parts:
            yield path, getattr(type(config), "owner", type(config)).__name__
    else:
        parts = config if isinstance(config, Mapping) else {}
        parts = dict(enumerate(config)) if isinstance(config, tuple | list) else parts
    for name, value in parts.items():
        yield from seeds_in(value, f"{path}.{name}".lstrip("."))


STAGES = {
    "Rlvr",
    "Spa",
    "WebRl",
    "TextGameModel",
    "PageModel",
    "VideoModel",
    "TrainWorldModel",
    "WebPolicy",
}
OTHER_QUESTIONS = {"Evaluate", "TrainTokenizer", "FrameTokenizerConfig"}
"""Their seeds are used, for something else: test instances, videos, weights of a tokenizer."""


@pytest.mark.parametrize("name", sorted(all_recipes()))
def test_a_recipe_has_one_seed(name):
    seconds = [
        found
        for found in seeds_in(all_recipes()[name]())
        if found[1] not in STAGES | OTHER_QUESTIONS
    ]
    assert seconds == []


@pytest.mark.parametrize("config", [RlvrConfig, SftConfig, TokenizerTrainConfig])
def test_settings_have_no_seed_that_a_pipeline_would_overwrite(config):
    assert "seed" not in {one.name for one in dataclasses.fields(config)}


def warm_up_order(out, monkeypatch, **changes):
    """The rows of the warm-up, in the order in which they are fitted."""
    order, step = [], SftTrainer.training_step

    def listening(self, model, inputs, *rest):
        order.extend(item["index"] for item in inputs)
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(SftTrainer, "training_step", listening)
    config = small_rlvr(out, **changes)
    pipeline = Rlvr(config)
    with (
        RunFolder(config.out, config, progress=SilentProgress()) as run,
        pipeline.resources(run),
    ):
        pipeline.warm_model(run)
    monkeypatch.undo()
    return order


def test_the_seed_decides_the_order_of_the_warm_up(tmp_path, monkeypatch):
    orders = [
        warm_up_order(tmp_path / str(n), monkeypatch, seed=seed) for n, seed in enumerate((0, 0, 1))
    ]
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(32))
    assert orders[2] != orders[0] and sorted(orders[2]) == list(range(32))


def test_a_world_model_is_finetuned_for_as_many_steps_as_its_rlvr_says(tmp_path, monkeypatch):
    asked = []

    def finetune(run, engine, start, source, config, **_):
        asked.append(config)
        metric = Metric.of([1.0])
        write_json_lines(run / "curve.jsonl", [{"reward": 1.0}] * config.steps)
        return RlPart(before=metric, after=metric, reward=[])

    monkeypatch.setattr(world_model, "rl_finetune", finetune)
    monkeypatch.setattr(TrainWorldModel, "fit", lambda *_: None)
    monkeypatch.setattr(TrainWorldModel, "export", lambda *_: None)
    config = TrainWorldModel.Config(world=Counter.Config(), transitions=20, out=tmp_path / "fit")
    result = TrainWorldModel(config).run(SilentProgress())
    assert config.rlvr.steps == 0 and asked == []
    assert result.rl is None and result.real_steps.rlvr == 0 and result.real_steps.data >= 20
    config = config.replace(rlvr=config.rlvr.replace(steps=3, groups=2), out=tmp_path / "rl")
    result = TrainWorldModel(config).run(SilentProgress())
    assert result.real_steps.rlvr == 3 * 2 * config.world.max_steps
    assert asked[0].steps == 3 and not hasattr(config, "rlvr_steps")


def test_the_distance_of_a_video_model_is_its_worlds(tmp_path, monkeypatch):
    distance = FrameDistance.Config(mae_weight=0.25)
    config = video(tmp_path, world=Tabletop.Config(distance=distance))
    assert "distance" not in {one.name for one in dataclasses.fields(config)}
    made = VideoModel(config).rollout_config().world.build()
    assert made.verifier.config == distance
    measuring = VideoModel(config).rollout_config(metrics=True).world.build()
    assert measuring.verifier.config == distance.replace(metrics=True)
