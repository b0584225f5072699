"""RLVR on verl, from the command's side: check, write the plan, run, show progress, export.

The command waits on the head node while Ray's actors work; a run that lost a process starts again from its last
checkpoint, and says which. The result is the same Hugging Face folder that the other engine leaves.
    VerlEngine(stage_config, model=Path("runs/x/warm")).train(progress)
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from terrella.core.config import dump
from terrella.core.errors import EngineError, MissingExtraError, TerrellaError
from terrella.core.protocols import Progress
from terrella.data.store import write_atomic
from terrella.engines.episodes.driver import Driver
from terrella.engines.fanout import search_path
from terrella.engines.verl.plan import Plan
from terrella.engines.verl.verl_keys import Job, check, compose, verl_keys

logger = logging.getLogger("terrella")

LOOPS = "- name: terrella\n  _target_: terrella.engines.verl.agent_loop.EpisodeLoop\n  plan: {plan}\n"
SHOWN = ("loss", "reward", "zero_variance", "masked", "entropy", "mismatch/max", "seconds/generate", "seconds/train")


class VerlEngine:
    """One run in one folder."""

    def __init__(self, config: Any, driver: Driver.Config, model: Path) -> None:
        """Everything that can be refused is refused here, before a process starts."""
        try:
            from verl.utils.device import get_device_name
        except ImportError as error:
            raise MissingExtraError("verl", "engine=verl (see docs/design/0003-verl.md for the versions)") from error
        check(config.rlvr)
        self.config = config
        self.job = Job(
            model=model.resolve(), folder=(config.out / "verl").resolve(), rlvr=config.rlvr.replace(seed=config.seed),
            driver=driver, verl=config.verl, device=get_device_name(), devices=config.verl.devices or _devices(),
        )  # fmt: skip
        self.composed = compose(verl_keys(self.job), config.verl.keys)

    def fit(self, rows: Sequence[Any], start: Path, folder: Path) -> None:
        """SFT of the model in `start` on rows, through verl's SFT trainer; the result as a plain folder."""
        from terrella.engines.verl.sft import fit_rows

        settings = self.config.warmup.replace(seed=self.config.seed)
        _copy(fit_rows(rows, self.composed, settings, start.resolve(), self.job.folder / "sft"), folder)

    def train(self, progress: Progress) -> list[dict[str, Any]]:
        """Train to the last step; returns the curve. A lost process costs a restart, not the run."""
        self.job.folder.mkdir(parents=True, exist_ok=True)
        Plan(stage=dump(self.config), path=search_path()).write(self.job.plan)
        write_atomic(self.job.loops, LOOPS.format(plan=self.job.plan).encode())
        with _Display(progress, self.job.folder / "figures.jsonl", self.job.rlvr.steps // self.job.rlvr.updates):
            for left in range(self.config.verl.restarts, -1, -1):
                if self._fit(left):
                    break
        return list(curve(self.job.folder / "figures.jsonl"))

    def _fit(self, restarts_left: int) -> bool:
        """One try; False asks for another."""
        import ray
        from verl.trainer.main_ppo import run_ppo
        from verl.utils.config import validate_config

        from terrella.engines.verl.trainer import VerifiedRunner

        critic = self.job.rlvr.algorithm == "ppo"
        validate_config(self.composed, use_reference_policy=self.job.rlvr.kl > 0, use_critic=critic)
        try:
            run_ppo(self.composed, task_runner_class=VerifiedRunner)
            return True
        except ray.exceptions.RayError as error:
            cause = _cause(error)
            if restarts_left == 0 or (isinstance(cause, EngineError) and cause.where == "mismatch monitor"):
                raise cause from error
            logger.warning("%s; starting again from %s", cause, self.last_checkpoint() or "the beginning")
            return False
        finally:
            ray.shutdown()

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint: verl names it after it is written."""
        mark = self.job.folder / "latest_checkpointed_iteration.txt"
        return self.job.folder / f"global_step_{mark.read_text().strip()}" if mark.exists() else None

    def export(self, folder: Path) -> None:
        """The last checkpoint's model as a plain Hugging Face folder."""
        last = self.last_checkpoint()
        if last is None:
            raise EngineError("verl", f"{self.job.folder} holds no checkpoint to export")
        _copy(last / "actor" / "huggingface", folder)


def _copy(model: Path, folder: Path) -> None:
    """Whole or absent."""
    fresh = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(model, fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _devices() -> int:
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise EngineError("verl", "this machine has no GPU", "verl.devices=N, where a platform plug-in provides them")
    return count


def _cause(error: Any) -> TerrellaError:
    """What was raised in the actor, if it was ours; else Ray's report, shortened."""
    inner = getattr(error, "cause", None)
    while inner is not None and not isinstance(inner, TerrellaError):
        inner = getattr(inner, "cause", None) or inner.__cause__
    return inner or EngineError("verl", " ".join(str(error).split())[-500:])


def curve(file: Path) -> Iterator[dict[str, Any]]:
    """The figures by step; a step that was done again after a restart counts once, as it was done last."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    rows = {row["step"]: row for row in map(json.loads, lines)}
    yield from (rows[step] for step in sorted(rows))


class _Display:
    """Shows what the trainer writes, from a thread: the command itself waits for Ray."""

    def __init__(self, progress: Progress, file: Path, steps: int) -> None:
        self.progress, self.file, self.steps = progress, file, steps
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="verl progress", daemon=True)

    def __enter__(self) -> None:
        self.progress.phase("rlvr", self.steps)
        self.progress.advance(len(list(curve(self.file))))
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self._show(0)

    def _watch(self) -> None:
        shown = 0
        while not self.over.wait(1.0):
            shown = self._show(shown)

    def _show(self, shown: int) -> int:
        rows = list(curve(self.file))
        if len(rows) > shown:
            figures = {name: float(rows[-1][name]) for name in SHOWN if name in rows[-1]}
            self.progress.advance(rows[-1]["step"], **figures)
        return len(rows)
