"""Estimates the cost of a run before it starts: tokens, seconds, env steps, failures.

The estimate is arithmetic on a workload, a model and a machine, defined in `cost_inputs.py`. Every
constant says whether it was measured, published or assumed. Expect a factor of two. Memory is
planned elsewhere (`engines/memory/`), from real shapes. `benchmarks/cost_table.py` writes the
tables of docs/scaling.md.
    work = Workload(prompt_tokens=2000, answer_tokens=64)
    for name, value in describe(estimate(work, MODELS["7b"], H100)): print(name, value)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from terrella.evals.cost_inputs import Machine, Model, Workload

CHECKPOINT_BYTES = 12
"""Per parameter on disk: weight and Adam's moments, fp32."""
FORWARD_SHARE = 1 / 3
"""Time of a forward pass relative to forward and backward.

Measured (135M, 2 cores): prefill at 1,168 tok/s, training at 2 x 190 tok/s.
"""
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
    overhead: float
    """What a whole step takes beside its phases."""

    @property
    def step(self) -> float:
        """The sum of all phases: the engine is synchronous."""
        return self.read + self.decode + self.world + self.train + self.overhead


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
    failures: Failures
    real_steps: int
    """Env steps of the whole run."""
    run_seconds: float
    """Time of all steps, including the time lost to failures."""


def estimate(
    work: Workload,
    model: Model,
    machine: Machine,
    *,
    checkpoint_every: float | None = None,
) -> CostEstimate:
    """Estimate the cost of a run."""
    tokens = count_tokens(work)
    seconds = step_seconds(work, tokens, model, machine)
    failures = expect_failures(model, machine, checkpoint_every)
    return CostEstimate(
        tokens=tokens,
        seconds=seconds,
        failures=failures,
        real_steps=work.steps * work.episodes * work.turns,
        run_seconds=work.steps * seconds.step / max(1 - failures.lost_share, 1e-9),
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
    rate, samplers = machine.train.at(model.parameters), machine.samplers or machine.devices
    decode = machine.decode.at(model.parameters) * samplers
    processes = 1 if machine.shared_memory else machine.devices
    read = tokens.read / (rate * samplers) * FORWARD_SHARE
    write, learn = tokens.generated / decode, tokens.trained / (rate * machine.devices)
    return Seconds(
        read=read,
        decode=write,
        world=work.episodes * work.turns * work.world_seconds / processes,
        train=learn,
        overhead=(machine.overhead - 1) * (read + write + learn),
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
    """Table rows: name and value."""
    tokens = cost.tokens
    seconds = cost.seconds
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
            f"train {duration(seconds.train)}, overhead {duration(seconds.overhead)}",
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
