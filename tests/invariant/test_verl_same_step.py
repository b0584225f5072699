"""The same episodes on both engines give the same loss, advantages and gradient."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import use

use()
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import tiny_rollout
from tests.support.verl_cpu.one_worker import make_batch, make_job, make_worker, train
from tests.support.verl_cpu.same_step import (
    CASES,
    compare,
    read_columns,
    train_batch_of,
    with_columns,
)

from terrella.core.tokens import Task, TokenRequest
from terrella.core.types import Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.local.local_sampler import LocalSampler
from terrella.models.export import export_model
from terrella.rollout.context import TokenBuffer
from terrella.rollout.tasks import AgentTasks

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_same_on_both_engines(name: str, tmp_path: Path):
    found = compare(CASES[name], tmp_path)
    for part in ("loss", "grad_norm", "advantage", "weight"):
        assert found[part]["difference"] < 1e-4, (part, found[part]["difference"])
    # The comparison has content, and the trained tokens are the sampled ones.
    assert found["grad_norm"]["largest"] > 1e-2 and found["advantage"]["largest"] > 1e-2
    assert found["mismatch"] > 0.5 if CASES[name].older else found["mismatch"] < 1e-4


def test_the_cases_differ_in_what_they_train_on(tmp_path: Path):
    """A setting that one engine ignores, and the other too, would agree as well."""
    found = {
        name: compare(CASES[name], tmp_path / str(number))
        for number, name in enumerate(
            ["grpo", "grpo, denominator all", "keep_share", "keep_top_p", "world loss"]
        )
    }
    plain = found["grpo"]
    assert plain["counted"] < found["grpo, denominator all"]["counted"] < plain["episodes"]
    assert found["keep_share"]["counted"] < plain["counted"]
    assert found["keep_top_p"]["counted"] < plain["counted"]
    assert (plain["world_share"], found["world loss"]["world_share"]) == (0.0, pytest.approx(1.0))


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
    batch, _ = make_batch(episodes)
    columns = read_columns(worker, batch)
    forced = [sum(not by_model for by_model in episode.model_mask) for episode in episodes]
    assert all(count >= 5 for count in forced)
    assert [int(n) for n in columns.mask_BT.sum(1)] == [sum(e.model_mask) for e in episodes]
    assert (columns.old_BT - columns.sampled_BT)[columns.mask_BT].abs().max() < 1e-4
    assert columns.sampled_BT[~columns.mask_BT].abs().max() == 0


def test_verls_critic_learns_with_our_loss_and_weights(tmp_path: Path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    config = RlvrConfig(
        algorithm="ppo",
        critic="separate",
        steps=1,
        learning_rate=1e-2,
        value_clip=10.0,
        value_coefficient=1.0,
    )
    rollout = tiny_rollout(tokenizer)
    episodes = rollout.run(LocalSampler(model), [AgentTasks()(3)], group_size=4, seed=0)
    job = make_job(tmp_path, config, rollout.config)
    critic = make_worker(job, "critic")
    batch, records = make_batch(episodes)
    columns = read_columns(make_worker(job), batch, critic)
    uids = [episode.group for episode in episodes]
    train_batch = train_batch_of(columns, records, uids, config, rollout.config)
    ready = with_columns(batch, columns, train_batch)
    squares = 0.5 * (columns.values_BT - train_batch.returns_BT) ** 2
    error = float((squares * train_batch.weights_BT).sum())
    first, *_, last = (sum(train(critic, ready)["loss"]) for _ in range(4))
    assert first == pytest.approx(error, abs=1e-4) and last < first
