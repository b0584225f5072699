"""The engine for clusters: stock verl on Ray.

The command waits on the head node while Ray's workers train and its servers sample. Models go in
and out as Hugging Face folders, as on TRL.
    with VerlEngine(EngineConfig(engine="verl"), Path("runs/x/engine")) as engine: ...
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from terrella.core.errors import EngineError
from terrella.core.protocols import Learner, Progress, Sampler
from terrella.core.tokens import Head, TrainExample
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import (
    EngineConfig,
    LearnerConfig,
    RlvrConfig,
    SftConfig,
    VerlConfig,
)
from terrella.engines.interface import Examples, Model, RlvrRun
from terrella.engines.sampling import SamplerFactory
from terrella.engines.verl.limits import check_history, check_recording
from terrella.rollout.fanout import keep_ray_on_loopback
from terrella.rollout.source import EpisodeSource

logger = logging.getLogger("terrella")

INSTALL = (
    "no extra brings it: in an environment of its own, run the two lines of docs/engines.md "
    '("On a cluster: verl"), or build docker/verl.Dockerfile'
)


class VerlEngine:
    """See `engines.interface.Engine`."""

    def __init__(self, config: EngineConfig, work: Path) -> None:
        if importlib.util.find_spec("verl") is None:
            raise EngineError("verl", "is not installed, and engine=verl needs it", INSTALL)
        keep_ray_on_loopback()
        self.config = config
        self.work = work
        self.samplers = SamplerFactory(config, work)
        if config.sampler == "vllm" and config.vllm.memory:
            logger.warning(
                "verl's servers use verl.server_memory=%g of a device; vllm.memory=%g is not read",
                config.verl.server_memory,
                config.vllm.memory,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.samplers.__exit__()

    @contextlib.contextmanager
    def sampler(self, model: Model) -> Iterator[Sampler]:
        """See `Engine`. Servers are started on the cluster, and end with the context.

        Only sampler=local samples in this process. A server of ours would stay beside training.
        """
        if self.config.sampler == "local":
            with self.samplers.open(model) as sampler:
                yield sampler
            return
        from terrella.engines.verl.servers import open_servers
        from terrella.models.presets import model_folder

        with open_servers(self.config, model_folder(model)) as sampler:
            yield sampler

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
        """See `Engine`. `work` is on storage that all nodes share."""
        from terrella.engines.verl.learner import open_learner
        from terrella.models.presets import model_folder

        with open_learner(
            self.config,
            self.samplers,
            model_folder(model),
            config or LearnerConfig(),
            head=head,
            work=work,
            seed=seed,
        ) as learner:
            yield learner

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
        from terrella.engines.verl.checkpoint_export import export_checkpoint
        from terrella.engines.verl.sft import fit_examples
        from terrella.models.presets import model_folder

        single: list[TrainExample] = []
        for each in examples:
            single += [each] if isinstance(each, TrainExample) else each
        config = by_example(config, self.config.verl, items=len(examples), examples=len(single))
        work = folder.with_name(f"{folder.name}-sft").resolve()
        steps = config.epochs * (len(single) // config.batch_size)
        progress.phase(phase, steps)
        checkpoint, losses = fit_examples(
            single, config, self.config.verl, model_folder(start), work, seed=seed
        )
        progress.advance(steps)
        export_checkpoint(checkpoint, folder)
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
        from terrella.engines.verl.verl_run import VerlRun
        from terrella.models.presets import model_folder

        check_recording(record_every)
        check_history(source.rollout.history)
        budget = budget or EnvStepBudget()
        run = VerlRun(
            source,
            config,
            self.config.verl,
            model=model_folder(start),
            folder=folder.with_name(f"{folder.name}-rlvr"),
            seed=seed,
            budget=budget,
        )
        curve = run.train(progress, phase)
        run.export(folder)
        rows = [row for row in curve if "reward" in row]
        budget.played = int(rows[-1].get("env_steps", budget.spent)) - budget.spent if rows else 0
        return RlvrRun(rows, len(rows) * config.steps_per_batch, _collapse(rows), budget)


def by_example(config: SftConfig, verl: VerlConfig, *, items: int, examples: int) -> SftConfig:
    """SFT whose batches are counted in examples, as verl counts them; ours are counted in items.

    A batch then has as many examples as on other engines, on average. It stays a multiple of the
    devices, which share it.
    """
    if examples == items:
        return config
    from terrella.engines.verl.verl_keys import device_count

    devices = verl.nodes * (verl.devices or device_count())
    shares = round(config.batch_size * examples / items / devices)
    scaled = devices * max(1, shares)
    logger.info(
        "batch_size: %d items are %d of verl's examples (%d in %d items)",
        config.batch_size,
        scaled,
        examples,
        items,
    )
    return config.replace(batch_size=scaled)


def _collapse(rows: list[dict[str, float]]) -> str | None:
    """The first warning of a collapse; one about masked verdicts is only logged.

    verl's own process knows no alarm, so the curve is read at the end.
    """
    from terrella.algos.diagnostics import CollapseWatch, MaskWatch

    watch, mask_watch = CollapseWatch(), MaskWatch()
    warnings = [watch.see_step(row) for row in rows]
    first = next((warning for warning in warnings if warning), None)
    if first:
        logger.warning("this run seems to have collapsed: %s", first)
    masks = next((warning for row in rows if (warning := mask_watch.see_step(row))), None)
    if masks:
        logger.warning("%s", masks)
    return first
