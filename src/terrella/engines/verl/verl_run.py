"""One RL run on verl, from the command's side: write the spec, run, show progress, export.

The command waits on the head node while Ray's actors work. A run that lost a process is restarted
from its last checkpoint, which is logged. The result is a Hugging Face folder, as on TRL.
    run = VerlRun(source, rlvr, verl, model=start, folder=work, seed=0)
    curve = run.train(progress)
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from terrella.core.errors import EngineError, TerrellaError
from terrella.core.files import write_atomic
from terrella.core.protocols import Progress
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig, VerlConfig
from terrella.engines.verl.checkpoint_export import export_checkpoint
from terrella.engines.verl.compose import compose
from terrella.engines.verl.limits import check, check_shares
from terrella.engines.verl.rollout_spec import RolloutSpec
from terrella.engines.verl.verl_keys import Job, device_count, verl_keys
from terrella.rollout.source import EpisodeSource

logger = logging.getLogger("terrella")

LOOP_CONFIG = """\
- name: terrella
  _target_: terrella.engines.verl.agent_loop.EpisodeLoop
  spec_file: {spec_file}
"""
CAUSE = "the lines above that begin with ERROR or Traceback name the cause"
SHOWN = (
    "loss",
    "reward",
    "zero_variance",
    "masked",
    "entropy",
    "mismatch/max",
    "seconds/generate",
    "seconds/train",
)


class VerlRun:
    """One run in one folder."""

    def __init__(
        self,
        source: EpisodeSource,
        rlvr: RlvrConfig,
        verl: VerlConfig,
        *,
        model: Path,
        folder: Path,
        seed: int,
        budget: EnvStepBudget | None = None,
    ) -> None:
        """Settings that verl cannot run are refused here, before any process starts."""
        from verl.utils.device import get_device_name

        from terrella.models.presets import max_positions

        check(rlvr)
        rollout = source.rollout
        rlvr.check_rollout(temperature=rollout.temperature, history=rollout.history)
        self.source = source
        self.budget = budget
        self.job = Job(
            model=model.resolve(),
            folder=folder.resolve(),
            rlvr=rlvr,
            seed=seed,
            rollout=source.rollout,
            verl=verl,
            device=get_device_name(),
            devices=verl.devices or device_count(),
            positions=max_positions(model.resolve()),
        )
        check_shares(rlvr, verl.replace(devices=self.job.devices))
        self.composed = compose(verl_keys(self.job), verl.keys)

    def train(self, progress: Progress, phase: str = "rlvr") -> list[dict[str, Any]]:
        """Train to the last step and return the curve; restart when a process was lost."""
        self.job.folder.mkdir(parents=True, exist_ok=True)
        spec = RolloutSpec.of(
            self.source,
            self.job.rlvr,
            seed=self.job.seed,
            budget=self.budget,
            context_tokens=int(self.composed.actor_rollout_ref.rollout.max_model_len or 0),
        )
        spec.write(self.job.spec_file)
        loop_config = LOOP_CONFIG.format(spec_file=self.job.spec_file)
        write_atomic(self.job.loop_config, loop_config.encode())
        metrics = self.job.folder / "metrics.jsonl"
        with _Display(progress, phase, metrics, self.job.rlvr.batches):
            for left in range(self.job.verl.restarts, -1, -1):
                if self._fit(left):
                    break
        return list(curve(metrics))

    def _fit(self, restarts_left: int) -> bool:
        """Try once. False means that a process was lost and a restart is left."""
        import ray
        from verl.trainer.main_ppo import run_ppo
        from verl.utils.config import validate_config

        from terrella.algos.diagnostics import MONITOR
        from terrella.engines.verl.trainer import VerifiedRunner

        critic = self.job.rlvr.algorithm == "ppo"
        validate_config(self.composed, use_reference_policy=self.job.rlvr.kl > 0, use_critic=critic)
        try:
            run_ppo(self.composed, task_runner_class=VerifiedRunner)
            return True
        except ray.exceptions.RayError as error:
            cause = _cause(error)
            if restarts_left == 0 or (isinstance(cause, EngineError) and cause.where == MONITOR):
                raise cause from error
            logger.warning(
                "%s; starting again from %s", cause, self.last_checkpoint() or "the beginning"
            )
            return False
        finally:
            ray.shutdown()

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint: verl writes its number last."""
        latest = self.job.folder / "latest_checkpointed_iteration.txt"
        if not latest.exists():
            return None
        return self.job.folder / f"global_step_{latest.read_text().strip()}"

    def export(self, folder: Path) -> None:
        """Export the model of the last checkpoint as a plain Hugging Face folder."""
        last = self.last_checkpoint()
        if last is None:
            raise EngineError("verl", f"{self.job.folder} holds no checkpoint to export")
        export_checkpoint(last / "actor", folder)


def _cause(error: Any) -> TerrellaError:
    """Our error that was raised in the actor, or else Ray's report, shortened."""
    inner = getattr(error, "cause", None)
    while inner is not None and not isinstance(inner, TerrellaError):
        inner = getattr(inner, "cause", None) or inner.__cause__
    return inner or EngineError("verl", last_words(str(error)), CAUSE)


def last_words(report: str) -> str:
    """The last line of a report that names an error, or its end."""
    named = [line.strip() for line in report.splitlines() if re.match(r"\s*[\w.]*Error: ", line)]
    return (named or [" ".join(report.split())])[-1][-500:]


def curve(file: Path) -> Iterator[dict[str, Any]]:
    """The metrics by step. Of a step repeated after a restart, the last try counts."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    by_step = {metrics["step"]: metrics for metrics in map(json.loads, lines)}
    yield from (by_step[step] for step in sorted(by_step))


class _Display:
    """Shows the metrics that the trainer writes, from a thread: the command waits for Ray."""

    def __init__(self, progress: Progress, phase: str, file: Path, steps: int) -> None:
        self.progress = progress
        self.phase = phase
        self.file = file
        self.steps = steps
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="verl progress", daemon=True)

    def __enter__(self) -> None:
        self.progress.phase(self.phase, self.steps)
        self.progress.advance(len(list(curve(self.file))))
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.finished.set()
        self.thread.join()
        self._show(0)

    def _watch(self) -> None:
        shown = 0
        while not self.finished.wait(1.0):
            shown = self._show(shown)

    def _show(self, shown: int) -> int:
        steps = list(curve(self.file))
        if len(steps) > shown:
            last = steps[-1]
            metrics = {name: float(last[name]) for name in SHOWN if name in last}
            self.progress.advance(last["step"], **metrics)
        return len(steps)
