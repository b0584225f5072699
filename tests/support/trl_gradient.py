"""The gradient norm that the TRL engine computes for given episodes on a given adapter."""

from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch

from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.rlvr_trainer import RlvrTrainer


def trl_gradient_norm(model: Any, scored: Any, config: Any, rollout: Any, out: Any) -> float:
    """Run the trainer's own packing and loss on `scored`, without a step."""
    from terrella.models.presets import load_tokenizer

    weights = {name: each for name, each in model.named_parameters() if each.requires_grad}
    tokenizer = load_tokenizer(model.peft_config["default"].base_model_name_or_path)
    trainer = RlvrTrainer(model, tokenizer, config, rollout, lambda index: None, out, seed=0)
    batch = trainer._prepare([scored])
    trainer._freeze(batch)
    trainer.totals = MetricAccumulator(trainer._metric_names(), largest=("mismatch/max",))
    model.zero_grad()
    for pack in batch.packs:
        trainer._pack_loss(trainer.model, pack).backward()
    squares = [float((each.grad.double() ** 2).sum()) for each in weights.values()]
    return float(torch.tensor(squares).sum().sqrt())
