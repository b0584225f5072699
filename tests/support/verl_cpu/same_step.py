"""One training step on TRL and one on verl, fed the same episodes.

Both engines run for real: the TRL trainer, and verl's training workers in this process. The
episodes are those that the TRL trainer sampled; every seventh verdict is masked.
    found = compare(CASES["grpo"], folder)
    found["loss"]["difference"] < 1e-4
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import WrittenRewards, tiny_rollout, tiny_trainer
from tests.support.unanimous import with_unanimous_groups
from tests.support.verl_cpu.one_worker import infer, make_batch, make_job, make_worker, train
from verl.workers.utils.padding import response_to_nested

from terrella.core.types import Status, Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.verl.train_batch import (
    TokenColumns,
    TrainBatch,
    episode_facts,
    group_indices,
    make_train_batch,
)
from terrella.models.export import export_model

PPO = {"algorithm": "ppo", "critic": "separate"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A setting of the maths."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    allowed: bool = False
    """Sample from a subset of the tokens."""
    older: bool = False
    """Other weights wrote the tokens: the sampler's log-probabilities are not the trainer's."""


CASES = {
    "grpo": Case(),
    "grpo, denominator all": Case(settings={"denominator": "all", "kl": 0.1}),
    "grpo, kl": Case(settings={"kl": 0.1}),
    "grpo, two epochs": Case(settings={"epochs": 2}),
    "grpo, mini-batches": Case(settings={"epochs": 2, "mini_batches": 3}),
    "dr_grpo": Case(settings={"algorithm": "dr_grpo"}),
    "dapo": Case(settings={"algorithm": "dapo", "refill": 0}),
    "rloo": Case(settings={"algorithm": "rloo"}),
    # A large step would clip the ratio of every episode.
    "rloo, two epochs": Case(settings={"algorithm": "rloo", "epochs": 2, "learning_rate": 1e-3}),
    "ppo": Case(settings=PPO),
    "ppo, mini-batches": Case(settings={**PPO, "mini_batches": 2}),
    "ppo, whitened": Case(settings={**PPO, "whiten": True, "reward": "return"}),
    "entropy bonus": Case(settings={"entropy_bonus": 0.3}),
    "entropy bonus, ppo": Case(settings={**PPO, "entropy_bonus": 0.3, "critic_learning_rate": 0.1}),
    "keep_share": Case(settings={"keep_share": 0.5}),
    "keep_share, ppo": Case(settings={**PPO, "keep_share": 0.25}),
    "keep_top_p": Case(settings={"keep_top_p": 0.6}),
    "turn credit": Case(settings={"credit": "turn"}),
    "turn credit, return": Case(settings={"credit": "turn", "reward": "return"}),
    "world loss": Case(settings={"world_loss": 0.5}),
    "world loss, mini-batches": Case(settings={"world_loss": 0.5, "mini_batches": 2}),
    "allowed ids": Case(allowed=True),
    "async, older weights": Case(settings={"schedule": "async"}, older=True),
}


class Recorded(WrittenRewards):
    """Records its first episodes, masks every seventh verdict and makes one group unanimous."""

    episodes: list[Any] = []

    async def run_async(self, *arguments: Any, **options: Any) -> Any:
        lost = Verdict.failed(Status.ERROR, "world died")
        episodes = await super().run_async(*arguments, **options)
        self.episodes = [
            dataclasses.replace(e, outcome=lost) if i % 7 == 3 else e
            for i, e in enumerate(episodes)
        ]
        self.episodes = with_unanimous_groups(self.episodes, options["group_size"])
        return self.episodes


class RecordedOlder(WrittenRewards):
    """Records all groups, which are played one by one; their tokens seem to be of other weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.episodes: list[Any] = []

    async def run_async(self, *arguments: Any, **options: Any) -> Any:
        played = [_older(e) for e in await super().run_async(*arguments, **options)]
        self.episodes += played
        return played


def _older(episode: Any) -> Any:
    generator = torch.Generator().manual_seed(sum(episode.completion_ids))
    noise = (0.4 * torch.randn(len(episode.logprobs), generator=generator)).tolist()
    shifted = [
        value + by_model * change
        for value, by_model, change in zip(episode.logprobs, episode.model_mask, noise, strict=True)
    ]
    return dataclasses.replace(episode, logprobs=tuple(shifted))


def compare(case: Case, folder: Path, *, seed: int = 0) -> dict[str, Any]:
    """Loss, gradient norm, advantages and weights of both engines, and how far they differ.

    `seed` is that of the model's random weights, and so of its episodes.
    """
    settings = {"groups": 6, "group_size": 4, "learning_rate": 1e-2, **case.settings}
    settings["steps"] = settings.get("epochs", 1) * settings.get("mini_batches", 1)
    trainer, by_trl = _trl(case, folder, settings, seed)
    by_verl, columns, batch = _verl(trainer, folder, RlvrConfig(**settings))
    found: dict[str, Any] = {
        name: _pair(by_trl[name], by_verl[name]) for name in ("loss", "grad_norm")
    }
    counted = batch.weights_BT > 0
    nonzero = counted & (batch.advantages_BT != 0)
    for name, verl_column in (("advantage", batch.advantages_BT), ("weight", batch.weights_BT)):
        both = _packed(trainer, name).tolist(), verl_column[nonzero].tolist()
        # Asynchronous groups are packed in the order in which they were taken.
        found[name] = _pair(*(map(sorted, both) if case.older else both))
    gap = (columns.old_BT - columns.sampled_BT)[columns.mask_BT].abs().max()
    return found | {
        "mismatch": float(gap),
        "episodes": len(trainer.rollout.episodes),
        "counted": int(counted.any(1).sum()),
        "tokens": int(counted.sum()),
        "world_share": float(batch.world_BT.sum()),
    }


def _pair(by_trl: list[float], by_verl: list[float]) -> dict[str, Any]:
    difference = max((abs(a - b) for a, b in zip(by_trl, by_verl, strict=True)), default=0.0)
    largest = max(map(abs, by_trl), default=0.0)
    return {"trl": by_trl, "verl": by_verl, "difference": difference, "largest": largest}


def _packed(trainer: Any, name: str) -> torch.Tensor:
    """A column of the model's tokens with an advantage, in the order of the episodes."""
    columns = []
    for pack in trainer.batch.packs:
        own = pack.columns.get("world", torch.zeros_like(pack.columns["weight"])) == 0
        columns.append(pack.columns[name][own & (pack.columns["advantage"] != 0)])
    return torch.cat(columns)


# --- TRL ------------------------------------------------------------------------------------------


def _trl(
    case: Case, folder: Path, settings: dict[str, Any], seed: int
) -> tuple[Any, dict[str, list[float]]]:
    model, tokenizer = tiny_model(seed)
    export_model(model, tokenizer, folder / "model")
    plain = tiny_rollout(tokenizer)
    if case.allowed:
        ids = range(0, len(tokenizer), 3)
        plain.codec.allowed_ids = tuple(sorted({*ids, *plain.codec.stop_ids}))
    rollout = (RecordedOlder if case.older else Recorded)(plain.config, plain.codec)
    trainer = tiny_trainer(folder / "trl", rollout=rollout, model=model, **settings)
    if trainer.critic is not None:
        _set_head(trainer.critic.weight, trainer.critic.bias)
    if trainer.ref_model is not None:
        _move(trainer.ref_model)
        export_model(trainer.ref_model, tokenizer, folder / "reference")
    trainer.train()
    rows = [(r["loss"], r["grad_norm"]) for r in trainer.state.log_history if "grad_norm" in r]
    losses, norms = zip(*rows, strict=True)
    return trainer, {"loss": list(losses), "grad_norm": list(norms)}


def _move(model: Any) -> None:
    """A reference that is not the starting model, so that the KL has a gradient."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def _set_head(weight: Any, bias: Any) -> None:
    """The same value head on both engines, which is not zero: advantages depend on it."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
        bias.fill_(0.2)


# --- verl -----------------------------------------------------------------------------------------


def _verl(
    trainer: Any, folder: Path, config: RlvrConfig
) -> tuple[dict[str, list[float]], TokenColumns, TrainBatch]:
    job = make_job(folder, config, trainer.rollout.config)
    actor = make_worker(job)
    critic = _critic(job) if config.algorithm == "ppo" else None
    episodes = trainer.rollout.episodes
    batch, records = make_batch(episodes, config.reward)
    columns = read_columns(actor, batch, critic)
    uids = [episode.group for episode in episodes]
    train_batch = train_batch_of(columns, records, uids, config, trainer.rollout.config)
    ready = with_columns(batch, columns, train_batch)
    if config.kl:
        reference = make_worker(dataclasses.replace(job, model=folder / "reference"))
        ready["ref_log_prob"] = infer(reference, batch, "log_probs")
    metrics = _step(actor, ready, config)
    if critic is not None:  # one optimizer on TRL, two on verl
        second = _step(critic, ready, config)
        metrics = {
            "loss": [a + b for a, b in zip(metrics["loss"], second["loss"], strict=True)],
            "grad_norm": [
                (a**2 + b**2) ** 0.5
                for a, b in zip(metrics["grad_norm"], second["grad_norm"], strict=True)
            ],
        }
    return metrics, columns, train_batch


def _critic(job: Any) -> Any:
    """verl's critic with the head of `_set_head`."""
    critic = make_worker(job, "critic")
    parameters = dict(critic.engine.module.named_parameters())
    weight, bias = (
        next(p for name, p in parameters.items() if name.endswith(f"score.{part}"))
        for part in ("weight", "bias")
    )
    _set_head(*(getattr(p, "_local_tensor", p) for p in (weight, bias)))
    return critic


def _step(worker: Any, batch: Any, config: RlvrConfig) -> dict[str, list[float]]:
    """The loss and the gradient norm of each optimizer step."""
    metrics = train(worker, batch, epochs=config.epochs, mini_batches=config.mini_batches)
    losses = [float(loss) for loss in metrics["loss"]]
    steps = config.steps_per_batch
    parts = len(losses) // steps
    summed = [sum(losses[n * parts : (n + 1) * parts]) for n in range(steps)]
    return {"loss": summed, "grad_norm": [float(norm) for norm in metrics["grad_norm"]]}


def read_columns(actor: Any, batch: Any, critic: Any = None) -> TokenColumns:
    values = None if critic is None else infer(critic, batch, "values").to_padded_tensor(0.0)
    return TokenColumns(
        mask_BT=batch["response_mask"].to_padded_tensor(0).bool(),
        sampled_BT=batch["rollout_log_probs"].to_padded_tensor(0.0),
        old_BT=infer(actor, batch, "log_probs").to_padded_tensor(0.0),
        values_BT=values,
    )


def train_batch_of(
    columns: TokenColumns, records: list[Any], uids: list[str], config: RlvrConfig, rollout: Any
) -> TrainBatch:
    return make_train_batch(
        columns,
        episode_facts(records, columns.mask_BT),
        group_indices(uids, [True] * len(uids)),
        config,
        longest=rollout.max_model_tokens,
    )


def with_columns(batch: Any, columns: TokenColumns, train_batch: TrainBatch) -> Any:
    added = train_batch.columns()
    if columns.values_BT is not None:
        added["values"] = columns.values_BT
    ready = batch.clone()
    for name, column in added.items():
        ready[name] = response_to_nested(column, batch["response_mask"])
    return ready
