"""One process of a distributed run: trains a few steps and writes a report.

torchrun --nproc-per-node 2 tests/support/distributed_run.py OUT.json
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from tests.support.tiny_run import curve, tiny_trainer

from terrella.engines.ranks import end_rank

RUNS: dict[str, dict[str, Any]] = {
    # One episode per pack: processes have different numbers of packs and pad them.
    "grpo": {"algorithm": "grpo", "pack_tokens": 1, "share_prefix": False},
    "ppo": {
        "algorithm": "ppo",
        "reward": "return",
        "whiten": True,
        "kl": 0.05,
        "epochs": 2,
        "pack_tokens": 300,
    },
    "lora": {"algorithm": "grpo", "lora_rank": 2, "gradient_checkpointing": True},
    # Samples differ in bf16 where rounding does, so only the mismatch is compared.
    "bf16": {"algorithm": "ppo", "bf16": True},
}


def main(out: Path) -> None:
    """Train all runs; every rank writes its curves and the indices of its tasks."""
    allow_fsdp_on_cpu()
    report: dict[str, Any] = {}
    for name, changes in RUNS.items():
        trainer = tiny_trainer(out.parent / name, steps=4, learning_rate=1e-3, **changes)
        indices = _record_tasks(trainer)
        trainer.train()
        trainer.export(out.parent / f"{out.stem}-{name}")
        kind = type(next(trainer.policy.parameters())).__name__
        rows = [row for row in trainer.state.log_history if "entropy" in row]
        report[name] = {
            "tasks": indices,
            "loss": [row["loss"] for row in rows],
            "reward": curve(trainer, "reward"),
            "grad_norm": [row["grad_norm"] for row in rows],
            "parameter": kind,
            "mismatch": [row["mismatch/mean"] for row in rows if "mismatch/mean" in row],
        }
    rank = os.environ.get("RANK", "0")
    out.with_suffix(f".{rank}.json").write_text(json.dumps(report))


def _record_tasks(trainer: Any) -> list[int]:
    indices: list[int] = []
    tasks = trainer.tasks

    def recorded(index: int) -> Any:
        indices.append(index)
        return tasks(index)

    trainer.tasks = recorded
    return indices


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
