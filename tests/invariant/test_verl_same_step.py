"""The same episodes through both engines: one loss, one set of advantages, one gradient. World tokens teach nothing."""

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
from tests.support.tiny_run import WrittenRewards, curve, tiny_driver, tiny_trainer
from tests.support.verl_cpu.one_worker import infer, make_batch, make_job, make_worker, train
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.utils.padding import response_to_nested

from terrella.core.protocols import Task, TokenRequest
from terrella.core.types import Status, Verdict
from terrella.engines.episodes.driver import Tape
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.verl.lessons import Lessons, Rows, groups_of, learn, paid_tokens
from terrella.engines.verl.registered import weighted_value_loss
from terrella.models.export import export_model
from terrella.stages.tasks import AgentTasks

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries verl stands on

LONGEST = 4
"""The tiny driver's turn."""


class Recorded(WrittenRewards):
    """Plays, remembers what was played, and loses every seventh verdict."""

    episodes: list[Any]

    async def run_async(self, *arguments: Any, **options: Any) -> Any:
        lost = Verdict.failed(Status.ERROR, "world died")
        found = await super().run_async(*arguments, **options)
        self.episodes = [dataclasses.replace(e, outcome=lost) if i % 7 == 3 else e for i, e in enumerate(found)]
        return self.episodes


def first_step_of_trl(folder: Path, settings: dict[str, Any]) -> tuple[Any, dict[str, float], list[Any]]:
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, folder / "model")
    plain = tiny_driver(tokenizer)
    driver = Recorded(plain.config, plain.codec)
    trainer = tiny_trainer(folder / "trl", driver=driver, model=model, steps=1, **settings)
    trainer.train()
    (row,) = curve(trainer, "loss", "grad_norm", "mismatch/max")
    return trainer, dict(zip(("loss", "grad_norm", "mismatch/max"), row, strict=True)), driver.episodes


def read_rows(worker: Any, batch: Any, records: list[Any], values: Any = None) -> Rows:
    mask = batch["response_mask"].to_padded_tensor(0).bool()
    return Rows(
        mask_BT=mask, sampled_BT=batch["rollout_log_probs"].to_padded_tensor(0.0),
        old_BT=infer(worker, batch, "log_probs").to_padded_tensor(0.0), paid_BT=paid_tokens(records, mask),
        values_BT=None if values is None else values.to_padded_tensor(0.0),
    )  # fmt: skip


def lessons_of(rows: Rows, uids: list[str], config: Any) -> Lessons:
    estimated = get_adv_estimator_fn(f"terrella_{config.algorithm}")(
        token_level_rewards=rows.paid_BT, response_mask=rows.mask_BT, index=uids, values=rows.values_BT,
        config={"gamma": config.gamma, "lam": config.lam},
    )  # fmt: skip
    return learn(rows, groups_of(uids, [True] * len(uids)), estimated, config, longest=LONGEST)


def with_lessons(batch: Any, rows: Rows, lessons: Lessons) -> Any:
    columns = {"old_log_probs": rows.old_BT, "advantages": lessons.advantages_BT, "returns": lessons.returns_BT,
               "rollout_is_weights": lessons.weights_BT}  # fmt: skip
    if rows.values_BT is not None:
        columns["values"] = rows.values_BT
    for name, column in columns.items():
        batch[name] = response_to_nested(column, batch["response_mask"])
    return batch


def zero_values(batch: Any) -> Any:
    """What a critic says that has learnt nothing yet."""
    return response_to_nested(torch.zeros(batch["response_mask"].to_padded_tensor(0).shape), batch["response_mask"])


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo", "ppo"])
def test_first_step_is_the_same_on_both_engines(algorithm: str, tmp_path: Path):
    settings = {"algorithm": algorithm, "groups": 4, "group_size": 4, "critic": "separate", "value_coefficient": 0.0}
    trainer, expected, episodes = first_step_of_trl(tmp_path, settings)
    config = RlvrSettings.Config(**settings, steps=1, learning_rate=1e-2)
    worker = make_worker(make_job(tmp_path, config, trainer.driver.config))
    batch, records = make_batch(episodes)
    rows = read_rows(worker, batch, records, zero_values(batch) if algorithm == "ppo" else None)
    lessons = lessons_of(rows, [episode.group for episode in episodes], config)
    found = train(worker, with_lessons(batch, rows, lessons))

    assert float(found["grad_norm"][0]) == pytest.approx(expected["grad_norm"], abs=1e-4)
    assert sum(found["loss"]) == pytest.approx(expected["loss"], abs=1e-4)
    taught = rows.mask_BT & (lessons.weights_BT > 0) & (lessons.advantages_BT != 0)
    for name, theirs in (("advantage", lessons.advantages_BT), ("weight", lessons.weights_BT)):
        mine = torch.cat([pack.columns[name] for pack in trainer.batch.packs])
        if algorithm == "ppo":  # there every known token counts, also those that earned nothing
            mine = mine[torch.cat([pack.columns["advantage"] for pack in trainer.batch.packs]) != 0]
        assert torch.allclose(mine, theirs[taught], atol=1e-4)
    assert (rows.old_BT - rows.sampled_BT)[rows.mask_BT].abs().max() < 1e-4  # what was sampled is what is trained
    assert [not record["masked"] for record in records] == [e.outcome.value is not None for e in episodes]


class Film:
    """A video model's episode: frames that the model writes, actions that are forced in between."""

    frames, tokens, first_action = 6, 8, 20

    async def play(self, sampler: Any, seed: int) -> Any:
        tape = Tape(prompt_ids=(5, 6, 7, self.first_action))
        for frame in range(self.frames):
            request = TokenRequest(
                prompt_ids=(*tape.prompt_ids, *tape.ids), max_new_tokens=self.tokens, seed=seed + frame
            )
            tape.model_writes(await sampler.sample(request))
            tape.end_turn(float(frame == seed % self.frames))
            if frame < self.frames - 1:
                tape.world_writes([self.first_action + frame])
        return tape.episode(Task(seed=0), Verdict.of(seed % 2), None)


def films(model: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        sampler = LocalSampler(model)
        return list(await asyncio.gather(*(Film().play(sampler, 100 * member) for member in range(4))))

    return asyncio.run(all_of_them())


def eight_turns(model: Any, tokenizer: Any) -> list[Any]:
    driver = tiny_driver(tokenizer, max_turns=8)
    return driver.run(LocalSampler(model), [AgentTasks()(3)], group_size=4, seed=0)


@pytest.mark.parametrize("kind", ["agent of eight turns", "video with forced actions"])
def test_forced_tokens_are_masked_and_what_was_sampled_is_what_is_trained(kind: str, tmp_path: Path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    episodes = films(model) if kind.startswith("video") else eight_turns(model, tokenizer)
    worker = make_worker(make_job(tmp_path, RlvrSettings.Config(steps=1), tiny_driver(tokenizer).config))
    batch, records = make_batch(episodes)
    rows = read_rows(worker, batch, records)
    forced = [sum(not mine for mine in episode.model_mask) for episode in episodes]
    assert all(count >= 5 for count in forced)
    assert [int(n) for n in rows.mask_BT.sum(1)] == [sum(e.model_mask) for e in episodes]
    assert (rows.old_BT - rows.sampled_BT)[rows.mask_BT].abs().max() < 1e-4
    assert rows.sampled_BT[~rows.mask_BT].abs().max() == 0


def test_world_tokens_have_no_gradient_whatever_stands_there():
    mask = torch.tensor([[True, False, True, False]])
    logprobs = torch.full((1, 4), -1.0, requires_grad=True)
    columns = {"old_log_prob": torch.full((1, 4), -1.1), "advantages": torch.full((1, 4), 3.0)}
    config = SimpleNamespace(clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={"dp_size": 2})
    loss, _ = get_policy_loss_fn("terrella")(
        log_prob=logprobs, response_mask=mask, loss_agg_mode="", config=config,
        rollout_is_weights=torch.full((1, 4), 0.5), **columns,
    )  # fmt: skip
    loss.backward()
    assert logprobs.grad is not None and (logprobs.grad[~mask] == 0).all() and (logprobs.grad[mask] != 0).all()


def test_verls_critic_learns_with_our_loss_and_shares(tmp_path: Path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "model")
    config = RlvrSettings.Config(algorithm="ppo", critic="separate", steps=1, learning_rate=1e-2)
    driver = tiny_driver(tokenizer)
    episodes = driver.run(LocalSampler(model), [AgentTasks()(3)], group_size=4, seed=0)
    job = make_job(tmp_path, config, driver.config)
    critic = make_worker(job, "critic")
    critic.set_loss_fn(partial(weighted_value_loss, clip=10.0, coefficient=1.0))
    batch, records = make_batch(episodes)
    values = infer(critic, batch, "values")
    rows = read_rows(make_worker(job), batch, records, values)
    lessons = lessons_of(rows, [episode.group for episode in episodes], config)
    ready = with_lessons(batch, rows, lessons)
    error = float((0.5 * (rows.values_BT - lessons.returns_BT) ** 2 * lessons.weights_BT).sum())
    first, *_, last = (sum(train(critic, ready)["loss"]) for _ in range(4))
    assert first == pytest.approx(error, abs=1e-4) and last < first
