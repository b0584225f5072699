"""The same episodes on both engines give the same loss, advantages and gradient."""

import asyncio
import dataclasses
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import use

use()
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import WrittenRewards, curve, tiny_rollout, tiny_trainer
from tests.support.verl_cpu.one_worker import infer, make_batch, make_job, make_worker, train
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.utils.padding import response_to_nested

from terrella.core.tokens import Task, TokenRequest
from terrella.core.types import Status, Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.verl.registered import weighted_value_loss
from terrella.engines.verl.train_batch import (
    TokenColumns,
    TrainBatch,
    group_indices,
    make_train_batch,
    token_rewards,
)
from terrella.models.export import export_model
from terrella.rollout.rollout import TokenBuffer
from terrella.rollout.tasks import AgentTasks

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies

LONGEST = 4
"""Tokens per turn of the tiny rollout."""


class Recorded(WrittenRewards):
    """Records its episodes, and masks every seventh verdict."""

    episodes: list[Any]

    async def run_async(self, *arguments: Any, **options: Any) -> Any:
        lost = Verdict.failed(Status.ERROR, "world died")
        episodes = await super().run_async(*arguments, **options)
        self.episodes = [
            dataclasses.replace(e, outcome=lost) if i % 7 == 3 else e
            for i, e in enumerate(episodes)
        ]
        return self.episodes


def first_step_of_trl(
    folder: Path, settings: dict[str, Any]
) -> tuple[Any, dict[str, float], list[Any]]:
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, folder / "model")
    plain = tiny_rollout(tokenizer)
    rollout = Recorded(plain.config, plain.codec)
    trainer = tiny_trainer(folder / "trl", rollout=rollout, model=model, steps=1, **settings)
    trainer.train()
    (row,) = curve(trainer, "loss", "grad_norm", "mismatch/max")
    return (
        trainer,
        dict(zip(("loss", "grad_norm", "mismatch/max"), row, strict=True)),
        rollout.episodes,
    )


def read_columns(worker: Any, batch: Any, records: list[Any], values: Any = None) -> TokenColumns:
    mask = batch["response_mask"].to_padded_tensor(0).bool()
    return TokenColumns(
        mask_BT=mask,
        sampled_BT=batch["rollout_log_probs"].to_padded_tensor(0.0),
        old_BT=infer(worker, batch, "log_probs").to_padded_tensor(0.0),
        rewards_BT=token_rewards(records, mask),
        values_BT=None if values is None else values.to_padded_tensor(0.0),
    )


def train_batch_of(columns: TokenColumns, uids: list[str], config: Any) -> TrainBatch:
    estimated = get_adv_estimator_fn(f"terrella_{config.algorithm}")(
        token_level_rewards=columns.rewards_BT,
        response_mask=columns.mask_BT,
        index=uids,
        values=columns.values_BT,
        config={"gamma": config.gamma, "lam": config.lam},
    )
    groups = group_indices(uids, [True] * len(uids))
    return make_train_batch(columns, groups, estimated, config, longest=LONGEST)


def with_columns(batch: Any, columns: TokenColumns, train_batch: TrainBatch) -> Any:
    added = {
        "old_log_probs": columns.old_BT,
        "advantages": train_batch.advantages_BT,
        "returns": train_batch.returns_BT,
        "rollout_is_weights": train_batch.weights_BT,
    }
    if columns.values_BT is not None:
        added["values"] = columns.values_BT
    for name, column in added.items():
        batch[name] = response_to_nested(column, batch["response_mask"])
    return batch


def zero_values(batch: Any) -> Any:
    """The values of an untrained critic."""
    return response_to_nested(
        torch.zeros(batch["response_mask"].to_padded_tensor(0).shape), batch["response_mask"]
    )


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo", "ppo"])
def test_first_step_is_the_same_on_both_engines(algorithm: str, tmp_path: Path):
    settings = {
        "algorithm": algorithm,
        "groups": 4,
        "group_size": 4,
        "critic": "separate",
        "value_coefficient": 0.0,
    }
    trainer, expected, episodes = first_step_of_trl(tmp_path, settings)
    config = RlvrConfig(**settings, steps=1, learning_rate=1e-2)
    worker = make_worker(make_job(tmp_path, config, trainer.rollout.config))
    batch, records = make_batch(episodes)
    values = zero_values(batch) if algorithm == "ppo" else None
    columns = read_columns(worker, batch, records, values)
    train_batch = train_batch_of(columns, [episode.group for episode in episodes], config)
    metrics = train(worker, with_columns(batch, columns, train_batch))

    assert float(metrics["grad_norm"][0]) == pytest.approx(expected["grad_norm"], abs=1e-4)
    assert sum(metrics["loss"]) == pytest.approx(expected["loss"], abs=1e-4)
    advantages, weights = train_batch.advantages_BT, train_batch.weights_BT
    counted = columns.mask_BT & (weights > 0) & (advantages != 0)
    packed_advantages = torch.cat([pack.columns["advantage"] for pack in trainer.batch.packs])
    for name, by_verl in (("advantage", advantages), ("weight", weights)):
        by_trl = torch.cat([pack.columns[name] for pack in trainer.batch.packs])
        if algorithm == "ppo":  # its packs also hold tokens whose advantage is zero
            by_trl = by_trl[packed_advantages != 0]
        assert torch.allclose(by_trl, by_verl[counted], atol=1e-4)
    # The trained tokens are the sampled ones.
    assert (columns.old_BT - columns.sampled_BT)[columns.mask_BT].abs().max() < 1e-4
    assert [not record["masked"] for record in records] == [
        e.outcome.value is not None for e in episodes
    ]


class VideoEpisode:
    """An episode of a video model: the model writes frames, actions are forced in between."""

    frames, tokens, first_action = 6, 8, 20

    async def play(self, sampler: Any, seed: int) -> Any:
        buffer = TokenBuffer(prompt_ids=(5, 6, 7, self.first_action))
        for frame in range(self.frames):
            request = TokenRequest(
                prompt_ids=(*buffer.prompt_ids, *buffer.ids),
                max_new_tokens=self.tokens,
                seed=seed + frame,
            )
            buffer.model_writes(await sampler.sample(request))
            buffer.end_turn(float(frame == seed % self.frames))
            if frame < self.frames - 1:
                buffer.world_writes([self.first_action + frame])
        return buffer.episode(Task(seed=0), Verdict.of(seed % 2), None)


def videos(model: Any) -> list[Any]:
    async def play_all() -> list[Any]:
        sampler = LocalSampler(model)
        return list(
            await asyncio.gather(
                *(VideoEpisode().play(sampler, 100 * member) for member in range(4))
            )
        )

    return asyncio.run(play_all())


def eight_turns(model: Any, tokenizer: Any) -> list[Any]:
    rollout = tiny_rollout(tokenizer, max_turns=8)
    return rollout.run(LocalSampler(model), [AgentTasks()(3)], group_size=4, seed=0)


@pytest.mark.parametrize("kind", ["agent of eight turns", "video with forced actions"])
def test_forced_tokens_are_masked_and_the_sampled_tokens_are_trained(kind: str, tmp_path: Path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    episodes = videos(model) if kind.startswith("video") else eight_turns(model, tokenizer)
    worker = make_worker(make_job(tmp_path, RlvrConfig(steps=1), tiny_rollout(tokenizer).config))
    batch, records = make_batch(episodes)
    columns = read_columns(worker, batch, records)
    forced = [sum(not by_model for by_model in episode.model_mask) for episode in episodes]
    assert all(count >= 5 for count in forced)
    assert [int(n) for n in columns.mask_BT.sum(1)] == [sum(e.model_mask) for e in episodes]
    assert (columns.old_BT - columns.sampled_BT)[columns.mask_BT].abs().max() < 1e-4
    assert columns.sampled_BT[~columns.mask_BT].abs().max() == 0


def test_world_tokens_have_no_gradient():
    mask = torch.tensor([[True, False, True, False]])
    logprobs = torch.full((1, 4), -1.0, requires_grad=True)
    columns = {"old_log_prob": torch.full((1, 4), -1.1), "advantages": torch.full((1, 4), 3.0)}
    config = SimpleNamespace(
        clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={"dp_size": 2}
    )
    loss, _ = get_policy_loss_fn("terrella")(
        log_prob=logprobs,
        response_mask=mask,
        loss_agg_mode="",
        config=config,
        rollout_is_weights=torch.full((1, 4), 0.5),
        **columns,
    )
    loss.backward()
    assert logprobs.grad is not None
    assert (logprobs.grad[~mask] == 0).all() and (logprobs.grad[mask] != 0).all()


def test_verls_critic_learns_with_our_loss_and_weights(tmp_path: Path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    config = RlvrConfig(algorithm="ppo", critic="separate", steps=1, learning_rate=1e-2)
    rollout = tiny_rollout(tokenizer)
    episodes = rollout.run(LocalSampler(model), [AgentTasks()(3)], group_size=4, seed=0)
    job = make_job(tmp_path, config, rollout.config)
    critic = make_worker(job, "critic")
    critic.set_loss_fn(partial(weighted_value_loss, clip=10.0, coefficient=1.0))
    batch, records = make_batch(episodes)
    values = infer(critic, batch, "values")
    columns = read_columns(make_worker(job), batch, records, values)
    train_batch = train_batch_of(columns, [episode.group for episode in episodes], config)
    ready = with_columns(batch, columns, train_batch)
    squares = 0.5 * (columns.values_BT - train_batch.returns_BT) ** 2
    error = float((squares * train_batch.weights_BT).sum())
    first, *_, last = (sum(train(critic, ready)["loss"]) for _ in range(4))
    assert first == pytest.approx(error, abs=1e-4) and last < first
