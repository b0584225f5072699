"""One rank of GRPO on a world model, with one vLLM server for all ranks; rank 0 reports.

torchrun --nproc-per-node 2 tests/support/vllm_ranks.py '{"model": "warm", "out": "run", ...}'
Without FSDP2's environment the ranks are data parallel; without torchrun there is one rank.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import vllm_cpu
from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from tests.support.tiny_run import WrittenRewards

from terrella.codecs.choose import codec_for
from terrella.core.types import Split
from terrella.engines import engine
from terrella.engines.configs import RlvrConfig
from terrella.engines.vllm.server import VllmServer
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

WORLD = Counter.Config(goals=3, max_steps=3)


def main(model: str, out: Path, *, verified: bool, rlvr: dict[str, Any]) -> None:
    """Train, and write `report.<rank>.json`: the curve, and what this rank sampled.

    An untrained model predicts nothing right: `verified` false rewards tokens instead.
    """
    allow_fsdp_on_cpu()
    began = time.perf_counter()
    policy, tokenizer = engine.load_model(model)
    indices: list[int] = []
    kind = Rollout if verified else WrittenRewards
    rollout = kind(Rollout.Config(world=WORLD, turn_tokens=24), codec_for(tokenizer))
    tasks = PredictionTasks(WORLD, split=Split.TRAIN, seed=0)

    def recorded(index: int) -> Any:
        indices.append(index)
        return tasks(index)

    run = engine.rlvr(
        policy,
        tokenizer,
        RlvrConfig(**rlvr),
        rollout,
        recorded,
        out / "model",
        seed=0,
        progress=SilentProgress(),
        vllm=VllmServer.Config(**vllm_cpu.settings()),
    )
    report = {
        "curve": run.curve,
        "tasks": indices,
        "parameter": type(next(run.model.parameters())).__name__,
        "seconds": time.perf_counter() - began,
    }
    rank = os.environ.get("RANK", "0")
    (out / f"report.{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    main(job["model"], Path(job["out"]), verified=job["verified"], rlvr=job["rlvr"])
