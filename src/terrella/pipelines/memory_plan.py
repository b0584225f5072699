"""Plans a recipe's memory on some hardware, and finds what would make it fit.

A remedy is never guessed: the config is changed, and the plan is made again.
    plan = plan_config(config, parse_hardware("8xH100"))
    remedies(config, plan.hardware)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from terrella.core.config import Configurable
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.engines.configs import LearnerConfig, RlvrConfig, SftConfig
from terrella.engines.hardware import Hardware
from terrella.engines.memory.plan import Plan, make_plan
from terrella.engines.memory.show import verdict
from terrella.engines.training_parts import used_settings
from terrella.pipelines.phases import phases

LORA_RANK = 16
SMALL_PACK = 2048
SMALL_SERVER = 0.3
"""Share of a GPU's memory for a vLLM server beside a trainer."""
SERVER_MEMORY = {"trl": "vllm.memory", "verl": "verl.server_memory"}
"""The setting of that share. An endpoint has none."""
MOST_DEVICES = 64
SHOWN = 3
"""Remedies that a refusal names."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something that changes the plan, by a setting or by the hardware."""

    name: str
    assignments: tuple[str, ...] = ()
    """What `--set` would say, for every part that has the setting."""
    devices: int = 1
    """Times as many devices."""


def plan_config(config: Configurable.Config, hardware: Hardware) -> Plan:
    """The plan of a config: DDP if it fits, else FSDP2."""
    share = hardware.shared_by(getattr(config, "at_once", 1))
    found = phases(config)
    plan = make_plan(found, share, "ddp")
    if not plan.fits and share.processes > 1:
        plan = make_plan(found, share, "fsdp2")
    return plan


def check_fits(config: Configurable.Config, plan: Plan, hardware: Hardware) -> None:
    """Refuse a plan that does not fit, naming what would make it fit."""
    if plan.fits:
        return
    found = list(itertools.islice(remedies(config, hardware), SHOWN))
    what = "; or ".join(describe(remedy, made) for remedy, made in found)
    raise ConfigError(
        str(hardware),
        verdict(plan),
        f"these fit: {what}" if found else "nothing that is known here makes it fit",
    )


def describe(remedy: tuple[Remedy, ...], plan: Plan) -> str:
    """How to apply remedies, and how much memory is used then."""
    words = [f"--set {each}" for part in remedy for each in part.assignments]
    hardware = f"on {plan.hardware}" if any(part.devices > 1 for part in remedy) else ""
    how = " ".join(filter(None, (*words, hardware))) or f"sharding {plan.sharding}"
    return f"{how} ({plan.worst.total / 1e9:.0f} of {plan.hardware.usable / 1e9:.0f} GB)"


def remedies(
    config: Configurable.Config, hardware: Hardware
) -> Iterator[tuple[tuple[Remedy, ...], Plan]]:
    """Combinations that fit, the smallest first; no combination that contains one found before."""
    known = _candidates(config, hardware)
    found: list[set[str]] = []
    if not _plan_with(config, hardware, known).fits:
        return  # not even all of them together
    for count in range(1, len(known) + 1):
        for chosen in itertools.combinations(known, count):
            names = {each.name for each in chosen}
            if any(smaller <= names for smaller in found):
                continue
            plan = _plan_with(config, hardware, chosen)
            if plan.fits:
                found.append(names)
                yield chosen, plan


def _plan_with(config: Configurable.Config, hardware: Hardware, chosen: Iterable[Remedy]) -> Plan:
    for remedy in chosen:
        config = with_settings(config, remedy.assignments)
        hardware = replace(hardware, devices=hardware.devices * remedy.devices)
    return plan_config(config, hardware)


def with_settings(config: Any, assignments: Iterable[str]) -> Any:
    """The config with assignments applied, to all arms of a comparison."""
    if hasattr(config, "arms"):
        return config.with_overrides(tuple(assignments), {})
    return override(config, assignments)


def _candidates(config: Any, hardware: Hardware) -> list[Remedy]:
    """What may help, in the order in which it should be tried: nothing lost first."""
    every: Callable[[Any], bool] = lambda settings: True  # noqa: E731
    built = [
        Remedy(
            name="gradient checkpointing",
            assignments=_paths(config, "gradient_checkpointing", "true", every),
        ),
        Remedy(name="a server for sampling", assignments=_fields(config, "sampler", "vllm")),
        Remedy(name="a server that sleeps", assignments=_sleeping_server(config)),
        Remedy(name="a smaller server", assignments=_smaller_server(config)),
        Remedy(
            name="smaller packs",
            assignments=_paths(
                config, "pack_tokens", str(SMALL_PACK), lambda s: s.pack_tokens > SMALL_PACK
            ),
        ),
        Remedy(name="bf16", assignments=_paths(config, "bf16", "true", lambda s: not s.bf16)),
        Remedy(
            name="a critic on the policy's hidden states",
            assignments=_paths(
                config,
                "critic",
                "shared",
                lambda s: isinstance(s, RlvrConfig) and s.algorithm == "ppo",
            ),
        ),
        Remedy(
            name="adapters",
            assignments=_paths(config, "lora_rank", str(LORA_RANK), lambda s: not s.lora_rank),
        ),
    ]
    devices = [
        Remedy(name=f"{times} times the devices", devices=times)
        for times in (2, 4)  # both together are eight
        if not hardware.is_cpu and hardware.devices * times <= MOST_DEVICES
    ]
    return [each for each in built if each.assignments] + devices


def _sleeping_server(config: Any) -> tuple[str, ...]:
    """A server that gives its memory back while a trainer works, where one would stay awake."""
    awake = any(
        phase.settings is not None and phase.server is not None and not phase.server.sleeps
        for phase in phases(config)
    )
    return ("vllm.sleep=true",) if awake else ()


def _smaller_server(config: Any) -> tuple[str, ...]:
    """A smaller share of the memory for vLLM, where a server may be started."""
    found = [
        f"{where}={SMALL_SERVER}"
        for part in _pipelines(config)
        if (where := SERVER_MEMORY.get(getattr(part, "engine", ""), ""))
        and (part.engine == "verl" or part.sampler != "local")
    ]
    return tuple(dict.fromkeys(found))


def _paths(config: Any, name: str, value: str, wanted: Callable[[Any], bool]) -> tuple[str, ...]:
    """Assignments of one setting in all settings of trainers that are used and want it."""
    found = [
        f"{path}.{name}={value}"
        for part in _pipelines(config)
        for path, settings in used_settings(part)
        if isinstance(settings, SftConfig | RlvrConfig | LearnerConfig)
        and name in {each.name for each in fields(settings)}
        and str(getattr(settings, name)).lower() != value
        and wanted(settings)
    ]
    return tuple(dict.fromkeys(found))


def _fields(config: Any, name: str, value: str) -> tuple[str, ...]:
    """The assignment of a field of the pipeline, if it has another value and TRL trains."""
    differs = any(
        getattr(part, name, value) != value and part.engine == "trl" for part in _pipelines(config)
    )
    return (f"{name}={value}",) if differs else ()


def _pipelines(config: Any) -> tuple[Any, ...]:
    """The arms of a comparison, or the one pipeline."""
    return tuple(config.arms.values()) if hasattr(config, "arms") else (config,)
