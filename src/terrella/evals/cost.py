"""Estimates the cost of a run before it starts: tokens, seconds, memory, env steps, failures.

The estimate is arithmetic on a workload, a model and a machine, defined in `cost_inputs.py`. Every
constant says whether it was measured, published or assumed. Expect a factor of two where the
machine was measured, of three elsewhere. `cost_table.py` writes the tables of docs/scaling.md.
    work = Workload(prompt_tokens=2000, answer_tokens=64)
    for name, value in describe(estimate(work, MODELS["7b"], H100)): print(name, value)
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from terrella.evals.cost_inputs import Machine, Model, Workload

STATE_BYTES = 16
"""Per trained parameter: fp32 weight 4, gradient 4, Adam's two moments 8.

bf16 is only used for autocast; the weights stay fp32.
"""
CHECKPOINT_BYTES = 12
"""Per parameter on disk: weight and Adam's moments, fp32."""
ACTIVATION_BYTES = 34
"""Per token, layer and unit of width, with 2-byte numbers and without recomputation.

Korthikanti et al. 2022.
"""
LOGIT_COPIES = 3
"""Logits, log-softmax and its gradient, all fp32."""
FORWARD_SHARE = 1 / 3
"""Time of a forward pass relative to forward and backward.

Measured (135M, 2 cores): prefill at 1,168 tok/s, training at 2 x 190 tok/s.
"""
SAMPLER_ROWS = 512
"""Maximum batch size of the in-process sampler (`LocalSampler.max_rows`)."""
DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens per training step; `*_plain` is without shared prompts inside a group."""

    generated: int
    read: int
    read_plain: int
    trained: int
    trained_plain: int


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Time of one training step, by phase."""

    read: float
    decode: float
    world: float
    train: float

    @property
    def step(self) -> float:
        """The sum of all phases: the engine is synchronous."""
        return self.read + self.decode + self.world + self.train


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes per device."""

    state: float
    sampler_copy: float
    activations: float
    logits: float
    mask: float
    kv_cache: float

    @property
    def total(self) -> float:
        """Upper bound: all parts at the same time."""
        return float(sum(astuple(self)))


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Failure rate, and the time that failures and checkpoints cost.

    The optimal checkpoint interval is Young's: sqrt(2 x checkpoint time x MTBF).
    """

    per_day: float
    checkpoint_seconds: float
    checkpoint_every: float
    """Seconds; the Young/Daly optimum unless given; infinite if nothing fails."""
    lost_share: float
    """Share of the time that is lost to checkpoints, repeated work and restarts."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The estimated cost of one run."""

    tokens: Tokens
    seconds: Seconds
    memory: Memory
    failures: Failures
    real_steps: int
    """Env steps of the whole run."""
    run_seconds: float
    """Time of all steps, including the time lost to failures."""
    fits: bool


def estimate(
    work: Workload,
    model: Model,
    machine: Machine,
    *,
    checkpoint_every: float | None = None,
    number_bytes: int = 4,
) -> CostEstimate:
    """Estimate the cost of a run; `number_bytes` is 2 for bf16 activations and KV caches."""
    tokens, memory = count_tokens(work), peak_memory(work, model, machine, number_bytes)
    seconds = step_seconds(work, tokens, model, machine)
    failures = expect_failures(model, machine, checkpoint_every)
    return CostEstimate(
        tokens=tokens,
        seconds=seconds,
        memory=memory,
        failures=failures,
        real_steps=work.steps * work.episodes * work.turns,
        run_seconds=work.steps * seconds.step / max(1 - failures.lost_share, 1e-9),
        fits=memory.total <= machine.memory,
    )


def count_tokens(work: Workload) -> Tokens:
    """Tokens per step: a group's prompt is prefilled once and, if it fits a pack, trained once.

    Sessions keep their KV cache, so no token is prefilled twice.
    """
    between = work.episodes * (work.turns - 1) * work.world_tokens
    completions = work.episodes * work.completion_tokens
    return Tokens(
        generated=work.episodes * work.turns * work.answer_tokens,
        read=work.groups * work.prompt_tokens + between,
        read_plain=work.episodes * work.prompt_tokens + between,
        trained=work.groups * work.prompts_per_group * work.prompt_tokens + completions,
        trained_plain=work.episodes * work.prompt_tokens + completions,
    )


def step_seconds(work: Workload, tokens: Tokens, model: Model, machine: Machine) -> Seconds:
    """Devices share the tokens evenly; each training process steps its own environments."""
    train = machine.train.at(model.active_parameters) * machine.devices
    processes = 1 if machine.shared_memory else machine.devices
    return Seconds(
        read=tokens.read / train * FORWARD_SHARE,
        decode=tokens.generated / (machine.decode.at(model.active_parameters) * machine.devices),
        world=work.episodes * work.turns * work.world_seconds / processes,
        train=tokens.trained / train,
    )


def peak_memory(work: Workload, model: Model, machine: Machine, number_bytes: int) -> Memory:
    """Peak of the fullest device: one training pack, and all live sequences in the KV cache."""
    processes = 1 if machine.shared_memory else machine.devices
    sequence = work.prompt_tokens + work.completion_tokens
    pack = min(max(work.pack_tokens, sequence), work.episodes * sequence)
    rows = min(SAMPLER_ROWS, math.ceil(work.episodes / processes))
    targets = pack * work.turns * work.answer_tokens / sequence
    if work.prompts_per_group == 1:
        group = work.prompt_tokens + work.group_size * work.completion_tokens
        targets = pack * work.group_size * work.turns * work.answer_tokens / group
    return Memory(
        state=STATE_BYTES * model.parameters / (processes if machine.sharded else 1),
        sampler_copy=4 * model.parameters if machine.sharded else 0.0,
        activations=ACTIVATION_BYTES * number_bytes / 2 * pack * model.layers * model.width,
        logits=LOGIT_COPIES * 4 * targets * model.vocabulary,
        mask=float(pack * pack),
        kv_cache=float(rows * sequence * 2 * model.layers * model.kv_width * number_bytes),
    )


def expect_failures(model: Model, machine: Machine, every: float | None = None) -> Failures:
    """Any failing device stops the run, which then resumes from the last checkpoint."""
    mtbf = machine.mtbf_hours * 3600 / machine.devices
    write = CHECKPOINT_BYTES * model.parameters / machine.checkpoint_rate
    interval = math.sqrt(2 * write * mtbf) if every is None else every
    if math.isinf(mtbf):
        share = 0.0 if math.isinf(interval) else write / interval
        return Failures(
            per_day=0.0, checkpoint_seconds=write, checkpoint_every=interval, lost_share=share
        )
    lost = write / interval + (interval / 2 + machine.restart_seconds) / mtbf
    return Failures(
        per_day=DAY / mtbf,
        checkpoint_seconds=write,
        checkpoint_every=interval,
        lost_share=min(lost, 1.0),
    )


# --- formatting -----------------------------------------------------------------------------------


def describe(cost: CostEstimate) -> list[tuple[str, str]]:
    """Table rows for `--dry-run`: name and value."""
    tokens = cost.tokens
    seconds = cost.seconds
    memory = cost.memory
    failures = cost.failures
    return [
        ("tokens generated per step", count(tokens.generated)),
        (
            "tokens read per step",
            f"{count(tokens.read)} ({count(tokens.read_plain)} without shared prompts)",
        ),
        (
            "tokens trained per step",
            f"{count(tokens.trained)} ({count(tokens.trained_plain)} without shared prompts)",
        ),
        (
            "a step",
            f"{duration(seconds.step)}: read {duration(seconds.read)}, "
            f"decode {duration(seconds.decode)}, worlds {duration(seconds.world)}, "
            f"train {duration(seconds.train)}",
        ),
        (
            "memory per device",
            f"{size(memory.total)}: state {size(memory.state)}, "
            f"sampler's copy {size(memory.sampler_copy)}, "
            f"activations {size(memory.activations + memory.logits + memory.mask)}, "
            f"KV cache {size(memory.kv_cache)}{'' if cost.fits else ' -- does not fit'}",
        ),
        ("real steps", count(cost.real_steps)),
        ("the run", duration(cost.run_seconds)),
        ("failures per day", f"{failures.per_day:.2g}"),
        (
            "checkpoint",
            f"{duration(failures.checkpoint_seconds)} every {duration(failures.checkpoint_every)}, "
            f"{failures.lost_share:.1%} of the time lost",
        ),
    ]


def count(number: float) -> str:
    """Format a count: `950`, `12.3k`, `4.0M`, `1.2G`."""
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return f"{number:.0f}"


def size(number: float) -> str:
    """Format bytes: `0`, `12 MB`, `1.5 GB`."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} GB"
    return f"{math.ceil(number / 1e6)} MB" if number else "0"


def duration(value: float) -> str:
    """Format seconds: `0.03 s`, `12 s`, `3.1 min`, `2.4 h`, `5.0 days`, `never`."""
    if math.isinf(value):
        return "never"
    for name, unit in (("days", DAY), ("h", 3600.0), ("min", 60.0)):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
