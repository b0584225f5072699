"""SFT on verl: our rows, token ids and masks as they are, through verl's own SFT trainer on Ray.

Model, sharding and precision are those of the RL run (`verl_keys`), so one set of `--set verl.<key>=...` serves both.
verl drops the rows that do not fill a last batch, and decays the learning rate by a cosine; the rest is as on TRL.
    trained = fit_rows(rows, composed, settings, model=Path("runs/x/start"), folder=Path("runs/x/sft"))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset

from terrella.core.errors import ConfigError, EngineError
from terrella.engines.trl.packs import TrainingRow

PACKAGE = "terrella.engines.verl"


def write_rows(rows: Sequence[TrainingRow], file: Path) -> None:
    """Whole sequences with the mask of their targets; a prompt is no target."""
    ids = [[*row.prompt_ids, *row.completion_ids] for row in rows]
    masks = [[0] * len(row.prompt_ids) + [int(target) for target in row.mask] for row in rows]
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": masks}), file)


class SftRows(Dataset[dict[str, torch.Tensor]]):
    """What verl's SFT trainer reads: the file of `write_rows`."""

    def __init__(self, parquet_files: Any, **_: Any) -> None:
        """Verl also offers a tokenizer, which is not needed: the rows are ids."""
        table = pq.read_table(str(parquet_files))
        self.ids, self.masks = table["input_ids"].to_pylist(), table["loss_mask"].to_pylist()

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One row, without padding."""
        ids = torch.tensor(self.ids[index], dtype=torch.long)
        mask = torch.tensor(self.masks[index], dtype=torch.long)
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}


def fit_rows(rows: Sequence[TrainingRow], composed: Any, settings: Any, model: Path, folder: Path) -> Path:
    """SFT of the model in a folder on these rows, with the RL run's config of verl; the folder of the trained one."""
    if len(rows) < settings.batch_rows:
        raise ConfigError("warmup.batch_rows", f"{len(rows)} rows do not fill one batch of {settings.batch_rows}")
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "rows.parquet")
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    config = sft_config(composed, settings, folder / "rows.parquet", folder, longest=longest)
    config.model.path = str(model)
    _train(config, composed)
    step = (folder / "latest_checkpointed_iteration.txt").read_text("utf-8").strip()
    return folder / f"global_step_{step}" / "huggingface"


def sft_config(composed: Any, settings: Any, file: Path, folder: Path, *, longest: int) -> Any:
    """Verl's SFT config: model and engine of the RL run, our sizes."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf, open_dict

    keys = _keys(composed, settings, file, folder, longest=longest)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine", [f"{name}={json.dumps(value)}" for name, value in keys.items()])
    with open_dict(config):
        config.model = OmegaConf.create(OmegaConf.to_container(composed.actor_rollout_ref.model, resolve=True))
        actor = composed.actor_rollout_ref.actor
        config.engine = OmegaConf.create(OmegaConf.to_container(actor.fsdp_config, resolve=True))
        config.engine.strategy = actor.strategy
        config.model.external_lib = None  # the RL run's losses; SFT's own is verl's
    return config


def _keys(composed: Any, settings: Any, file: Path, folder: Path, *, longest: int) -> dict[str, Any]:
    run = composed.trainer
    return {
        "data.train_files": str(file), "data.custom_cls.path": f"pkg://{PACKAGE}.sft",
        "data.custom_cls.name": "SftRows", "data.train_batch_size": settings.batch_rows, "data.max_length": longest,
        "data.max_token_len_per_gpu": max(settings.pack_tokens, longest),
        "optim.lr": settings.learning_rate, "optim.lr_warmup_steps": settings.warmup_steps, "optim.weight_decay": 0.0,
        "optim.lr_scheduler_type": "cosine",
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
        "trainer.total_epochs": settings.epochs, "trainer.seed": settings.seed, "trainer.logger": ["console"],
        "trainer.save_freq": settings.save_every or -1, "trainer.max_ckpt_to_keep": 2,
        "trainer.default_local_dir": str(folder), "trainer.device": run.device, "trainer.nnodes": run.nnodes,
        "trainer.n_gpus_per_node": run.n_gpus_per_node, "trainer.project_name": "terrella",
        "trainer.experiment_name": folder.parent.name,
    }  # fmt: skip


def _train(config: Any, composed: Any) -> None:
    """To the end, on the Ray there is or one of our own."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.sft_trainer_ray import SFTTrainer

    options: Any = OmegaConf.to_container(composed.ray_kwargs.get("ray_init", {}), resolve=True)
    environment = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(composed)))
    ray.init(**{**options, "runtime_env": environment})
    try:
        SFTTrainer(config=config).fit()
    except ray.exceptions.RayError as error:
        raise EngineError("verl", " ".join(str(error).split())[-500:], "the log above names the process") from error
    finally:
        ray.shutdown()
