"""The engine for one machine: TRL trains, this process or a vLLM server samples.

with TrlEngine(EngineConfig(sampler="vllm"), Path("runs/x/engine")) as engine: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from terrella.core.protocols import Progress, Sampler
from terrella.core.run_folder import rank
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import EngineConfig, RlvrConfig, SftConfig
from terrella.engines.engine import Examples, Model, RlvrRun
from terrella.engines.sampling import SamplerFactory
from terrella.rollout.source import EpisodeSource


class TrlEngine:
    """See `engines.engine.Engine`."""

    def __init__(self, config: EngineConfig, work: Path) -> None:
        self.samplers = SamplerFactory(config, work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.samplers.__exit__()

    @contextlib.contextmanager
    def sampler(self, model: Model) -> Iterator[Sampler]:
        yield self.samplers.make(model)

    def sft(
        self,
        start: Model,
        examples: Examples,
        config: SftConfig,
        folder: Path,
        *,
        seed: int,
        progress: Progress,
        phase: str = "fit",
    ) -> list[float]:
        from terrella.engines.trl.sft_trainer import SftTrainer
        from terrella.engines.trl.trainer_progress import ShowProgress
        from terrella.models.presets import load_model

        work = folder.with_name(f"{folder.name}-sft")
        model, tokenizer = load_model(str(start))
        callbacks = [ShowProgress(progress, phase)]
        trainer = SftTrainer(model, tokenizer, config, examples, work, callbacks, seed=seed)
        trainer.fit(folder)
        return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]

    def rlvr(  # noqa: PLR0913  see `Engine`
        self,
        start: Model,
        source: EpisodeSource,
        config: RlvrConfig,
        folder: Path,
        *,
        seed: int,
        progress: Progress,
        phase: str = "rlvr",
        budget: EnvStepBudget | None = None,
        record_every: int = 0,
    ) -> RlvrRun:
        from terrella.engines.trl.collapse_alarm import CollapseAlarm
        from terrella.engines.trl.rlvr_trainer import RlvrTrainer
        from terrella.engines.trl.step_budget import StopAtBudget
        from terrella.engines.trl.token_recorder import TokenRecorder
        from terrella.engines.trl.trainer_progress import ShowProgress
        from terrella.models.presets import load_model

        work = folder.with_name(f"{folder.name}-rlvr")
        model, tokenizer = load_model(str(start))
        budget = budget or EnvStepBudget()
        alarm = CollapseAlarm()
        recorder = None
        with source.make_rollout(tokenizer) as rollout:
            if record_every and rank() == 0:
                recorder = TokenRecorder(
                    work / "tokens", rollout.codec, tokenizer, every=record_every
                )
            trainer = RlvrTrainer(
                model,
                tokenizer,
                config,
                rollout,
                source.tasks.make(),
                work,
                [
                    StopAtBudget(budget, lambda: rollout.env_steps),
                    alarm,
                    ShowProgress(progress, phase, budget),  # reads what the budget restores
                ],
                seed=seed,
                sampler=self.samplers.serve(start) if self.samplers.uses_server(start) else None,
                recorder=recorder,
            )
            trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
        trainer.export(folder)
        curve = [row for row in trainer.state.log_history if "reward" in row]
        return RlvrRun(curve, trainer.state.global_step, alarm.warning, budget)
