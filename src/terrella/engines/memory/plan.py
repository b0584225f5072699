"""The memory of a run on one device, phase by phase and role by role, and whether it fits.

A phase is what happens at a time: fitting, generating, training. Its roles are what is on the
device then. Shapes come from following the real code on fake tensors (`steps.py`); what processes
share is arithmetic here.
    plan = make_plan(phases, parse_hardware("8xH100"), "fsdp2")
    plan.fits, plan.worst.total
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from terrella.engines.configs import LearnerConfig, RlvrConfig, SftConfig
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.hardware import Hardware
from terrella.engines.memory.model_spec import ModelSpec, parameters
from terrella.engines.memory.steps import (
    ExampleShape,
    SampleBytes,
    TrainBytes,
    TrainStep,
    sample_bytes,
    train_bytes,
)

Sharding = Literal["ddp", "fsdp2"]
ADAM_MOMENTS = 2
"""Numbers that Adam keeps for each trained weight, in the weight's precision."""
GATHERED_BLOCKS = 2
"""Layers that FSDP2 holds whole: the one that computes and the one that is fetched ahead."""
MAX_ROWS = 512
"""Sequences that the in-process sampler holds at once (`LocalSampler.max_rows`)."""
SERVED_ROWS = 16
"""Sequences of full length that a server must hold at once to be worth starting."""
LEARNER_EXAMPLES = 4096
"""Examples that a call of a learner may pass."""
SERVER_BYTES = 3e9
"""Memory of a vLLM server: CUDA context, compiled graphs, activations of a prefill. Assumed."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """Bytes of one role on one device."""

    name: str
    weights: float = 0.0
    gradients: float = 0.0
    optimiser: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    kv_cache: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in COLUMNS))


COLUMNS = tuple(each.name for each in fields(Role) if each.name != "name")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A generation server beside the trainer."""

    share: float = 0.0
    """Share of a device's memory that it takes, whatever it needs."""
    tensor_parallel: int = 1
    data_parallel: int = 0
    """Copies of the weights, each on `tensor_parallel` devices; 0: as many as the devices hold."""
    sleeps: bool = False
    """It gives its memory back while the trainer works."""
    bf16: bool = True
    """Weights and cache have 16 bits, else 32."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a run, as a plan needs it."""

    name: str
    model: ModelSpec | None
    """None for a frame tokenizer, whose shapes are in its settings."""
    settings: SftConfig | RlvrConfig | LearnerConfig | TokenizerTrainConfig | None
    """None where nothing is trained."""
    example: ExampleShape
    """The longest example."""
    members: int = 1
    """Examples that share a prompt."""
    rows: int = 0
    """Sequences that are sampled at once, over all processes; 0 samples nothing."""
    server: Served | None = None
    """None samples in-process."""
    engine: Literal["trl", "verl", "tinker"] = "trl"


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """What one phase holds on one device."""

    name: str
    roles: tuple[Role, ...]

    @property
    def total(self) -> float:
        return sum(role.total for role in self.roles)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on some hardware."""

    hardware: Hardware
    sharding: Sharding
    phases: tuple[PhasePlan, ...]

    @property
    def worst(self) -> PhasePlan:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def fits(self) -> bool:
        return not self.phases or self.worst.total <= self.hardware.usable


def make_plan(phases: Sequence[Phase], hardware: Hardware, sharding: Sharding) -> Plan:
    """The plan of these phases, each by itself: what one leaves behind is freed."""
    planned = [made for phase in phases for made in plan_phase(phase, hardware, sharding)]
    return Plan(hardware=hardware, sharding=sharding, phases=tuple(planned))


def plan_phase(phase: Phase, hardware: Hardware, sharding: Sharding) -> list[PhasePlan]:
    """One or two plans: generating and training alternate and free each other's memory."""
    if phase.engine == "verl":
        sharding = "fsdp2"
    if isinstance(phase.settings, TokenizerTrainConfig):
        from terrella.engines.memory.frame_tokenizer_step import tokenizer_bytes

        need = tokenizer_bytes(phase.settings, hardware.processes)
        role = _trainer("tokenizer", need, hardware, "ddp", bf16=False)
        return [PhasePlan(name=phase.name, roles=(role,))]
    if phase.settings is None:
        return [PhasePlan(name=phase.name, roles=tuple(_evaluation(phase, hardware)))]
    roles = _trained_roles(phase, hardware, sharding)
    server = [] if phase.server is None else [_server(phase, hardware, phase.server)]
    awake = [] if phase.server is not None and phase.server.sleeps else server
    if isinstance(phase.settings, SftConfig | LearnerConfig):
        return [PhasePlan(name=phase.name, roles=(*roles, *awake))]
    idle = [_idle(role) for role in roles]
    sampled = server or _local_sampler(phase, hardware, sharding)
    return [
        PhasePlan(name=f"{phase.name}: generate", roles=(*idle, *sampled)),
        PhasePlan(name=f"{phase.name}: train", roles=(*roles, *awake)),
    ]


# --- trainers -------------------------------------------------------------------------------------


def _trained_roles(phase: Phase, hardware: Hardware, sharding: Sharding) -> list[Role]:
    assert phase.model is not None
    assert isinstance(phase.settings, SftConfig | RlvrConfig | LearnerConfig)
    settings, step = phase.settings, train_step(phase, hardware.processes)
    without = train_bytes(phase.model, replace(step, critic=""))
    place = {"hardware": hardware, "sharding": sharding, "bf16": settings.bf16}
    roles = [_trainer("policy", without, **place)]  # type: ignore[arg-type]
    if step.critic:
        critic = _difference(train_bytes(phase.model, step), without)
        roles.append(_trainer("critic", critic, **place))  # type: ignore[arg-type]
    if isinstance(settings, RlvrConfig) and settings.kl and not settings.lora_rank:
        parts = hardware.processes if sharding == "fsdp2" else 1
        roles.append(Role(name="reference", weights=without.weights / parts))
    return roles


def train_step(phase: Phase, processes: int) -> TrainStep:
    """What one process trains on: enough examples to fill its largest pack."""
    settings = phase.settings
    assert isinstance(settings, SftConfig | RlvrConfig | LearnerConfig)
    on_verl = phase.engine == "verl"
    critic: Literal["", "shared", "separate"] = ""
    shares = True
    if isinstance(settings, RlvrConfig):
        groups, shares = settings.groups, settings.share_prefix
        if settings.algorithm == "ppo":
            critic = "separate" if on_verl else settings.critic
    elif isinstance(settings, SftConfig):
        groups = settings.batch_size
    else:  # what a call passes is the caller's: it may fill every pack
        groups, shares = LEARNER_EXAMPLES, settings.share_prefix
    groups = max(1, groups // processes)
    length = phase.example.prompt + phase.example.completion
    pack = max(settings.pack_tokens, length) if on_verl else settings.pack_tokens
    enough = math.ceil(pack / max(1, length)) + 1
    return TrainStep(
        examples=(phase.example,) * (min(groups, enough) * phase.members),
        members=phase.members,
        pack_tokens=pack,
        share_prefix=shares and not on_verl,
        bf16=settings.bf16,
        gradient_checkpointing=settings.gradient_checkpointing,
        lora_rank=settings.lora_rank,
        critic=critic,
        entropy_bonus=bool(getattr(settings, "entropy_bonus", 0.0)),
    )


def _trainer(
    name: str, need: TrainBytes, hardware: Hardware, sharding: Sharding, *, bf16: bool
) -> Role:
    processes = hardware.processes
    if sharding == "fsdp2" and processes > 1:
        # FSDP2 casts while it gathers, so autocast makes no copies; layers are given back at once,
        # what is outside of them is held for the whole pass.
        narrow = 0.5 if bf16 else 1.0
        gathered = narrow * (need.outside + GATHERED_BLOCKS * need.block)
        return Role(
            name=name,
            weights=need.weights / processes + gathered,
            # Those of a pack are summed over the processes in fp32, layer by layer.
            gradients=need.trained / processes + need.outside + need.block,
            optimiser=ADAM_MOMENTS * need.trained / processes,
            activations=need.activations,
            logits=need.logits,
        )
    return Role(
        name=name,
        weights=need.weights,
        # DDP exchanges gradients in buckets, which are a second copy of them.
        gradients=need.trained * (2 if processes > 1 else 1),
        optimiser=ADAM_MOMENTS * need.trained,
        activations=need.activations + need.casts,
        logits=need.logits,
    )


def _difference(with_critic: TrainBytes, without: TrainBytes) -> TrainBytes:
    values = {
        each.name: max(0.0, getattr(with_critic, each.name) - getattr(without, each.name))
        for each in fields(TrainBytes)
    }
    return TrainBytes(**values)


def _idle(role: Role) -> Role:
    """A trainer while episodes are generated: gradients and activations are freed."""
    return replace(role, gradients=0.0, activations=0.0, logits=0.0)


# --- samplers -------------------------------------------------------------------------------------


def _local_sampler(phase: Phase, hardware: Hardware, sharding: Sharding) -> list[Role]:
    assert phase.model is not None
    need = _sampler_bytes(phase, hardware)
    sharded = sharding == "fsdp2" and hardware.processes > 1
    bf16 = phase.settings is not None and phase.settings.bf16
    # FSDP2's weights are gathered while episodes are sampled, in the precision of the pass.
    whole = (2.0 if bf16 else 4.0) * parameters(phase.model) if sharded else 0.0
    return [
        Role(name="sampler", weights=whole, activations=need.passing, kv_cache=need.cache),
    ]


def _sampler_bytes(phase: Phase, hardware: Hardware) -> SampleBytes:
    assert phase.model is not None
    rows = max(1, min(MAX_ROWS, math.ceil(phase.rows / hardware.processes)))
    bf16 = phase.settings is not None and phase.settings.bf16
    columns = phase.example.prompt + phase.example.completion
    return sample_bytes(phase.model, rows=rows, columns=columns, bf16=bf16)


def _evaluation(phase: Phase, hardware: Hardware) -> list[Role]:
    """A model that only samples: each process has the whole of it."""
    assert phase.model is not None
    if phase.server is not None:
        return [_server(phase, hardware, replace(phase.server, share=0.0))]
    need = _sampler_bytes(phase, hardware)
    weights = 4.0 * parameters(phase.model)
    return [Role(name="sampler", weights=weights, activations=need.passing, kv_cache=need.cache)]


def _server(phase: Phase, hardware: Hardware, server: Served) -> Role:
    """A vLLM server's share of one device, with a paged cache."""
    assert phase.model is not None
    config = phase.model.config
    width = 2.0 if server.bf16 else 4.0
    weights = width * parameters(phase.model) / server.tensor_parallel
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * width * config.num_hidden_layers * config.num_key_value_heads * head
    length = phase.example.prompt + phase.example.completion
    copies = server.data_parallel or max(1, hardware.processes // server.tensor_parallel)
    rows = math.ceil(phase.rows / copies)
    cache = token * length * min(rows, SERVED_ROWS) / server.tensor_parallel
    taken = max(cache, server.share * hardware.memory - weights - SERVER_BYTES)
    return Role(name="vLLM server", weights=weights, activations=SERVER_BYTES, kv_cache=taken)
