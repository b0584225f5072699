"""What a Tinker endpoint cannot do, refused by name before anything starts.

The interface has adapters, named losses of log-probabilities, and samples at temperature 1. It has
no token masks, no value heads and no full weights.
    check_run(EngineConfig(engine="tinker"), rlvr=RlvrConfig(algorithm="ppo"))  # ConfigError
"""

from __future__ import annotations

from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec, RolloutCodec
from terrella.engines.configs import (
    EngineConfig,
    LearnerConfig,
    RlvrConfig,
    SftConfig,
    TinkerConfig,
)
from terrella.engines.training_parts import changed_fields, training_parts


def check_run(
    config: EngineConfig,
    *,
    rlvr: RlvrConfig | None = None,
    temperature: float = 1.0,
    masks_tokens: bool = False,
) -> None:
    """Refuse a run that the endpoint cannot do, from its settings alone."""
    tinker = config.tinker
    if not tinker.url:
        raise ConfigError("tinker.url", "is not set", "--set tinker.url=http://HOST:PORT")
    if tinker.lora_rank < 1:
        raise ConfigError(
            "tinker.lora_rank",
            "0 would train all weights, and a Tinker endpoint trains adapters only",
            "set 1 or more, or engine=trl",
        )
    if tinker.pad_tokens == 0 and tinker.reduction != "sum":
        raise ConfigError(
            "tinker.pad_tokens",
            "0 sends rows of different lengths, which only a sum weighs as they should be",
            "set tinker.reduction=sum if the endpoint documents it",
        )
    if masks_tokens:
        raise no_masks()
    check_temperature(temperature)
    _check_samplers(config)
    for where, part in training_parts(config, rlvr):
        if isinstance(part, LearnerConfig):
            raise no_learner(where)
        check_part(part, tinker, where=where)


def _check_samplers(config: EngineConfig) -> None:
    """Refuse samplers of our own: the endpoint samples."""
    why = "with engine=tinker the endpoint samples, and no server is started"
    if config.sampler != "auto":
        raise ConfigError("sampler", f"{config.sampler}, but {why}", "set sampler=auto")
    changed = changed_fields(config.vllm)
    if changed:
        defaults = " ".join(f"--set vllm.{name}={value}" for name, value in changed.items())
        raise ConfigError(f"vllm.{next(iter(changed))}", why, f"leave the defaults: {defaults}")


def check_part(part: SftConfig | RlvrConfig, tinker: TinkerConfig, *, where: str) -> None:
    """Refuse the settings of one training part."""
    if part.lora_rank not in (0, tinker.lora_rank):
        raise ConfigError(
            f"{where}.lora_rank",
            f"{part.lora_rank} differs from tinker.lora_rank = {tinker.lora_rank}: one adapter "
            "goes through all parts of a run",
            "set tinker.lora_rank alone",
        )
    if part.top_layers:
        raise ConfigError(
            f"{where}.top_layers", "the endpoint trains an adapter of all layers", "set 0"
        )
    if part.lora_alpha:
        raise ConfigError(
            f"{where}.lora_alpha", "the endpoint scales its adapters itself", "leave it at 0"
        )
    if part.report_to:
        raise ConfigError(f"{where}.report_to", "trackers need engine=trl", "read curve.jsonl")
    if isinstance(part, RlvrConfig):
        _check_rlvr(part, where)


def _check_rlvr(config: RlvrConfig, where: str) -> None:
    config.check(processes=1)
    refused = {
        "algorithm": (config.algorithm == "ppo", "ppo needs a critic, and the endpoint has none"),
        "world_loss": (config.world_loss != 0, "tokens of the world are not trained on here"),
        "entropy_bonus": (config.entropy_bonus != 0, "an endpoint returns no entropy"),
        "schedule": (
            config.schedule == "async",
            "a sampler of older weights would overwrite the trained ones on some servers",
        ),
    }
    remedies = {
        "algorithm": "use a group estimator",
        "world_loss": "set 0",
        "entropy_bonus": "set 0",
        "schedule": "set sync",
    }
    for name, (is_set, why) in refused.items():
        if is_set:
            raise ConfigError(f"{where}.{name}", why, f"{remedies[name]}, or engine=trl")


def check_temperature(temperature: float) -> None:
    """Endpoints report log-probabilities of temperature 1, whatever they sample at."""
    if temperature != 1.0:
        raise ConfigError(
            "temperature",
            f"log-probabilities are those of temperature 1, not of {temperature:g}",
            "set 1, or engine=trl",
        )


def check_codec(codec: Codec) -> None:
    if isinstance(codec, RolloutCodec) and codec.allowed_ids is not None:
        raise no_masks()


def no_learner(where: str) -> ConfigError:
    return ConfigError(
        where,
        "tinker has SFT and RLVR; methods that train step by step need a learner",
        "use engine=trl or engine=verl",
    )


def no_masks() -> ConfigError:
    return ConfigError(
        "allowed ids",
        "this model samples under a mask of allowed ids (video), and the endpoint has no masks",
        "use engine=trl or engine=verl",
    )
