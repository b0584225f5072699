"""What pipelines ask of an engine: load a model, sample from it, fit it, train it with rewards.

Pipelines import this module and no trainer. Torch and TRL are imported by the call that needs them,
so a config can be built, checked and printed without them.
    model, tokenizer = load_model("tiny-0.3m", vocabulary=("Up", "Down"))
    sft(model, tokenizer, SftConfig(), examples, Path("runs/x/model"), seed=0, progress=progress)
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.protocols import Progress, Sampler
from terrella.core.run_folder import rank
from terrella.core.tokens import Task, TrainExample
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.vllm import ranks
from terrella.engines.vllm.ranks import server_for_ranks
from terrella.engines.vllm.server import VllmServer
from terrella.rollout.rollout import Rollout

Examples = Sequence[TrainExample | Sequence[TrainExample]]
"""Training examples; several that share a prompt stay together, so that it is read once."""
Curve = list[dict[str, Any]]
"""Metrics by step, as the trainer logged them."""


@dataclass(frozen=True, slots=True)
class RlvrRun:
    """What RL leaves: the trained model (also exported to its folder) and how training went."""

    model: Any
    curve: Curve
    steps: int
    collapse: str | None
    """Why the run seems to have collapsed, if it does."""


def load_model(name: str, *, vocabulary: Sequence[str] = (), seed: int = 0) -> tuple[Any, Any]:
    """A causal LM and its tokenizer, by name or folder; see `models/presets.py`."""
    from terrella.models import presets

    return presets.load_model(name, vocabulary=vocabulary, seed=seed)


def export_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a plain Hugging Face folder, whole or not at all."""
    from terrella.models import export

    export.export_model(model, tokenizer, folder)


def local_sampler(model: Any) -> Sampler:
    """A sampler in this process, on the model's own weights. For small models."""
    from terrella.engines.local import local_sampler as local

    return local.local_sampler(model)


def sft(  # noqa: PLR0913  what is trained, on what, where: none has a default
    model: Any,
    tokenizer: Any,
    config: SftConfig,
    examples: Examples,
    folder: Path,
    *,
    seed: int,
    progress: Progress,
    phase: str = "fit",
) -> list[float]:
    """Fit the model to the masked tokens of the examples and export it; returns the losses.

    Checkpoints go to `<folder>-sft`; the same call resumes from them. All ranks call it.
    """
    from terrella.engines.trl.sft_trainer import SftTrainer
    from terrella.engines.trl.trainer_progress import ShowProgress

    work = folder.with_name(f"{folder.name}-sft")
    callbacks = [ShowProgress(progress, phase)]
    trainer = SftTrainer(model, tokenizer, config, examples, work, callbacks, seed=seed)
    trainer.fit(folder)
    return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]


def rlvr(  # noqa: PLR0913  as above, with the choices of a run
    model: Any,
    tokenizer: Any,
    config: RlvrConfig,
    rollout: Rollout,
    tasks: Callable[[int], Task],
    folder: Path,
    *,
    seed: int,
    progress: Progress,
    phase: str = "rlvr",
    budget: EnvStepBudget | None = None,
    vllm: VllmServer.Config | None = None,
    record_every: int = 0,
) -> RlvrRun:
    """Train with verified rewards and export to `folder`. All ranks call it.

    Checkpoints go to `<folder>-rlvr`; the same call resumes from them. With `vllm` the episodes are
    sampled by a server beside the trainer. Tokens of every `record_every`-th step are kept.
    """
    from terrella.engines.trl.collapse_alarm import CollapseAlarm
    from terrella.engines.trl.rlvr_trainer import RlvrTrainer
    from terrella.engines.trl.step_budget import StopAtBudget
    from terrella.engines.trl.token_recorder import TokenRecorder
    from terrella.engines.trl.trainer_progress import ShowProgress

    work = folder.with_name(f"{folder.name}-rlvr")
    alarm = CollapseAlarm()
    callbacks = [alarm, ShowProgress(progress, phase, budget)]
    if budget is not None:
        callbacks.insert(0, StopAtBudget(budget))  # first: the display reads what it restores
    recorder = None
    if record_every and rank() == 0:
        recorder = TokenRecorder(work / "tokens", rollout.codec, tokenizer, every=record_every)
    if vllm is not None:
        vllm = vllm.beside_trainer(bf16=config.bf16, temperature=rollout.config.temperature)
    with _server_sampler(vllm, model, tokenizer, work) as sampler:
        trainer = RlvrTrainer(
            model,
            tokenizer,
            config,
            rollout,
            tasks,
            work,
            callbacks,
            seed=seed,
            sampler=sampler,
            recorder=recorder,
        )
        trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
    trainer.export(folder)
    curve = [row for row in trainer.state.log_history if "reward" in row]
    return RlvrRun(trainer.policy, curve, trainer.state.global_step, alarm.warning)


@contextlib.contextmanager
def _server_sampler(
    config: VllmServer.Config | None, model: Any, tokenizer: Any, work: Path
) -> Iterator[Any]:
    """A sampler on a vLLM server that all ranks of this run share; None without a config."""
    if config is None:
        yield None
        return
    if rank() == 0:
        export_model(model, tokenizer, work / "served")
    with server_for_ranks(config, work / "served", log=work / "vllm.log") as sampler:
        yield sampler


def barrier() -> None:
    """Wait for all ranks of the run; nothing to do for a run of one process."""
    ranks.barrier()


def processes() -> int:
    """How many processes the launcher started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def read_curve(path: Path) -> Curve:
    """Metrics by step from a `curve.jsonl`."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
