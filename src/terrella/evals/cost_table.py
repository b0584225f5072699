"""Writes the tables of docs/scaling.md from the cost model, so that they cannot go stale.

A test checks that the page is up to date.
    python -m terrella.evals.cost_table docs/scaling.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from terrella.core.errors import ConfigError
from terrella.evals.cost import CostEstimate, count, duration, estimate, size
from terrella.evals.cost_inputs import CPU_CORE, H100, MODELS, Machine, Workload

BILLION = 1_000_000_000
PREDICTION_WORK = Workload(
    prompt_tokens=2_000, answer_tokens=64, group_size=8, groups=16, steps=1_000, pack_tokens=2_560
)
"""RL on a world model: a long state, a short answer, one transition per answer.

A pack holds one whole group.
"""
SIZES: tuple[tuple[str, Machine, str, int], ...] = (
    ("laptop, 2 cores", CPU_CORE.on(2), "tiny-5m", 16),
    ("laptop, 2 cores", CPU_CORE.on(2), "smollm2", 4),
    ("1 H100", H100.on(1), "1.5b", 64),
    ("8 H100, FSDP2", H100.on(8, sharded=True), "7b", 128),
    ("64 H100, FSDP2", H100.on(64, sharded=True), "7b", 512),
    ("1,024 H100, FSDP2", H100.on(1_024, sharded=True), "7b", 8_192),
    ("1,024 H100, FSDP2", H100.on(1_024, sharded=True), "32b", 8_192),
)
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
    for name, machine, model, groups in SIZES:
        work = replace(PREDICTION_WORK, groups=groups)
        number_bytes = 4 if machine.shared_memory else 2
        cost = estimate(work, MODELS[model], machine, number_bytes=number_bytes)
        rows.append((name, model, str(groups), *_cells(cost, groups)))
    return rows


def _cells(cost: CostEstimate, groups: int) -> tuple[str, ...]:
    tokens = cost.tokens
    memory = cost.memory
    failures = cost.failures
    transitions_per_second = groups * PREDICTION_WORK.group_size / cost.seconds.step
    return (
        f"{count(tokens.generated)} / {count(tokens.trained)} ({count(tokens.trained_plain)})",
        duration(cost.seconds.step),
        f"{cost.seconds.decode / cost.seconds.step:.0%}",
        f"{size(memory.state)} + {size(memory.sampler_copy)} + "
        f"{size(memory.activations + memory.logits + memory.mask)} + {size(memory.kv_cache)}"
        f" = {size(memory.total)}{'' if cost.fits else ' **too much**'}",
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
            "memory per device: state + sampler's copy + activations + KV",
            "failures/day",
            "checkpoint / best interval",
            "10^9 answers",
        ),
        size_rows(),
    )


def store_table() -> str:
    return _markdown(("transitions", "2 cores", "on disk", "parts", "manifest", ""), store_rows())


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


START = "<!-- table: {name}; written by python -m terrella.evals.cost_table, checked by a test -->"
END = "<!-- /table -->"
TABLES: dict[str, Callable[[], str]] = {"sizes": size_table, "store": store_table}


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
