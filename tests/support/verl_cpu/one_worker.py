"""verl's own training worker in this process: a step of the verl engine without a cluster."""

import os
import socket
from pathlib import Path
from typing import Any

import torch
from tests.support.verl_cpu import SETTINGS, use

use()
from tensordict import NonTensorData, TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorkerConfig
from verl.workers.utils.padding import response_from_nested

from terrella.core.tokens import TokenEpisode
from terrella.engines.configs import VerlConfig
from terrella.engines.verl.agent_loop import ServerSampler, as_output
from terrella.engines.verl.compose import compose
from terrella.engines.verl.losses import ActorLoss, critic_loss
from terrella.engines.verl.verl_keys import Job, verl_keys
from terrella.engines.verl.workers import ModelWorker
from terrella.models.presets import max_positions

KEYS = tuple(
    s.removeprefix("verl.")
    for s in SETTINGS
    if s.startswith("verl.") and "." in s.removeprefix("verl.")
)


def one_rank() -> None:
    """Set the environment that Ray would give a single worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )


def make_job(folder: Path, rlvr: Any, rollout: Any) -> Job:
    """A job on one device, with the model in `folder/model`."""
    settings = VerlConfig(devices=1, prompt_tokens=128, keys=KEYS)
    return Job(
        model=folder / "model",
        folder=folder,
        rlvr=rlvr,
        seed=0,
        rollout=rollout,
        verl=settings,
        device="cpu",
        devices=1,
        positions=max_positions(folder / "model"),
    )


def make_worker(job: Job, kind: str = "actor") -> ModelWorker:
    """A training worker, built as verl's own actor or critic builds it."""
    if "MASTER_PORT" not in os.environ:
        one_rank()
    config = compose(verl_keys(job), job.verl.keys)
    section = config.actor_rollout_ref.actor if kind == "actor" else config.critic
    role_config = omega_conf_to_dataclass(section)
    model = (
        omega_conf_to_dataclass(config.actor_rollout_ref.model)
        if kind == "actor"
        else role_config.model
    )
    engine = role_config.engine
    engine.use_dynamic_bsz = True
    bound = "ppo_max_token_len_per_gpu" if kind == "actor" else "ppo_infer_max_token_len_per_gpu"
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = section[bound]
    worker = ModelWorker(
        TrainingWorkerConfig(
            model_type="language_model" if kind == "actor" else "value_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=role_config.optim,
            checkpoint_config=role_config.checkpoint,
        )
    )
    worker.reset()
    # As `VerifiedTrainer` does.
    loss = ActorLoss.of(job.rlvr) if kind == "actor" else critic_loss(job.rlvr)
    worker.set_loss_fn(loss)
    return worker


def make_batch(
    episodes: list[TokenEpisode], reward: str = "outcome"
) -> tuple[TensorDict, list[dict[str, Any]]]:
    """Episodes as the agent loops pass them to the trainer: token columns and records."""
    columns: dict[str, list[torch.Tensor]] = {}
    records = []
    for episode in episodes:
        row = as_output(episode, ServerSampler(None), filler=1, reward=reward, step=1).as_dict()
        records.append(row["extra_fields"])
        whole = torch.cat([row["prompts"], row["responses"]])
        row |= {
            "input_ids": whole,
            "position_ids": torch.arange(len(whole)),
            "loss_mask": row["response_mask"],
        }
        for name in (
            "prompts",
            "responses",
            "input_ids",
            "position_ids",
            "loss_mask",
            "response_mask",
            "rollout_log_probs",
        ):
            columns.setdefault(name, []).append(row[name])
    nested = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        for name, rows in columns.items()
    }
    batch = TensorDict(nested, batch_size=len(episodes))
    tu.assign_non_tensor(batch, temperature=1.0, calculate_entropy=True)
    return batch, records


def infer(worker: ModelWorker, batch: TensorDict, column: str) -> torch.Tensor:
    """Log-probabilities, entropies or values of the completion tokens, as a nested tensor."""
    data = batch.clone()
    tu.assign_non_tensor(data, compute_loss=False, global_token_num=NonTensorData([1]))
    return response_from_nested(worker.infer_batch(data)[column], batch["response_mask"])


def train(
    worker: ModelWorker, batch: TensorDict, *, epochs: int = 1, mini_batches: int = 1
) -> dict[str, Any]:
    """Take one optimizer step per mini-batch and epoch, and return verl's metrics."""
    data = batch.clone()
    tu.assign_non_tensor(
        data,
        global_batch_size=len(batch),
        mini_batch_size=len(batch) // mini_batches,
        epochs=epochs,
        seed=0,
        dataloader_kwargs=NonTensorData({"shuffle": False}),
    )
    return dict(tu.get(worker.train_mini_batch(data), "metrics"))
