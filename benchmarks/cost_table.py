"""Writes the tables of docs/scaling.md from the cost model, so that they cannot go stale.

A test checks that the page is up to date.
    python benchmarks/cost_table.py docs/scaling.md
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError
from terrella.engines.hardware import DEVICES
from terrella.evals.cost import CostEstimate, count, duration, estimate, size
from terrella.evals.cost_inputs import CPU_CORE, H100, MODELS, Machine, Model, Workload

BILLION = 1_000_000_000
SYMBOLS = 110
"""Tokens of a character tokenizer with the words of a small world."""
PREDICTION_WORK = Workload(
    prompt_tokens=2_000, answer_tokens=64, group_size=8, groups=16, steps=1_000, pack_tokens=2_560
)
"""RL on a world model: a long state, a short answer, one transition per answer.

A pack holds one whole group.
"""
SIZES: tuple[tuple[str, Machine, str, str, int], ...] = (
    ("laptop, 2 cores", CPU_CORE.on(2), "16GB", "tiny-5m", 16),
    ("laptop, 2 cores", CPU_CORE.on(2), "16GB", "smollm2", 4),
    ("1 H100", H100.on(1), "H100", "1.5b", 64),
    ("8 H100, a server on one", H100.on(8, samplers=1), "8xH100", "7b", 128),
    ("8 H100, servers on all", H100.on(8), "8xH100", "7b", 128),
    ("64 H100", H100.on(64), "8x8xH100", "7b", 512),
    ("1,024 H100", H100.on(1_024), "128x8xH100", "7b", 8_192),
    ("1,024 H100", H100.on(1_024), "128x8xH100", "32b", 8_192),
)
SERVER_SHARE = 0.35
"""Share of a GPU's memory for the vLLM server beside the trainer."""
STORE_RATE = 9_617
"""Transitions/s; measured on frozen_lake with 2 cores (results/foundation.json)."""
STORE_BYTES = 12.9
"""Bytes per transition; measured in the same run."""
CHUNK_EPISODES = 2_000
"""The default of `Collect`."""
EPISODE_STEPS = 5.5
"""Steps of a random episode, measured with that default."""
PART_BYTES = 365
"""Bytes of a part's entry in the manifest, measured with that default."""


def size_rows() -> list[tuple[str, ...]]:
    """One row per size: time, memory and failures."""
    rows = []
    for name, machine, hardware, model, groups in SIZES:
        work = replace(PREDICTION_WORK, groups=groups)
        cost = estimate(work, MODELS[model], machine)
        memory = memory_cell(work, MODELS[model], hardware, machine.samplers)
        rows.append((name, model, str(groups), *_cells(cost, groups, memory)))
    return rows


def memory_cell(work: Workload, model: Model, on: str, samplers: int = 0) -> str:
    """The fullest phase of RL on one device: trainer + sampler or server, and the sharding."""
    from terrella.engines.configs import RlvrConfig
    from terrella.engines.hardware import parse_hardware
    from terrella.engines.memory.model_spec import model_spec
    from terrella.engines.memory.plan import Phase, make_plan
    from terrella.engines.memory.steps import ExampleShape

    hardware, large = parse_hardware(on), model.parameters > 1e9
    settings = RlvrConfig(
        groups=work.groups,
        group_size=work.group_size,
        pack_tokens=work.pack_tokens,
        bf16=large,
        gradient_checkpointing=large,
    )
    phase = Phase(
        name="rlvr",
        model=model_spec(model.name, vocabulary=SYMBOLS),
        settings=settings,
        example=ExampleShape(prompt=work.prompt_tokens, completion=work.completion_tokens),
        members=work.group_size,
        rows=work.episodes,
        server=_server(model, samplers) if large else None,
    )
    plan = make_plan([phase], hardware, "ddp")
    if not plan.fits and hardware.processes > 1:
        plan = make_plan([phase], hardware, "fsdp2")
    trainer, *others = (role.total for role in plan.worst.roles)
    cell = f"{size(trainer)} + {size(sum(others))} = {size(plan.worst.total)}"
    how = f", {plan.sharding.upper()}" if hardware.processes > 1 else ""
    return f"{cell}{how}{'' if plan.fits else ' **too much**'}"


def _server(model: Model, samplers: int) -> Any:
    """The server beside the trainer, on so many devices; 0: on all of them."""
    from terrella.engines.memory.plan import Served

    split = _split(model)
    copies = samplers // split
    return Served(share=SERVER_SHARE, tensor_parallel=split, data_parallel=copies)


def _split(model: Model) -> int:
    """GPUs that share a server: its bf16 weights take at most 60% of its share of each."""
    room = 0.6 * SERVER_SHARE * DEVICES["H100"]
    return 1 << max(0, math.ceil(math.log2(2 * model.parameters / room)))


def _cells(cost: CostEstimate, groups: int, memory: str) -> tuple[str, ...]:
    tokens = cost.tokens
    failures = cost.failures
    transitions_per_second = groups * PREDICTION_WORK.group_size / cost.seconds.step
    return (
        f"{count(tokens.generated)} / {count(tokens.trained)} ({count(tokens.trained_plain)})",
        duration(cost.seconds.step),
        f"{cost.seconds.decode / cost.seconds.step:.0%}",
        memory,
        f"{failures.per_day:.2g}",
        f"{duration(failures.checkpoint_seconds)} / {duration(failures.checkpoint_every)}",
        duration(BILLION / transitions_per_second / (1 - failures.lost_share)),
    )


def store_rows() -> list[tuple[str, ...]]:
    """Cost of collecting 10^6 to 10^9 transitions."""
    rows: list[tuple[str, ...]] = []
    for power in (6, 7, 8, 9):
        transitions = 10**power
        parts = max(1, round(transitions / (CHUNK_EPISODES * EPISODE_STEPS)))
        source = "measured" if power == 6 else "computed"
        rows.append(
            (
                f"10^{power}",
                duration(transitions / STORE_RATE),
                size(transitions * STORE_BYTES),
                count(parts),
                size(parts * PART_BYTES),
                source,
            )
        )
    return rows


def size_table() -> str:
    return _markdown(
        (
            "size",
            "model",
            "groups",
            "tokens per step: generated / trained (unshared)",
            "a step",
            "decoding",
            "memory per device: trainer + sampler",
            "failures/day",
            "checkpoint / best interval",
            "10^9 answers",
        ),
        size_rows(),
    )


def store_table() -> str:
    return _markdown(("transitions", "2 cores", "on disk", "parts", "manifest", ""), store_rows())


PUBLISHED_STEPS = (
    ("Llama-3.1-8B (v0.5)", "8b", 16, 1_019, 92.8),
    ("Qwen3-32B (v0.4)", "32b", 32, 3_206, 393.0),
)
"""NeMo-RL on H100: model, its size here, GPUs, tokens of a sequence, seconds of a step."""


def step_table() -> str:
    """Published steps of 2,048 sequences beside the model's."""
    rows = []
    for name, model, devices, tokens, seconds in PUBLISHED_STEPS:
        work = Workload(
            prompt_tokens=1, answer_tokens=tokens - 1, group_size=16, groups=128, steps=1
        )
        computed = estimate(work, MODELS[model], H100.on(devices)).seconds.step
        cells = (f"{devices} H100", f"2,048 x {tokens:,} tokens", f"{seconds:.0f} s")
        rows.append((name, *cells, f"{computed:.0f} s"))
    return _markdown(("model", "devices", "batch", "published", "computed"), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


START = "<!-- table: {name}; written by python benchmarks/cost_table.py, checked by a test -->"
END = "<!-- /table -->"
TABLES: dict[str, Callable[[], str]] = {
    "sizes": size_table,
    "store": store_table,
    "steps": step_table,
}


def refresh(text: str) -> str:
    """Replace the tables of a page, which stand between `<!-- table: NAME; ... -->` and `END`."""
    for name, table in TABLES.items():
        start = START.format(name=name)
        before, _, rest = text.partition(start)
        _, end, after = rest.partition(END)
        if not end:
            raise ConfigError(
                name, "the page has no markers for this table", f"add {start} and {END}"
            )
        text = f"{before}{start}\n{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(refresh(page.read_text()))
