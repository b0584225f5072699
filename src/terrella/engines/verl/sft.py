"""SFT on verl: our examples, as token ids and masks, through verl's own SFT trainer on Ray.

Model, sharding and precision are set by the same keys as in an RL run (`verl_keys`), so one set of
`--set verl.<key>=...` serves both. verl shuffles by a seed of its own, so the examples are written
in an order of ours. It drops those that do not fill a last batch, and decays the learning rate by a
cosine; the rest is as on TRL.
    checkpoint, losses = fit_examples(examples, settings, verl, start_folder, work_folder, seed=0)
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from terrella.algos.named_losses import WEIGHT
from terrella.core.errors import ConfigError
from terrella.core.files import read_json_lines
from terrella.core.seeds import SAMPLE_STREAM, stream
from terrella.core.tokens import TrainExample
from terrella.data.train_examples import read_examples, write_examples
from terrella.engines.configs import SftConfig, VerlConfig
from terrella.engines.training_parts import warmup_within
from terrella.engines.verl.compose import compose
from terrella.engines.verl.verl_keys import gradient_limit, sft_keys

PACKAGE = "terrella.engines.verl"
LOG_VARIABLE = "VERL_FILE_LOGGER_PATH"
"""Where verl's logger `file` writes; it has no key of its own."""
LOGS = "metrics-*.jsonl"


class SftDataset(Dataset[dict[str, torch.Tensor]]):
    """The dataset of verl's SFT trainer: a file of `data/train_examples.py`."""

    def __init__(self, parquet_files: Any, **_: Any) -> None:
        """The tokenizer that verl passes is not needed: the examples are token ids."""
        self.examples = read_examples(Path(str(parquet_files)))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One example, without padding; its loss mask is 0 on the prompt."""
        example = self.examples[index]
        ids = torch.tensor([*example.prompt_ids, *example.completion_ids], dtype=torch.long)
        mask = torch.tensor([False] * len(example.prompt_ids) + list(example.mask)).long()
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}


def fit_examples(
    examples: Sequence[TrainExample],
    settings: SftConfig,
    verl: VerlConfig,
    model: Path,
    folder: Path,
    *,
    seed: int,
) -> tuple[Path, list[float]]:
    """Fit the model in a folder to these examples.

    Returns verl's last checkpoint, and the loss of each step.
    """
    if len(examples) < settings.batch_size:
        raise ConfigError(
            "batch_size",
            f"{len(examples)} examples do not fill one batch of {settings.batch_size}",
        )
    _refuse_weights(examples)
    composed = compose(sft_keys(settings, verl, model, seed=seed), verl.keys)
    folder.mkdir(parents=True, exist_ok=True)
    write_examples(folder / "rows.parquet", shuffled(examples, seed))
    longest = max(len(each.prompt_ids) + len(each.completion_ids) for each in examples)
    steps = settings.epochs * (len(examples) // settings.batch_size)
    config = sft_config(
        composed, settings, folder / "rows.parquet", folder, longest=longest, steps=steps
    )
    _train(config, composed, next_log(folder))
    step = (folder / "latest_checkpointed_iteration.txt").read_text("utf-8").strip()
    return folder / f"global_step_{step}", logged_losses(folder)


def shuffled(examples: Sequence[TrainExample], seed: int) -> list[TrainExample]:
    """The examples in the order of a seed; a resumed run finds the same one."""
    order = stream(SAMPLE_STREAM, seed).permutation(len(examples))
    return [examples[index] for index in order]


def next_log(folder: Path) -> Path:
    """The log of a new attempt: verl would empty that of an earlier one."""
    return folder / f"metrics-{len(list(folder.glob(LOGS))):04d}.jsonl"


def logged_losses(folder: Path) -> list[float]:
    """The loss of each step. Of a step repeated after a restart, the last try counts."""
    rows = [row for log in sorted(folder.glob(LOGS)) for row in read_json_lines(log)]
    by_step = {
        row["step"]: float(row["data"]["train/loss"]) for row in rows if "train/loss" in row["data"]
    }
    return [by_step[step] for step in sorted(by_step)]


def _refuse_weights(examples: Sequence[TrainExample]) -> None:
    """Refuse weights: the loss of verl is a plain mean, and our file holds no columns."""
    if any(weight != 1.0 for each in examples for weight in each.columns.get(WEIGHT, ())):
        raise ConfigError("sft", "verl weighs all tokens alike", "use engine=trl or engine=tinker")


def sft_config(
    composed: Any, settings: Any, file: Path, folder: Path, *, longest: int, steps: int
) -> Any:
    """The SFT config of verl: model and engine of the RL run, sizes from our settings."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf, open_dict

    keys = _keys(composed, settings, file, folder, longest=longest, steps=steps)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose(
            "sft_trainer_engine", [f"{name}={json.dumps(value)}" for name, value in keys.items()]
        )
    with open_dict(config):
        config.model = OmegaConf.create(
            OmegaConf.to_container(composed.actor_rollout_ref.model, resolve=True)
        )
        actor = composed.actor_rollout_ref.actor
        config.engine = OmegaConf.create(OmegaConf.to_container(actor.fsdp_config, resolve=True))
        config.engine.strategy = actor.strategy
        config.model.external_lib = None  # registers RL losses; SFT uses verl's own loss
    return config


def _keys(
    composed: Any, settings: Any, file: Path, folder: Path, *, longest: int, steps: int
) -> dict[str, Any]:
    run = composed.trainer
    return {
        "data.train_files": str(file),
        "data.custom_cls.path": f"pkg://{PACKAGE}.sft",
        "data.custom_cls.name": "SftDataset",
        "data.train_batch_size": settings.batch_size,
        "data.max_length": longest,
        "data.max_token_len_per_gpu": max(settings.pack_tokens, longest),
        "optim.lr": settings.learning_rate,
        "optim.lr_warmup_steps": warmup_within(settings.warmup_steps, steps),
        "optim.weight_decay": 0.0,
        "optim.clip_grad": gradient_limit(settings.max_grad_norm),
        "optim.lr_scheduler_type": "cosine",
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
        "trainer.total_epochs": settings.epochs,
        # `file` is ours: losses are read from it.
        "trainer.logger": list(dict.fromkeys(["file", *settings.report_to])),
        "trainer.save_freq": settings.save_every or -1,
        "trainer.max_ckpt_to_keep": 2,
        "trainer.default_local_dir": str(folder),
        "trainer.device": run.device,
        "trainer.nnodes": run.nnodes,
        "trainer.n_gpus_per_node": run.n_gpus_per_node,
        "trainer.project_name": "terrella",
        "trainer.experiment_name": folder.parent.name,
    }


def _train(config: Any, composed: Any, log: Path) -> None:
    """Train to the end, on the Ray cluster there is or on one of our own."""
    from verl.trainer import sft_trainer_ray

    from terrella.engines.verl.ray_session import ray_session
    from terrella.engines.verl.workers import ModelWorker

    os.environ[LOG_VARIABLE] = str(log)
    sft_trainer_ray.TrainingWorker = ModelWorker  # there is no hook for the class of its workers
    with ray_session(composed):
        sft_trainer_ray.SFTTrainer(config=config).fit()
