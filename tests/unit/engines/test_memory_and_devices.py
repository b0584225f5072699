"""Where models sit, in which precision they compute, and what memory they hold."""

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import transformers
from accelerate import FullyShardedDataParallelPlugin
from accelerate.data_loader import BatchSamplerShard
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import curve, tiny_rollout, tiny_trainer, weights
from torch.utils.data import BatchSampler

from terrella.core.errors import ConfigError
from terrella.core.tokens import AdamParams, TokenRequest, TrainExample
from terrella.engines.configs import EngineConfig, RlvrConfig, SftConfig
from terrella.engines.local import local_sampler as local
from terrella.engines.local.local_sampler import LocalSampler, local_sampler
from terrella.engines.training_parts import warmup_within
from terrella.engines.trl import pack_passes, sft_trainer
from terrella.engines.trl.arguments import keep_full_precision, one_gpu_per_process
from terrella.engines.trl.sampling_mode import sampling_mode
from terrella.engines.trl.sft_trainer import SftTrainer
from terrella.engines.trl.trl_engine import TrlEngine
from terrella.models import bundled, device, presets
from terrella.models.export import export_model
from terrella.models.grouped_attention import GROUPED
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

EXAMPLES = [
    TrainExample(
        prompt_ids=(5, 6, 7, *range(8, 8 + n % 3)),
        completion_ids=(8, 9, 10 + n % 4, 11),
        mask=(True, True, True, False),
    )
    for n in range(8)
]


@pytest.mark.parametrize(
    ("algorithm", "schedule"), [("grpo", "sync"), ("ppo", "sync"), ("grpo", "async")]
)
def test_bf16_samples_and_trains_with_a_small_mismatch(
    algorithm: str, schedule: str, tmp_path: Path
):
    trainer = tiny_trainer(tmp_path, bf16=True, algorithm=algorithm, schedule=schedule)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "mismatch/mean" in row]
    mean, largest = zip(*((row["mismatch/mean"], row["mismatch/max"]) for row in rows), strict=True)
    assert 0 < max(mean) < 0.01 and max(largest) < 0.1  # 2^-8 relative, in logits of about 3
    assert trainer.sampler.cache.keys.dtype == torch.bfloat16
    assert {weight.dtype for weight in trainer.policy.parameters()} == {torch.float32}
    trainer.export(tmp_path / "model")
    model, _ = presets.load_model(str(tmp_path / "model"))
    # The export holds the fp32 weights, and a sampler on the trained model itself still works.
    assert torch.equal(weights(model)[:500], weights(trainer.policy)[:500])
    _sample(local_sampler(trainer.policy))


def _sample(sampler: Any) -> Any:
    return asyncio.run(sampler.sample(TokenRequest(prompt_ids=(5, 6), max_new_tokens=4, seed=0)))


def test_models_are_loaded_where_they_are_told_and_sampled_there(tmp_path: Path):
    model, _ = presets.load_model("tiny-0.3m", device="meta", dtype=torch.bfloat16)
    sampler = LocalSampler(model)
    sampler.cache.reserve(3, 100)
    for tensor in (next(model.parameters()), sampler.cache.keys, sampler.cache.values):
        assert tensor.device.type == "meta" and tensor.dtype == torch.bfloat16
    export_model(*tiny_model(), tmp_path / "model")
    model, _ = presets.load_model(str(tmp_path / "model"), device="meta")
    assert next(model.parameters()).is_meta


def test_a_gpu_is_used_wherever_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert str(device.default_device()) == str(device.loading_device()) == "cuda:3"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # the trainer shards it from the host
    assert device.loading_device().type == "cpu"
    for module in (presets, local):
        for name in ("loading_device", "default_device"):
            monkeypatch.setattr(module, name, lambda: torch.device("meta"), raising=False)
    model, _ = presets.load_model("tiny-0.3m")
    assert next(model.parameters()).is_meta
    model, _ = presets.load_model("tiny-0.3m", device="cpu")
    assert local_sampler(model).device.type == "meta"  # type: ignore[attr-defined]


def test_several_gpus_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ConfigError, match="8 GPUs") as refused:
        tiny_trainer(tmp_path)
    assert "CUDA_VISIBLE_DEVICES" in str(refused.value)
    model, tokenizer = tiny_model()
    with pytest.raises(ConfigError, match="8 GPUs"):
        SftTrainer(model, tokenizer, SftConfig(), EXAMPLES, tmp_path, seed=0)
    monkeypatch.setenv("LOCAL_RANK", "0")  # a launched process has one
    one_gpu_per_process()


@pytest.mark.parametrize("part", ["sft", "rlvr"])
def test_a_training_that_is_done_leaves_no_weights_behind(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A server that shares the GPU starts next; objects in cycles would wait for a collection."""
    kept = []
    load = presets.load_model

    def watched(*arguments: Any, **options: Any) -> Any:
        model, tokenizer = load(*arguments, **options)
        kept.append(weakref.ref(next(model.parameters())))
        return model, tokenizer

    monkeypatch.setattr(presets, "load_model", watched)
    export_model(*tiny_model(), tmp_path / "start")
    world = Counter.Config()
    episodes = EpisodeSource(
        rollout=Rollout.Config(world=world, max_turns=1, turn_tokens=4),
        tasks=WorldTasks(world=world),
    )
    asked: dict[str, Any] = {
        "sft": (EXAMPLES, SftConfig(batch_size=4)),
        "rlvr": (episodes, RlvrConfig(steps=1, groups=2, group_size=2)),
    }
    train = getattr(TrlEngine(EngineConfig(), tmp_path), part)
    gc.disable()
    try:
        train(
            tmp_path / "start", *asked[part], tmp_path / "model", seed=0, progress=SilentProgress()
        )
    finally:
        gc.enable()
    (weight,) = kept
    assert weight() is None


def test_a_closed_learner_has_given_its_memory_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A server on the same GPU wakes up next: what dies after the cache is emptied stays in it."""
    export_model(*tiny_model(), tmp_path / "start")
    held: list[weakref.ref[Any]] = []
    left: list[int] = []

    def emptied() -> None:
        left.append(sum(each() is not None for each in held))

    engine = TrlEngine(EngineConfig(), tmp_path)
    gc.disable()
    try:
        with engine.learner(tmp_path / "start", work=tmp_path / "work") as learner:
            weighted = [replace(each, columns={"weight": [1.0] * 4}) for each in EXAMPLES]
            learner.forward_backward(weighted, "cross_entropy")
            learner.optim_step(AdamParams(learning_rate=1e-3))
            weight = next(learner.policy.parameters())  # type: ignore[attr-defined]
            moment = learner.optimizer.state[weight]["exp_avg"]  # type: ignore[attr-defined]
            held += [weakref.ref(weight), weakref.ref(moment)]
            del weight, moment
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    finally:
        gc.enable()
    assert left and left[-1] == 0


def test_all_ranks_give_memory_back_before_a_server_wakes(monkeypatch: pytest.MonkeyPatch):
    """Also what gathering the weights leaves, on ranks that only take part in it."""
    order: list[str] = []

    class Ranks:
        def __init__(self, main: bool):
            self.is_main_process = main

        def wait_for_everyone(self) -> None:
            order.append("wait")

    class Asleep:
        sleeps = True

        def load_weights(self, weights: Any) -> None:
            order.append("load")

    monkeypatch.setattr(pack_passes, "free_cached_memory", lambda: order.append("free"))
    pack_passes.send_weights(Ranks(main=True), tiny_model()[0], Asleep())
    assert order == ["free", "wait", "load", "wait"]
    order.clear()
    pack_passes.send_weights(Ranks(main=False), tiny_model()[0], Asleep())
    assert order == ["free", "wait", "free", "wait"]
    order.clear()
    Asleep.sleeps = False  # a server that never sleeps has its memory
    pack_passes.send_weights(Ranks(main=True), tiny_model()[0], Asleep())
    assert order == ["wait", "load", "wait"]


def test_a_large_model_is_not_sampled_in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(local, "LARGEST_MODEL", 10_000)
    model, _ = tiny_model()
    for build in (lambda: local_sampler(model), lambda: tiny_trainer(tmp_path)):
        with pytest.raises(ConfigError, match="parameters") as refused:
            build()
        assert "sampler=vllm" in str(refused.value)


def test_the_cache_is_as_large_as_needed_and_freed_before_training(tmp_path: Path):
    trainer = tiny_trainer(tmp_path)
    shapes: list[tuple[int, int]] = []
    reserve = trainer.sampler.cache.reserve

    def recorded(slots: int, columns: int) -> None:
        reserve(slots, columns)
        shapes.append(tuple(trainer.sampler.cache.keys.shape[1:4:2]))

    trainer.sampler.cache.reserve = recorded
    train_on = trainer.train_on

    def checked(*arguments: Any) -> Any:
        assert trainer.sampler.cache.keys.numel() == trainer.sampler.cache.values.numel() == 0
        return train_on(*arguments)

    trainer.train_on = checked  # type: ignore[method-assign]
    trainer.train()
    slots, columns = map(max, zip(*shapes, strict=True))
    assert slots == 16  # 4 tasks x 4 episodes
    assert columns % 64 == 0 and columns <= 256  # the longest episode has about 200 tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"share_prefix": True, "pack_tokens": 4096},
        {"algorithm": "ppo", "critic": "shared", "kl": 0.1},
        {"algorithm": "ppo", "critic": "separate"},
        {"lora_rank": 2},
        {"world_loss": 0.1},
    ],
    ids=str,
)
def test_gradient_checkpointing_changes_no_result(changes: dict[str, Any], tmp_path: Path):
    rows, ends, computed = [], [], []
    for checkpointing in (False, True):
        trainer = tiny_trainer(
            tmp_path / str(checkpointing), gradient_checkpointing=checkpointing, **changes
        )
        layer = trainer.policy.get_decoder().layers[0]
        passes: list[bool] = []
        layer.self_attn.register_forward_hook(
            lambda *_, passes=passes: passes.append(torch.is_grad_enabled())
        )
        trainer.train()
        rows.append(curve(trainer, "reward", "mismatch/max", "grad_norm", "loss"))
        ends.append(weights(trainer.policy))
        computed.append(sum(passes))
    assert rows[0] == rows[1] and torch.equal(*ends)
    assert computed[1] == 2 * computed[0]  # each layer is computed again in the backward pass


def test_gradient_checkpointing_of_sft_changes_no_result(tmp_path: Path):
    ends = []
    for checkpointing in (False, True):
        model, tokenizer = tiny_model()
        config = SftConfig(batch_size=4, gradient_checkpointing=checkpointing, warmup_steps=0)
        folder = tmp_path / str(checkpointing)
        trainer = SftTrainer(model, tokenizer, config, EXAMPLES, folder, seed=0)
        trainer.fit(folder / "model")
        ends.append(weights(trainer.policy))
    assert torch.equal(*ends)


def test_fsdp2_sums_gradients_in_fp32_as_ddp_does():
    """bf16 would keep eight bits of a sum over all processes."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.reduce_dtype == torch.bfloat16  # accelerate's own
    keep_full_precision(SimpleNamespace(is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin)))
    policy = plugin.mixed_precision_policy
    assert policy.param_dtype == torch.bfloat16 and policy.output_dtype is None
    assert policy.reduce_dtype == torch.float32


def test_attention_that_packs_cannot_use_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match="flash_attention_2"):
        tiny_trainer(tmp_path, attention="flash_attention_2")
    model, tokenizer = tiny_model()
    config = SftConfig(attention="flash_attention_2")
    with pytest.raises(ConfigError, match="flash_attention_2"):
        SftTrainer(model, tokenizer, config, EXAMPLES, tmp_path, seed=0)


def test_a_model_with_flex_attention_is_sampled_with_a_mask(tmp_path: Path):
    """Its training needs a GPU: flex attention has no gradient on a CPU."""
    expected = _sample(local_sampler(tiny_model()[0]))
    trainer = tiny_trainer(tmp_path, attention="flex_attention")
    with sampling_mode(trainer.policy):
        assert trainer.attention.implementation == GROUPED
        assert _sample(trainer.sampler) == expected
    assert trainer.attention.implementation == "flex_attention"
    playing = tiny_trainer(tmp_path, attention="flex_attention", schedule="async")
    assert playing.attention.implementation == "flex_attention"
    assert _sample(playing.sampler) == expected


@pytest.mark.parametrize("changes", [{"lora_rank": 2}, {"algorithm": "ppo", "critic": "separate"}])
def test_a_model_with_windows_is_sampled_and_trained_alike(changes: Any, tmp_path: Path):
    """Its masks differ by layer: they reach the layers of adapters, critics and checkpoints."""
    model, _ = tiny_model(kind="gemma3")
    settings = {"steps": 1, "gradient_checkpointing": True, **changes}
    trainer = tiny_trainer(tmp_path, model=model, **settings)
    before = weights(trainer.policy).clone()
    trainer.train()
    assert curve(trainer, "mismatch/max")[0][0] < 1e-4
    assert not torch.equal(weights(trainer.policy), before)


def test_the_mass_outside_the_mask_is_reported(tmp_path: Path):
    model, tokenizer = tiny_model()
    rollout = tiny_rollout(tokenizer)
    trainer = tiny_trainer(tmp_path / "free", rollout=rollout, model=model, steps=1)
    trainer.train()
    assert "mask/outside" not in trainer.state.log_history[0]  # nothing is masked
    rollout.codec.allowed_ids = tuple(range(model.config.vocab_size // 2))
    model, _ = tiny_model()
    trainer = tiny_trainer(tmp_path / "masked", rollout=rollout, model=model, steps=1)
    trainer.train()
    ((outside, mismatch),) = curve(trainer, "mask/outside", "mismatch/max")
    assert 0.2 < outside < 0.8  # an untrained model does not know the mask
    assert mismatch < 1e-4  # log-probs are those before the mask, on both sides


def fitted(tmp_path: Path, examples: Any, **changes: Any) -> tuple[list[float], bool]:
    """Losses of a fit, and whether a weight has changed."""
    model, tokenizer = tiny_model()
    before = weights(model).clone()
    trainer = SftTrainer(model, tokenizer, SftConfig(**changes), examples, tmp_path / "out", seed=0)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, not torch.equal(weights(trainer.policy), before)


def test_a_run_of_fewer_steps_than_its_warm_up_learns(tmp_path: Path):
    assert fitted(tmp_path, EXAMPLES)[1]  # one step, with the default settings
    assert [warmup_within(10, steps) for steps in (1, 9, 10, 11, 500)] == [0, 0, 1, 10, 10]


def test_weights_of_tokens_make_a_mean_whatever_their_scale(tmp_path: Path):
    losses = []
    for scale in (1.0, 0.01):
        column = [scale, 2 * scale, 0.0, 0.0]
        weighted = [replace(each, columns={"weight": column}) for each in EXAMPLES]
        losses.append(fitted(tmp_path, weighted, warmup_steps=0)[0])
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize(("items", "batch"), [(5, 4), (8, 4), (1, 4), (7, 6), (13, 4), (3, 12)])
@pytest.mark.parametrize("processes", [1, 2])
def test_processes_train_the_items_of_an_epoch_once(items: int, batch: int, processes: int):
    """The shares are those that accelerate makes, without what it repeats."""
    made = []
    for process in range(processes):
        sampler = BatchSampler(range(items), batch // processes, drop_last=False)
        shards = BatchSamplerShard(sampler, processes, process) if processes > 1 else sampler
        for step, share in enumerate(shards):
            shape = {"items": items, "batch_size": batch, "processes": processes}
            own = sft_trainer.own_items(**shape, step=step, process=process)
            made += [(step, index) for index in share[:own]]
    assert sorted(made) == [(index // batch, index) for index in range(items)]


def test_settings_that_cannot_be_trained_are_refused_by_name(tmp_path: Path, monkeypatch: Any):
    with pytest.raises(ConfigError, match="temperature"):
        RlvrConfig().check_rollout(temperature=0.0, history="sampled")
    with pytest.raises(ConfigError, match="importance_cap"):
        RlvrConfig(schedule="async", importance_cap=2.0).check(processes=1)
    monkeypatch.setattr(sft_trainer, "processes", lambda: 3)
    with pytest.raises(ConfigError, match="batch_size"):
        fitted(tmp_path, EXAMPLES)


def test_a_model_that_the_sampler_cannot_cache_is_refused_by_name():
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2))
    with pytest.raises(ConfigError, match="gpt2"):
        LocalSampler(gpt2)


def test_the_bundled_model_is_known_to_every_reader(tmp_path: Path, monkeypatch: Any):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    monkeypatch.setattr(bundled, "bundled_folder", lambda name: tmp_path / "model")
    assert presets.max_positions("smollm2") == model.config.max_position_embeddings
    assert len(presets.load_tokenizer("smollm2")) == len(tokenizer)
