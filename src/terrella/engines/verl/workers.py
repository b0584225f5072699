"""verl's training workers: adapters and a critic's head start as on TRL, and so does the warm-up.

Ray imports this module in every process that trains: the classes are sent by name. The import also
replaces two functions of verl, which ask for what is not there: a class of TRL's, which TRL 1.16 no
longer has, and flash attention for a critic.
    workers = {Role.ActorRollout: ray.remote(PolicyWorker), Role.Critic: ray.remote(ModelWorker)}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from verl.models.transformers import monkey_patch
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils import model as verl_models
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from terrella.models.foreign_code import SAFE

Method = TypeVar("Method", bound=Callable[..., Any])


def on_all_ranks(method: Method) -> Method:
    """A method that all ranks run with the same arguments; returns a list of their answers."""
    made: Method = register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)
    return made


def on_own_share(method: Method) -> Method:
    """A method that each rank runs on its share of a batch, as verl's own do."""
    mode = make_nd_compute_dataproto_dispatch_fn(mesh_name="train")
    made: Method = register(dispatch_mode=mode, blocking=False)(method)
    return made


class ModelWorker(TrainingWorker):  # type: ignore[misc]
    """One rank of a model that is trained."""

    @on_all_ranks
    def reset(self) -> None:
        """Load the model; new adapters are those of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.engine_config.seed)
            super().reset()

    @on_own_share
    def train_batch(self, data: Any) -> Any:
        """One optimizer step and one of the warm-up; verl's own has one for a batch of episodes."""
        tu.assign_non_tensor(data, update_lr_scheduler=True)
        return super().train_batch(data)


class PolicyWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """One rank of the policy and of the reference model."""

    actor_worker_cls = ModelWorker
    ref_worker_cls = ModelWorker


def load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> nn.Module:
    """A model with a value head, which starts at zero unless the folder has one.

    The attention is the config's; verl's own function asks for flash attention. Code of the folder
    is never run, whatever verl asks for.
    """
    from transformers import AutoModelForTokenClassification

    model, loaded = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        output_loading_info=True,
        **SAFE,
    )
    with torch.no_grad():
        for name in loaded["missing_keys"]:
            model.get_parameter(name).zero_()
    return model  # type: ignore[no-any-return]


# verl would change a method of TRL's model with a value head, which none of ours is.
monkey_patch.is_trl_available = lambda: False
verl_models.load_valuehead_model = load_value_model
