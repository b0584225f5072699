"""The tables of docs/scaling.md, written from the cost model so that they cannot drift.

python -m terrella.use.cost_table docs/scaling.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from terrella.core.errors import ConfigError
from terrella.use.cost import Estimate, count, duration, estimate, size
from terrella.use.cost_inputs import CPU_CORE, H100, MODELS, Machine, Workload

BILLION = 1_000_000_000
QUESTION = Workload(prompt_tokens=2_000, answer_tokens=64, group_size=8, groups=16, steps=1_000, pack_tokens=2_560)
"""A world model's: a long state, a short answer; one transition per answer. A pack holds one whole group."""
SIZES: tuple[tuple[str, Machine, str, int], ...] = (
    ("laptop, 2 cores", CPU_CORE.on(2), "tiny-5m", 16),
    ("laptop, 2 cores", CPU_CORE.on(2), "smollm2", 4),
    ("1 H100", H100.on(1), "1.5b", 64),
    ("8 H100, FSDP2", H100.on(8, sharded=True), "7b", 128),
    ("64 H100, FSDP2", H100.on(64, sharded=True), "7b", 512),
    ("1,024 H100, FSDP2", H100.on(1_024, sharded=True), "7b", 8_192),
    ("1,024 H100, FSDP2", H100.on(1_024, sharded=True), "32b", 8_192),
)
STORE_RATE, STORE_BYTES = 9_617, 12.9
"""Measured on frozen_lake with 2 cores: results/foundation.json."""
CHUNK_EPISODES, EPISODE_STEPS, PART_BYTES = 2_000, 5.5, 365
"""`Collect`'s default; then measured with it: steps of a random episode, bytes of a part's entry in the manifest."""


def size_rows() -> list[tuple[str, ...]]:
    """One row per size: what a step costs, what it holds, what fails."""
    rows = []
    for name, machine, model, groups in SIZES:
        found = estimate(replace(QUESTION, groups=groups), MODELS[model], machine, number_bytes=_bytes(machine))
        rows.append((name, model, str(groups), *_cells(found, groups)))
    return rows


def _bytes(machine: Machine) -> int:
    return 4 if machine.shared_memory else 2


def _cells(found: Estimate, groups: int) -> tuple[str, ...]:
    tokens, memory = found.tokens, found.memory
    transitions = groups * QUESTION.group_size / found.seconds.step
    return (
        f"{count(tokens.generated)} / {count(tokens.trained)} ({count(tokens.trained_plain)})",
        duration(found.seconds.step),
        f"{found.seconds.decode / found.seconds.step:.0%}",
        f"{size(memory.state)} + {size(memory.sampler_copy)} + "
        f"{size(memory.activations + memory.logits + memory.mask)} + {size(memory.kv_cache)}"
        f" = {size(memory.total)}{'' if found.fits else ' **too much**'}",
        f"{found.failures.per_day:.2g}",
        f"{duration(found.failures.checkpoint_seconds)} / {duration(found.failures.checkpoint_every)}",
        duration(BILLION / transitions / (1 - found.failures.lost_share)),
    )


def store_rows() -> list[tuple[str, ...]]:
    """What collecting transitions costs, from 10^6 to 10^9."""
    rows: list[tuple[str, ...]] = []
    for power in (6, 7, 8, 9):
        transitions = 10**power
        parts = max(1, round(transitions / (CHUNK_EPISODES * EPISODE_STEPS)))
        source = "measured" if power == 6 else "computed"
        rows.append((
            f"10^{power}", duration(transitions / STORE_RATE), size(transitions * STORE_BYTES), count(parts),
            size(parts * PART_BYTES), source,
        ))  # fmt: skip
    return rows


def size_table() -> str:
    """Markdown."""
    return _markdown(
        ("size", "model", "groups", "tokens per step: generated / trained (unshared)", "a step", "decoding",
         "memory per device: state + sampler's copy + activations + KV", "failures/day",
         "checkpoint / best interval", "10^9 answers"),
        size_rows(),
    )  # fmt: skip


def store_table() -> str:
    """Markdown."""
    return _markdown(("transitions", "2 cores", "on disk", "parts", "manifest", ""), store_rows())


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


END = "<!-- /table -->"
TABLES: dict[str, Callable[[], str]] = {"sizes": size_table, "store": store_table}


def refresh(text: str) -> str:
    """The page with its tables as the model says them now: between `<!-- table: NAME -->` and `<!-- /table -->`."""
    for name, table in TABLES.items():
        mark = f"<!-- table: {name}; written by python -m terrella.use.cost_table, checked by a test -->"
        before, _, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        if not end:
            raise ConfigError(name, "the page has no place for this table", f"add {mark} and {END}")
        text = f"{before}{mark}\n{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(refresh(page.read_text()))
