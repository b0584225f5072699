"""Composes verl's whole config from keys, and refuses what it does not know.

Every key, ours and those of `--set verl.<key>=...`, is checked against verl's own schema before
anything starts.
    config = compose(verl_keys(job), verl.keys)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from terrella.core.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
OWN_KEYS: dict[str, str] = {
    f"{ACTOR}.policy_loss": "rlvr.algorithm",
    f"{ACTOR}.loss_agg_mode": "rlvr.algorithm",
    f"{ACTOR}.loss_scale_factor": "rlvr.algorithm",
    f"{ACTOR}.entropy_coeff": "rlvr.entropy_bonus",
    f"{ACTOR}.clip_ratio": "rlvr.clip_low and rlvr.clip_high",
    f"{ACTOR}.kl_loss": "rlvr.kl",
    f"{ACTOR}.ppo_mini_batch_size": "rlvr.mini_batches",
    f"{ACTOR}.ppo_epochs": "rlvr.epochs",
    "critic.ppo_mini_batch_size": "rlvr.mini_batches",
    "critic.ppo_epochs": "rlvr.epochs",
    "critic.cliprange_value": "rlvr.value_clip",
    "algorithm.adv_estimator": "rlvr.algorithm",
    "algorithm.gamma": "rlvr.gamma",
    "algorithm.lam": "rlvr.lam",
    "algorithm.filter_groups": "rlvr.refill",
    "algorithm.use_kl_in_reward": "rlvr.kl",
    "trainer.v1.sampler": "rlvr.refill or rlvr.staleness",
    "trainer.v1.trainer_mode": "rlvr.schedule",
    "trainer.v1.colocate_async": "rlvr.staleness",
    "algorithm.rollout_correction": "rlvr.importance_cap",
}
"""Beginnings of verl's keys that are not the user's to set, and what to set instead.

Advantages, filters and losses are those of `algos/`, not verl's: most of these keys have no effect.
Those of mini-batches and epochs would have one, but weights in the loss, warm-up and the number of
batches follow our settings.
"""


def refuse_own_keys(extra: Sequence[str]) -> None:
    """Refuse keys of verl that would have no effect, or half of one."""
    for assignment in extra:
        name = assignment.partition("=")[0].lstrip("+~")
        for prefix, ours in OWN_KEYS.items():
            if name.startswith(prefix):
                why = "is terrella's to set: loss and schedule of a step are computed here"
                raise ConfigError(f"verl.{name}", why, f"set {ours}")


def compose(keys: Mapping[str, Any], extra: Sequence[str] = ()) -> Any:
    """The whole config of verl with these keys.

    An unknown key or a value of the wrong type is refused here, by name.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    refuse_own_keys(extra)
    refused = (HydraException, OmegaConfBaseException)
    ours = [f"{name}={_text(value)}" for name, value in keys.items()]
    try:
        return _composed([*ours, *extra])
    except refused:
        for assignment in extra:  # find the one that is wrong
            try:
                _composed([assignment])
            except refused as error:
                reason = " ".join(str(error).split())[:300]
                raise ConfigError(f"verl.{assignment}", reason, _remedy(assignment)) from error
        raise


def _composed(assignments: list[str]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return hydra_compose("ppo_trainer", assignments)


def _text(value: Any) -> str:
    """A value in Hydra's grammar, which includes JSON."""
    return json.dumps(value)


def _remedy(assignment: str) -> str:
    name = assignment.partition("=")[0].lstrip("+")
    return (
        "see verl/trainer/config/ppo_trainer.yaml; "
        f"verl.+{name}=... adds a key that its schema does not have"
    )
