"""One rank of GRPO on a world model, with one vLLM server for all ranks; rank 0 reports.

torchrun --nproc-per-node 2 tests/support/vllm_ranks.py '{"model": "warm", "out": "run", ...}'
Without FSDP2's environment the ranks are data parallel; without torchrun there is one rank.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import vllm_cpu
from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu
from tests.support.tiny_run import WrittenRewards

from terrella.engines.configs import EngineConfig, RlvrConfig
from terrella.engines.engine import make_engine
from terrella.engines.ranks import end_rank
from terrella.engines.trl import rlvr_trainer
from terrella.engines.trl.rlvr_trainer import RlvrTrainer
from terrella.engines.vllm.server import VllmServer
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, WorldTasks
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

WORLD = Counter.Config(goals=3, max_steps=3)
SAMPLED: list[int] = []
"""Numbers of the tasks that this rank sampled."""
PARAMETERS: set[str] = set()
"""Classes of the trained parameters: a `DTensor` is sharded."""


@dataclass(frozen=True, kw_only=True)
class RecordedTasks(WorldTasks):
    """World-model tasks that write down which were asked for."""

    def make(self) -> Tasks:
        tasks = super().make()

        def recorded(index: int) -> Any:
            SAMPLED.append(index)
            return tasks(index)

        return recorded


@dataclass(frozen=True, kw_only=True)
class TokenSource(EpisodeSource):
    """Rewards tokens: an untrained model predicts nothing right."""

    def make_rollout(self, tokenizer: Any) -> Rollout:
        return WrittenRewards(self.rollout, self.codec.make(tokenizer))


class SeenTrainer(RlvrTrainer):
    """Writes down how its parameters are stored."""

    def export(self, folder: Path) -> None:
        PARAMETERS.update(type(weight).__name__ for weight in self.policy.parameters())
        super().export(folder)


def main(model: str, out: Path, *, verified: bool, rlvr: dict[str, Any]) -> None:
    """Train, and write `report.<rank>.json`: the curve, and what this rank sampled."""
    allow_fsdp_on_cpu()
    rlvr_trainer.RlvrTrainer = SeenTrainer  # type: ignore[misc]
    began = time.perf_counter()
    settings = EngineConfig(sampler="vllm", vllm=VllmServer.Config(**vllm_cpu.settings()))
    config = RlvrConfig(**rlvr)
    kind = EpisodeSource if verified else TokenSource
    source = kind(
        rollout=Rollout.Config(world=WORLD, turn_tokens=24),
        tasks=RecordedTasks(world=WORLD, ask="observation"),
    )
    with make_engine(settings, work=out / "engine", rlvr=config) as engine:
        run = engine.rlvr(model, source, config, out / "model", seed=0, progress=SilentProgress())
    report = {
        "curve": run.curve,
        "tasks": SAMPLED,
        "parameter": "/".join(sorted(PARAMETERS)),
        "seconds": time.perf_counter() - began,
    }
    rank = os.environ.get("RANK", "0")
    (out / f"report.{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    main(job["model"], Path(job["out"]), verified=job["verified"], rlvr=job["rlvr"])
    end_rank()
