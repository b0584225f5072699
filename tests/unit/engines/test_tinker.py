"""engine=tinker against an endpoint in this process: exact gradients, refusals, resume, export."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("peft", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch
from tests.support.fake_tinker import FakeEndpoint
from tests.support.tiny_run import WrittenRewards

from terrella.core.errors import ConfigError, EngineError, MissingExtraError
from terrella.core.protocols import BoundedSampler
from terrella.core.tokens import TokenRequest, TrainExample
from terrella.core.types import Stop
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import EngineConfig, RlvrConfig, SftConfig, TinkerConfig
from terrella.engines.engine import make_engine, read_curve, start_model
from terrella.engines.tinker import loop as tinker_loop
from terrella.engines.tinker.adapter_folder import pairs, read_reference
from terrella.engines.tinker.client import Endpoint
from terrella.engines.tinker.reduction import MEAN, SUM, measure
from terrella.engines.tinker.rows import PaddedRows
from terrella.engines.tinker.sampler import TinkerSampler
from terrella.engines.tinker.sft import fit_examples
from terrella.engines.tinker.tinker_engine import TinkerEngine
from terrella.models.presets import load_model, load_tokenizer, max_positions
from terrella.pipelines.rlvr import Rlvr
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.show.progress import make_progress
from terrella.worlds.counter import Counter

WORLD = Counter.Config(goals=3, max_steps=4)
SETTINGS = TinkerConfig(url="http://127.0.0.1:1", lora_rank=4, batch_rows=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    world = WORLD.build()
    world.reset(seed=0)
    folder = tmp_path_factory.mktemp("base") / "model"
    return start_model("tiny-0.3m", folder, vocabulary=world.vocabulary())


def engine_on(endpoint, tmp_path, **changes):
    config = EngineConfig(engine="tinker", tinker=SETTINGS.replace(**changes))
    return TinkerEngine(config, tmp_path / "engine", connect=lambda url: endpoint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvenSource(EpisodeSource):
    """Rewards are the share of even ids: random replies rarely succeed otherwise."""

    def make_rollout(self, tokenizer):
        return WrittenRewards(self.rollout, self.codec.make(tokenizer))


def source():
    rollout = Rollout.Config(world=WORLD, max_turns=2, turn_tokens=4, episode_tokens=64)
    return EvenSource(rollout=rollout, tasks=WorldTasks(world=WORLD))


def example(prompt=(5, 6), completion=(7, 8, 9), mask=(True, False, True)):
    return TrainExample(prompt_ids=prompt, completion_ids=completion, mask=mask)


def examples(count=24):
    return [
        example(prompt=(5, 6, 7 + i % 3), completion=(9, 10 + i % 3)[:2], mask=(True, True))
        for i in range(count)
    ]


def fit(engine, start, folder, **changes):
    config = SftConfig(**{"batch_size": 6, "learning_rate": 1e-2, "warmup_steps": 0} | changes)
    with make_progress() as progress:
        return engine.sft(start, examples(), config, folder, seed=0, progress=progress)


def reinforce(engine, start, folder, *, steps=3, budget=None, **changes):
    config = RlvrConfig(
        **{"steps": steps, "groups": 4, "group_size": 4, "learning_rate": 1e-2} | changes
    )
    with make_progress() as progress:
        return engine.rlvr(
            start, source(), config, folder, seed=0, progress=progress, budget=budget
        )


def test_sft_weighs_tokens_and_learns_from_its_only_step():
    weighted = dataclasses.replace(example(mask=(True,) * 3), columns={"weight": [1.0, 0.0, 8.0]})
    steps = []

    class Trainer:
        adapter = SimpleNamespace(save_state=lambda name: name)
        rows = staticmethod(lambda batch: PaddedRows(batch, pad_tokens=8, batch_rows=1))
        logprobs = staticmethod(lambda rows: torch.tensor([-1.0, -2.0, -4.0]))

        def step(self, rows, now_M, gradient_M, **settings):
            steps.append((gradient_M.tolist(), settings["learning_rate"]))
            return {}

    saved = SimpleNamespace(step=0, curve=[], save=lambda *_: None)
    fit_examples(Trainer(), [weighted], SftConfig(), saved, seed=0, show=lambda *_: None)
    ((gradient, rate),) = steps
    assert gradient == pytest.approx([-1 / 9, 0.0, -8 / 9]) and rate == SftConfig().learning_rate
    assert saved.curve[0]["loss"] == pytest.approx((1 + 32) / 9)


# --- rows and reductions --------------------------------------------------------------------------


def test_rows_have_one_shape_and_find_their_targets_again():
    rows = PaddedRows([example(), example(prompt=(5,) * 9)], pad_tokens=8, batch_rows=4)
    assert [len(ids) for ids, _ in rows.rows] == [16] * 4
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    columns = rows.everywhere(values)
    assert rows.at_targets(columns).tolist() == values.tolist()
    (inputs, targets), spots = rows.rows[0], rows.spots[0]
    assert [targets[spot] for spot in spots] == [7, 9]
    assert [inputs[spot] for spot in spots] == [6, 8]


def test_rows_without_padding_are_as_long_as_they_are():
    rows = PaddedRows([example(), example(prompt=(5,) * 9)], pad_tokens=0, batch_rows=4)
    assert [len(ids) for ids, _ in rows.rows] == [4, 11]


@pytest.mark.parametrize(("name", "expected"), [("sum", SUM), ("mean", MEAN)])
def test_the_reduction_is_measured(base, name, expected):
    adapter = FakeEndpoint(name).new_adapter(str(base), rank=4, seed=0)
    assert measure(adapter, pad_tokens=8, batch_rows=4) == expected
    assert not any(weight.any() for weight in adapter.weights[1::2]), "the probe trained something"


def test_an_endpoint_without_gradient_norms_must_be_described(base, tmp_path):
    endpoint = FakeEndpoint(reports_norm=False)
    with engine_on(endpoint, tmp_path) as engine, pytest.raises(ConfigError, match="reduction"):
        fit(engine, base, tmp_path / "warm")
    with engine_on(endpoint, tmp_path, reduction="sum") as engine:
        assert fit(engine, base, tmp_path / "warm")


def test_both_reductions_train_alike(base, tmp_path):
    """Rows of different lengths would be weighed differently by a mean per row."""
    curves = {}
    for name in ("sum", "mean"):
        with engine_on(FakeEndpoint(name), tmp_path / name) as engine:
            curves[name] = reinforce(engine, base, tmp_path / name / "model", kl=0.01).curve
    for one, other in zip(curves["sum"], curves["mean"], strict=True):
        assert one["reward"] == other["reward"]
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


# --- training -------------------------------------------------------------------------------------


def test_sft_fits_and_the_merged_folder_is_what_the_endpoint_samples(base, tmp_path):
    endpoint = FakeEndpoint("mean")
    with engine_on(endpoint, tmp_path) as engine:
        losses = fit(engine, base, tmp_path / "warm", epochs=4)
        assert losses[-1] < losses[0] - 0.2
        adapter = engine._resting(tmp_path / "warm")
        rows = PaddedRows(examples(3), pad_tokens=8, batch_rows=3)
        there = rows.at_targets(adapter.forward(next(rows.calls())))
    model, _ = load_model(str(tmp_path / "warm"), device="cpu")
    ids = torch.tensor([row[0] for row in rows.rows])
    with torch.no_grad():
        here = model(ids).logits.log_softmax(-1)
    targets = torch.tensor([row[1] for row in rows.rows])
    merged = rows.at_targets(here.gather(2, targets[..., None])[..., 0].tolist())
    assert torch.allclose(there, merged, atol=1e-4)
    assert all(not adapter.is_open for adapter in endpoint.adapters)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo"])
def test_the_first_gradient_is_that_of_trl(base, tmp_path, algorithm):
    """The same episodes, adapter and rules on both engines: one gradient."""
    from tests.support.trl_gradient import trl_gradient_norm

    sent = []
    prepare = tinker_loop.RlvrLoop._prepare

    def kept(self, scored, counts):
        sent.append((self, scored))
        return prepare(self, scored, counts)

    endpoint = FakeEndpoint("mean")
    with pytest.MonkeyPatch.context() as patch, engine_on(endpoint, tmp_path) as engine:
        patch.setattr(tinker_loop.RlvrLoop, "_prepare", kept)
        run = reinforce(engine, base, tmp_path / "model", steps=1, algorithm=algorithm, refill=0)
        loop, scored = sent[0]
        # A new adapter with the same seed is what the run began with.
        fresh = endpoint.new_adapter(str(base), rank=4, seed=0)
        norm = trl_gradient_norm(fresh.model, scored, loop.config, loop.rollout, tmp_path)
    assert run.curve[0]["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert run.curve[0]["mismatch/max"] < 1e-4


def test_rlvr_continues_the_adapter_of_sft_and_leaves_its_start_alone(base, tmp_path):
    endpoint = FakeEndpoint("mean")
    with engine_on(endpoint, tmp_path) as engine:
        fit(engine, base, tmp_path / "warm")
        warm = read_reference(tmp_path / "warm")
        run = reinforce(engine, tmp_path / "warm", tmp_path / "model", kl=0.1, epochs=2, steps=4)
        trained = read_reference(tmp_path / "model")
    assert ("load", warm.state, False) in endpoint.calls
    assert run.curve[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert run.curve[-1]["kl"] > 0.0
    assert trained.base == str(base) and trained.state != warm.state
    # A row for each batch of episodes, which is played with the newest weights.
    assert len(run.curve) == 2
    assert all(row["mismatch/max"] < 1e-4 for row in run.curve)


def test_a_killed_run_continues_to_the_same_curve(base, tmp_path):
    whole = FakeEndpoint("mean")
    with engine_on(whole, tmp_path) as engine:
        expected = reinforce(engine, base, tmp_path / "whole", steps=4, save_every=2)
    killed = FakeEndpoint("mean")
    killed.fail_at_train = 3 + 3  # three of the probe, then the fourth step
    with engine_on(killed, tmp_path) as engine, pytest.raises(EngineError, match="went away"):
        reinforce(engine, base, tmp_path / "again", steps=4, save_every=2)
    killed.fail_at_train = -1
    with engine_on(killed, tmp_path) as engine:
        resumed = reinforce(engine, base, tmp_path / "again", steps=4, save_every=2)
    names = ("step", "reward", "loss", "grad_norm", "env_steps")
    for one, other in zip(expected.curve, resumed.curve, strict=True):
        assert [one.get(name) for name in names] == pytest.approx(
            [other.get(name) for name in names], rel=1e-4
        )
    assert any(call[0] == "load" and call[2] for call in killed.calls)


def test_a_batch_that_is_used_twice_is_one_row_of_the_curve(base, tmp_path):
    with engine_on(FakeEndpoint(), tmp_path) as engine:
        run = reinforce(engine, base, tmp_path / "model", steps=4, epochs=2)
    assert run.steps == 4 and [row["step"] for row in run.curve] == [1, 3]
    assert all("reward" in row for row in run.curve)


def test_a_budget_of_env_steps_ends_the_run(base, tmp_path):
    with engine_on(FakeEndpoint(), tmp_path) as engine:
        budget = EnvStepBudget(limit=40)
        run = reinforce(engine, base, tmp_path / "model", steps=9, budget=budget)
    assert run.steps == len(run.curve) < 9
    assert run.budget.total == run.curve[-1]["env_steps"] >= 40


def test_a_pipeline_runs_from_its_settings(base, tmp_path, monkeypatch):
    endpoint = FakeEndpoint("mean")
    monkeypatch.setattr(TinkerEngine, "endpoint", endpoint)
    config = Rlvr.Config(
        world=WORLD,
        model=str(base),
        turn_tokens=4,
        max_turns=2,
        episode_tokens=64,
        warmup_examples=64,
        warmup=SftConfig(batch_size=16, learning_rate=1e-2),
        rlvr=RlvrConfig(steps=2, groups=4, group_size=4, kl=0.05),
        evaluate_on=8,
        out=tmp_path / "run",
        engine="tinker",
        tinker=SETTINGS,
    )
    with make_progress() as progress:
        result = Rlvr(config).run(progress)
    assert result.steps == 2 and result.after.n == 5  # so many distinct instances
    curve = read_curve(tmp_path / "run" / "curve.jsonl")
    assert {"reward", "seconds/generate", "env_steps"} <= curve[0].keys()
    assert "tml-" not in (tmp_path / "run" / "spec.json").read_text()


def test_an_episode_ends_where_the_endpoint_cannot_read_on(base, tmp_path):
    rollout = Rollout.Config(world=WORLD, max_turns=4, turn_tokens=4, episode_tokens=64)
    tasks = WorldTasks(world=WORLD).make()
    codec = EpisodeSource(rollout=rollout, tasks=WorldTasks(world=WORLD)).codec
    tokenizer = load_tokenizer(base)

    def stops(context):
        play = WrittenRewards(rollout, codec.make(tokenizer))
        endpoint = FakeEndpoint(context=context)
        with engine_on(endpoint, tmp_path) as engine, engine.sampler(base) as sampler:
            assert isinstance(sampler, BoundedSampler)
            return sampler.context_tokens, play.run(sampler, [tasks(0)], group_size=2, seed=0)

    positions, whole = stops(0)
    assert positions == max_positions(base)
    longest = max(len(each.prompt_ids) + len(each.completion_ids) for each in whole)
    short, cut = stops(longest - 6)
    assert short == longest - 6
    assert {each.record.stop for each in cut} == {Stop.OUT_OF_TOKENS}


def test_rl_is_bounded_by_the_context_and_watched(base, tmp_path, monkeypatch):
    loops = []
    run = tinker_loop.RlvrLoop.run

    def kept(self, show):
        loops.append(self)
        return run(self, show)

    monkeypatch.setattr(tinker_loop.RlvrLoop, "run", kept)
    with engine_on(FakeEndpoint(), tmp_path) as engine:
        reinforce(engine, base, tmp_path / "model", steps=1, hang_limit=77.0)
    (loop,) = loops
    assert loop.trainer.context_tokens == max_positions(base)
    assert loop.rollout.watchdog is loop.watchdog and loop.watchdog.limit == 77.0


def test_the_second_moment_of_adam_is_a_setting(base, tmp_path):
    losses = []
    for beta2 in (0.95, 0.5):
        with engine_on(FakeEndpoint(), tmp_path, beta2=beta2) as engine:
            losses.append(fit(engine, base, tmp_path / f"model-{beta2}"))
    assert losses[0][0] == losses[1][0] and losses[0][-1] != losses[1][-1]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rlvr": RlvrConfig(algorithm="ppo")}, "rlvr.algorithm"),
        ({"rlvr": RlvrConfig(world_loss=0.1)}, "rlvr.world_loss"),
        ({"rlvr": RlvrConfig(schedule="async")}, "rlvr.schedule"),
        ({"rlvr": RlvrConfig(lora_rank=8)}, "rlvr.lora_rank"),
        ({"temperature": 0.7}, "temperature"),
        ({"masks_tokens": True}, "allowed ids"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_by_name(settings, named, tmp_path):
    config = EngineConfig(engine="tinker", tinker=SETTINGS)
    with pytest.raises(ConfigError) as refused:
        make_engine(config, work=tmp_path, **settings)
    assert refused.value.where == named


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"url": ""}, "tinker.url"),
        ({"lora_rank": 0}, "tinker.lora_rank"),
        ({"pad_tokens": 0}, "tinker.pad_tokens"),
    ],
)
def test_settings_of_the_endpoint_are_checked(changes, named, tmp_path):
    config = EngineConfig(engine="tinker", tinker=SETTINGS.replace(**changes))
    with pytest.raises(ConfigError) as refused:
        make_engine(config, work=tmp_path)
    assert refused.value.where == named


def test_a_learner_is_refused_by_name(tmp_path):
    engine = engine_on(FakeEndpoint(), tmp_path)
    with pytest.raises(ConfigError, match="learner"):
        engine.learner(tmp_path / "model", head="value", work=tmp_path)


def test_video_pipelines_are_refused_before_they_start(tmp_path):
    from terrella.recipes.video import video_quick

    config = video_quick().replace(out=tmp_path / "run", engine="tinker", tinker=SETTINGS)
    with make_progress() as progress, pytest.raises(ConfigError, match="allowed ids"):
        config.build().run(progress)
    assert not (tmp_path / "run").exists()


def test_a_sampler_refuses_masks_and_other_temperatures(base):
    import asyncio

    sampler = TinkerSampler(FakeEndpoint().new_adapter(str(base), rank=4, seed=0).sampler())
    request = TokenRequest(prompt_ids=(5, 6), max_new_tokens=2, seed=0)
    with pytest.raises(ConfigError, match="allowed ids"):
        asyncio.run(sampler.sample(dataclasses.replace(request, allowed_ids=(1, 2))))
    with pytest.raises(EngineError, match="temperature"):
        asyncio.run(sampler.sample(dataclasses.replace(request, temperature=0.5)))
    assert len(asyncio.run(sampler.sample(request)).token_ids) == 2


def test_another_base_model_at_the_endpoint_is_noticed(base, tmp_path):
    world = WORLD.build()
    world.reset(seed=0)
    other = start_model("tiny-0.3m", tmp_path / "other", vocabulary=world.vocabulary(), seed=5)
    with (
        engine_on(FakeEndpoint(), tmp_path, base_model=str(base)) as engine,
        pytest.raises(EngineError, match="another model"),
    ):
        fit(engine, other, tmp_path / "warm")


def test_an_incomplete_adapter_is_noticed():
    key = "base_model.model.model.layers.0.mlp.up_proj.lora_{}.weight"
    with pytest.raises(EngineError, match="incomplete"):
        pairs({key.format("A"): torch.zeros(2, 3)})
    with pytest.raises(EngineError, match="no LoRA weight"):
        pairs({"base_model.model.lm_head.lora_embedding_A": torch.zeros(2, 3)})


def test_the_package_and_the_key_are_asked_for(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises((MissingExtraError, ConfigError)) as refused:
        Endpoint("http://127.0.0.1:1")
    assert "tinker" in str(refused.value).lower()


def test_an_adapter_of_a_hub_model_is_left_as_an_adapter(base, tmp_path, monkeypatch):
    """Without a local base there is nothing to merge into; PEFT must find every module."""
    from terrella.engines.tinker import adapter_folder

    class NoFolder(type(Path())):
        def is_dir(self):
            return False

    monkeypatch.setattr(adapter_folder, "Path", NoFolder)
    weights = {
        f"base_model.model.model.layers.0.mlp.up_proj.lora_{side}.weight": torch.zeros(2, 2)
        for side in "AB"
    }
    reference = adapter_folder.Reference(base_model="x", base=str(base), rank=2, state="s")
    folder = tmp_path / "adapter"
    adapter_folder._write_adapter(weights, {"target_modules": ["up_proj"]}, reference, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == ["up_proj"]
    assert config["base_model_name_or_path"] == str(base)
