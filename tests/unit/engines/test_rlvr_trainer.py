"""The parts of the RLVR trainer: critic, reference, refills, mismatch monitor, metrics, export."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from safetensors.torch import load_file
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import WrittenRewards, curve, tiny_rollout, tiny_trainer, weights
from transformers import TrainerCallback

from terrella.core.errors import ConfigError, EngineError
from terrella.core.types import Status, Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.trl import packs
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.rollout.tasks import AgentTasks


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_critic_is_trained_checkpointed_and_left_out_of_the_export(critic: str, tmp_path: Path):
    trainer = tiny_trainer(
        tmp_path, algorithm="ppo", critic=critic, save_every=2, value_coefficient=1.0
    )
    trainer.train()
    names = {name for name, _ in trainer.policy.named_parameters()}
    assert {"critic.weight", "critic.bias"} <= names
    assert any(name.startswith("critic.trunk.") for name in names) == (critic == "separate")
    assert trainer.policy.critic.weight.any()  # it was trained
    saved = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    assert torch.equal(saved["critic.weight"], trainer.policy.critic.weight)
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in trainer.policy.parameters()}
    trainer.export(tmp_path / "plain")
    _same_as_exported(trainer, tmp_path / "plain")


def _same_as_exported(trainer: Any, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain, problems = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(problems.values())
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(plain(input_ids=ids).logits, trainer.policy(input_ids=ids).logits)


def test_a_critic_learns_the_value_of_episodes(tmp_path: Path):
    trainer = tiny_trainer(
        tmp_path,
        algorithm="ppo",
        steps=20,
        lam=1.0,
        learning_rate=2e-3,
        value_coefficient=5.0,
        value_clip=10.0,
    )
    trainer.train()
    errors = [row[0] for row in curve(trainer, "value_loss")]
    assert sum(errors[-4:]) < 0.6 * sum(errors[:4])


def test_without_kl_there_is_no_reference_and_nothing_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> Any:
        raise AssertionError("a model was copied")

    monkeypatch.setattr("terrella.engines.trl.rlvr_trainer.copy", SimpleNamespace(deepcopy=refuse))
    trainer = tiny_trainer(tmp_path)
    assert trainer.ref_model is None
    assert trainer.sampler.model is trainer.policy
    trainer.train()
    assert "kl" not in trainer.state.log_history[0]


def test_with_kl_the_reference_is_the_model_before_training(tmp_path: Path):
    model, _ = tiny_model()
    start = weights(model).clone()
    trainer = tiny_trainer(tmp_path, model=model, kl=0.1, steps=3)
    trainer.train()
    assert torch.equal(weights(trainer.ref_model), start)
    assert not torch.equal(weights(trainer.policy), start)
    first, *later = (row[0] for row in curve(trainer, "kl"))
    assert first == 0.0 and all(value > 0 for value in later)


def test_with_adapters_the_reference_is_the_adapter_switched_off(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, kl=0.1, steps=3, lora_rank=2)
    trainer.train()
    assert trainer.ref_model is None
    first, *later = (row[0] for row in curve(trainer, "kl"))
    assert first == pytest.approx(0.0, abs=1e-6) and all(value > 0 for value in later)


def test_with_top_layers_only_these_move(tmp_path: Path):
    model, _ = tiny_model()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = tiny_trainer(tmp_path, model=model, steps=2, top_layers=1)
    trainer.train()
    last = f"layers.{len(model.get_decoder().layers) - 1}."
    moved = {
        name for name, weight in model.named_parameters() if not torch.equal(weight, start[name])
    }
    assert moved and all(last in name or name == "model.norm.weight" for name in moved)


def test_kl_holds_the_policy_back(tmp_path: Path):
    moved = []
    for kl in (0.0, 5.0):
        model, _ = tiny_model()
        start = weights(model).clone()
        trainer = tiny_trainer(
            tmp_path / str(kl), model=model, kl=kl, steps=6, max_grad_norm=0.1, epochs=2
        )
        trainer.train()
        moved.append(float((weights(trainer.policy) - start).norm()))
    assert moved[1] < moved[0]


def test_several_epochs_use_one_batch_and_its_old_log_probabilities(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, epochs=3, steps=6)
    runs: list[int] = []
    play = trainer.schedule.play
    trainer.schedule.play = lambda indices: runs.append(1) or play(indices)  # type: ignore[method-assign, func-returns-value]
    trainer.train()
    assert len(runs) == 2
    shares = [row["clip_share"] for row in trainer.state.log_history if "clip_share" in row]
    assert shares[0] == 0.0 == shares[3] and shares[1] > 0 and shares[2] > 0
    reported = ["mismatch/mean" in row for row in trainer.state.log_history[:6]]
    assert reported == [True, False, False] * 2


def test_each_mini_batch_is_a_step_on_groups_of_its_own(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, mini_batches=2, epochs=2, steps=8, save_every=4)
    runs: list[int] = []
    play = trainer.schedule.play
    trainer.schedule.play = lambda indices: runs.append(1) or play(indices)  # type: ignore[method-assign, func-returns-value]
    seen: list[list[Any]] = []
    train_on = trainer.train_on

    def watched(model: Any, packs: Any, loss_of: Any) -> Any:
        seen.append([id(pack) for pack in packs])
        return train_on(model, packs, loss_of)

    trainer.train_on = watched  # type: ignore[method-assign]
    trainer.train()
    assert len(runs) == 2
    first, second, *again = seen[:4]
    assert again == [first, second] and not set(first) & set(second)
    shares = [row["clip_share"] for row in trainer.state.log_history if "clip_share" in row]
    assert shares[0] == 0.0 == shares[4] and shares[1] > 0 and shares[2] > 0


@pytest.mark.parametrize("settings", [{}, {"algorithm": "dapo", "refill": 0}, {"world_loss": 0.5}])
def test_gradients_of_mini_batches_add_up_to_that_of_the_batch(
    settings: dict[str, Any], tmp_path: Path
):
    """As if no step were taken between them, and each as long as a step on the whole batch."""
    sums = []
    for parts in (1, 2):
        trainer = tiny_trainer(tmp_path, mini_batches=parts, steps=2, **settings)
        batch = trainer._gather_batch(range(4))
        trainer.totals = MetricAccumulator(trainer._metric_names(), largest=("mismatch/max",))
        for mini_batch in batch.mini_batches:
            assert mini_batch
            trainer.train_on(trainer.model, mini_batch, trainer._pack_loss)
        sums.append(torch.cat([each.grad.flatten() for each in trainer.policy.parameters()]))
    assert torch.allclose(sums[1], 2 * sums[0], rtol=1e-3, atol=1e-7)
    assert float(sums[0].norm()) > 1e-3


class NoVarianceInOddTasks(WrittenRewards):
    """All members of the group of an odd task get the same reward."""

    async def run_async(self, sampler: Any, tasks: Any, *, group_size: int, seed: int) -> Any:
        episodes = await super().run_async(sampler, tasks, group_size=group_size, seed=seed)
        seeds = [task.seed for task in tasks for _ in range(group_size)]
        right = Verdict.of(1.0)
        return [
            dataclasses.replace(e, outcome=right) if s % 2 else e
            for e, s in zip(episodes, seeds, strict=True)
        ]


@pytest.mark.parametrize(
    ("refill", "expected", "episodes"), [(0, [0, 1, 2], 8), (2, [0, 1, 2, 4], 12)]
)
def test_groups_without_variance_are_refilled_from_beyond_the_run(
    refill: int, expected: list[int], episodes: int, tmp_path: Path
):
    _, tokenizer = tiny_model()
    rollout = NoVarianceInOddTasks(tiny_rollout(tokenizer).config, tiny_rollout(tokenizer).codec)
    trainer = tiny_trainer(tmp_path, rollout=rollout, steps=1, groups=3, refill=refill)
    indices: list[int] = []
    tasks = trainer.tasks
    trainer.tasks = lambda index: indices.append(index) or tasks(index)  # type: ignore[func-returns-value]
    trainer.train()
    # Task 1 has no variance; its replacement is task 1 + 3, and no second refill is needed.
    assert indices == expected
    assert trainer.batch is not None and trainer.batch.counts.episodes == episodes
    assert curve(trainer, "zero_variance") == [(pytest.approx(1 / 3),)]
    assert trainer.state.log_history[0].get("refilled") == (1.0 if refill else None)


def test_a_sampler_with_other_weights_is_caught(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, mismatch_limit=0.01)
    stale, _ = tiny_model()
    with torch.no_grad():
        for parameter in stale.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    trainer.schedule.sampler = LocalSampler(stale)
    before = weights(trainer.policy).clone()
    with pytest.raises(EngineError, match="sampler and trainer differ by 0"):
        trainer.train()
    assert torch.equal(weights(trainer.policy), before)  # stopped before the optimizer stepped


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_that_has_diverged_is_stopped(algorithm: str, tmp_path: Path):
    trainer = tiny_trainer(tmp_path, algorithm=algorithm, steps=3)
    healthy, _ = tiny_model()
    trainer.schedule.sampler = LocalSampler(healthy)  # one that does not see the nan itself
    trainer.add_callback(_Diverges())
    with pytest.raises(EngineError, match=r"log-probabilities are nan \(entropy, .*diverged"):
        trainer.train()
    assert trainer.state.global_step == 1


class _Diverges(TrainerCallback):
    """All weights are nan after the first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(torch.nan)


def test_a_sampler_of_nan_stops_instead_of_writing_token_0(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, steps=3)
    trainer.add_callback(_Diverges())
    with pytest.raises(EngineError, match="probabilities are nan, so no token can be sampled"):
        trainer.train()


def test_a_step_with_nothing_to_train_on_has_not_diverged(tmp_path: Path):
    class Unanimous(WrittenRewards):
        async def run_async(self, *arguments: Any, **options: Any) -> Any:
            episodes = await super().run_async(*arguments, **options)
            return [dataclasses.replace(each, outcome=Verdict.of(1.0)) for each in episodes]

    _, tokenizer = tiny_model()
    plain = tiny_rollout(tokenizer)
    trainer = tiny_trainer(tmp_path, rollout=Unanimous(plain.config, plain.codec), steps=2)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert [row["zero_variance"] for row in rows] == [1.0, 1.0]
    assert not any("entropy" in row or "mismatch/mean" in row for row in rows)


def test_importance_weights_correct_a_stale_sampler(tmp_path: Path):
    trainer = tiny_trainer(tmp_path, importance_cap=2.0, mismatch_limit=100.0, steps=1)
    plain = tiny_trainer(tmp_path, mismatch_limit=100.0, steps=1)
    for each in (trainer, plain):
        stale, _ = tiny_model(seed=1)
        each.sampler = LocalSampler(stale)
        each.train()
    (row,) = curve(trainer, "mismatch/mean", "mismatch/max", "mismatch/kl")
    assert all(value > 0 for value in row)
    assert curve(trainer, "grad_norm") != curve(plain, "grad_norm")


def test_masked_episodes_do_not_count_in_the_loss(tmp_path: Path):
    class Failing(WrittenRewards):
        async def run_async(self, *arguments: Any, **options: Any) -> Any:
            episodes = await super().run_async(*arguments, **options)
            failed = Verdict.failed(Status.ERROR, "world died")
            return [
                dataclasses.replace(e, outcome=failed) if i % 4 == 0 else e
                for i, e in enumerate(episodes)
            ]

    _, tokenizer = tiny_model()
    plain = tiny_rollout(tokenizer)
    for algorithm in ("grpo", "ppo"):
        trainer = tiny_trainer(
            tmp_path, rollout=Failing(plain.config, plain.codec), steps=1, algorithm=algorithm
        )
        trainer.train()
        assert trainer.batch is not None and trainer.batch.counts.episodes == 12
        assert curve(trainer, "masked") == [(0.25,)]


def test_a_batch_without_variance_changes_no_weight(tmp_path: Path):
    _, tokenizer = tiny_model()
    rollout = NoVarianceInOddTasks(tiny_rollout(tokenizer).config, tiny_rollout(tokenizer).codec)
    model, _ = tiny_model()
    before = weights(model).clone()
    trainer = tiny_trainer(tmp_path, rollout=rollout, model=model, steps=1, groups=1)
    trainer.tasks = lambda index: AgentTasks()(2 * index + 1)  # odd tasks only
    trainer.train()
    assert torch.equal(weights(model), before)


def test_no_padding_and_prompts_read_once_are_reported(tmp_path: Path, monkeypatch):
    # These prompts are too short for it.
    monkeypatch.setattr(packs, "sharing_pays", lambda group, width: True)
    trainer = tiny_trainer(tmp_path, steps=1, pack_tokens=4096)
    trainer.train()
    (row,) = curve(trainer, "padding", "prefix_saved", "trained_share")
    assert row[0] == 0.0 and row[1] > 0.1 and 0 < row[2] < 1


@pytest.mark.parametrize("changes", [{"epochs": 2, "save_every": 3}])
def test_settings_that_cannot_run_are_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError):
        RlvrConfig(**changes).check(processes=1)


def test_episodes_beside_training_are_within_the_bound_and_the_number_of_tasks_is_kept(
    tmp_path: Path,
):
    trainer = tiny_trainer(tmp_path, schedule="async", staleness=2, steps=8)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    ages = [row["staleness/max"] for row in rows]
    assert len(rows) == 8 and max(ages) <= 2 and ages[0] == 0
    # Only tokens of the current weights are compared with the trainer.
    assert all(row["mismatch/max"] < 1e-4 for row in rows if "mismatch/max" in row)
    assert trainer.sampler.model is not trainer.policy


def test_a_killed_asynchronous_run_plays_again_what_was_under_way(tmp_path: Path):
    asked: list[int] = []

    def counted(last: int) -> Any:
        trainer = tiny_trainer(tmp_path, schedule="async", save_every=2, steps=8)
        tasks = trainer.schedule.playing.tasks

        def ask(index: int) -> Any:
            asked.append(index)
            if index > last:
                raise RuntimeError("killed")
            return tasks(index)

        trainer.schedule.playing.tasks = ask
        return trainer

    with pytest.raises(RuntimeError, match="killed"):
        counted(last=17).train()
    asked.clear()
    second = counted(last=31)
    saved = second.last_checkpoint()
    second.train(resume_from_checkpoint=saved)
    assert second.state.global_step == 8
    # What the first run had started and not trained on comes first, and nothing is played that no
    # step trains on: each step takes four tasks.
    untrained = 32 - 4 * int(saved.rpartition("-")[2])
    assert asked[0] <= 17 and max(asked) == 31
    assert len(asked) == len(set(asked)) == untrained


def test_what_a_schedule_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="refill"):
        RlvrConfig(schedule="async", refill=1).check(processes=1)
    with pytest.raises(ConfigError, match="staleness"):
        RlvrConfig(schedule="async", staleness=0).check(processes=1)
