"""The engine for one machine: TRL trains, this process or a vLLM server samples.

with TrlEngine(EngineConfig(sampler="vllm"), Path("runs/x/engine")) as engine: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from terrella.core.protocols import Learner, Progress, Sampler
from terrella.core.run_folder import machine_count, processes, rank
from terrella.core.tokens import Head
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import EngineConfig, LearnerConfig, RlvrConfig, SftConfig
from terrella.engines.device_memory import free_memory
from terrella.engines.interface import Examples, Model, RlvrRun
from terrella.engines.ranks import check_one_machine
from terrella.engines.sampling import SamplerFactory
from terrella.engines.vllm.placement import check_placement
from terrella.engines.vllm.server import require_vllm
from terrella.rollout.source import EpisodeSource


class TrlEngine:
    """See `engines.interface.Engine`."""

    def __init__(
        self,
        config: EngineConfig,
        work: Path,
        *,
        rlvr: RlvrConfig | None = None,
        learners: LearnerConfig | None = None,
        temperature: float = 1.0,
        model: str | None = None,
    ) -> None:
        trained = rlvr or learners
        if trained is not None:
            vllm = config.vllm.beside_trainer(bf16=trained.bf16, temperature=temperature)
            config = config.replace(vllm=vllm)
        self.samplers = SamplerFactory(config, work)
        serves_rl = rlvr is not None and bool(model and self.samplers.uses_server(model))
        if config.sampler == "vllm" or serves_rl:
            require_vllm()
            if learners is not None or (rlvr is not None and rlvr.steps):
                schedule = "sync" if rlvr is None else rlvr.schedule
                check_placement(config.vllm, ranks=processes(), schedule=schedule)
        if serves_rl and rlvr is not None and rlvr.steps:
            check_one_machine(machine_count())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.samplers.__exit__()

    def sampler(self, model: Model) -> AbstractContextManager[Sampler]:
        return self.samplers.open(model)

    @contextlib.contextmanager
    def learner(
        self,
        model: Model,
        *,
        head: Head = "token",
        config: LearnerConfig | None = None,
        work: Path,
        seed: int = 0,
    ) -> Iterator[Learner]:
        """See `Engine`. Nothing is written to `work`: packs and states stay in memory."""
        from terrella.engines.trl.learner import TrlLearner
        from terrella.models.presets import load_model

        causal_lm, tokenizer = load_model(model)
        learner = TrlLearner(
            causal_lm,
            tokenizer,
            config or LearnerConfig(),
            head=head,
            folder=Path(model),
            serve=lambda: self.samplers.for_training(model),
            seed=seed,
        )
        del causal_lm
        try:
            yield learner
        finally:
            learner.close()

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
        model, tokenizer = load_model(start)
        callbacks = [ShowProgress(progress, phase)]
        trainer = SftTrainer(model, tokenizer, config, examples, work, callbacks, seed=seed)
        trainer.fit(folder)
        losses = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
        del trainer, model
        free_memory()
        return losses

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
        model, tokenizer = load_model(start)
        budget = budget or EnvStepBudget()
        alarm = CollapseAlarm()
        recorder = None
        with (
            source.make_rollout(tokenizer) as rollout,
            self.samplers.for_training(start) as sampler,
        ):
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
                sampler=sampler,
                recorder=recorder,
            )
            trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
        trainer.export(folder)
        curve = [row for row in trainer.state.log_history if "reward" in row]
        run = RlvrRun(curve, trainer.state.global_step, alarm.warning, budget)
        del trainer, model
        free_memory()
        return run
