"""The skeleton of every pipeline: lock, spec check, resume and manifest are here, once.

A pipeline is a method from end to end. Subclass it, name the result's type, and write `train`: each
part goes through `run.part` or `run.model`, so that a killed run continues where it stopped.
    class Mine(Pipeline[MyResult]):
        result_type = MyResult
        def train(self, run): return MyResult(test=run.part("test", Metric, self.evaluate))
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from terrella.core.bounds import check_least, check_not_negative
from terrella.core.config import Configurable, Local, record_from_json
from terrella.core.protocols import Progress
from terrella.core.run_folder import MANIFEST, Manifest, RunFolder
from terrella.engines.configs import EngineConfig
from terrella.engines.engine import check_settings, make_engine
from terrella.engines.interface import Engine
from terrella.engines.ranks import barrier
from terrella.pipelines.turn_limits import TurnLimit, check_turn_limits
from terrella.show.progress import make_progress, show_metrics

Result = TypeVar("Result")


class Pipeline(Configurable, Generic[Result], abc.ABC):
    """A method, end to end. `train` is the hook that matters."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What every pipeline has: one seed and one folder."""

        seed: int = 0
        out: Local[Path] = Path("runs/run")

        def __post_init__(self) -> None:
            """Refuse negative numbers: no setting of a pipeline means one."""
            check_not_negative(self)

    config: Config

    result_type: ClassVar[type[Any]]
    ignored: ClassVar[tuple[str, ...]] = ("out",)
    """Settings that change no result: a run may be resumed with other values of them."""
    waits: ClassVar[bool] = False
    """Several runs use the folder: wait for the one that is making it, instead of refusing."""

    def run(self, progress: Progress) -> Result:
        """Run what is missing and return the result; a finished folder only returns it."""
        if not (self.config.out / MANIFEST).exists():
            self.preflight()
        with RunFolder(
            self.config.out,
            self.config,
            ignored=self.ignored,
            wait=self.waits,
            barrier=barrier,
            progress=progress,
        ) as run:
            if run.manifest is None or not self.is_finished(run.manifest):
                with self.resources(run):
                    run.finish(self.train(run))
            assert run.manifest is not None
            result: Result = record_from_json(self.result_type, run.manifest.metrics)
        return result

    def is_finished(self, manifest: Manifest) -> bool:
        """Whether a manifest is this config's result, for pipelines whose runs can be extended."""
        return True

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        """Refuse settings that cannot run. `--dry-run` asks this, too, so nothing is opened.

        `ranks` is the number of processes that will train, on so many `machines`; 0 is that of this
        launch.
        """

    def preflight(self) -> None:
        """Refuse what cannot run here, before the run has a folder: the next try may use its name.

        Overrides call this one first.
        """
        self.check_settings()

    def resources(self, run: RunFolder) -> contextlib.AbstractContextManager[object]:
        """What `train` uses and must be closed at its end: nothing here."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def train(self, run: RunFolder) -> Result:
        """The method itself, top to bottom."""

    def summary(self, result: Result) -> list[tuple[str, str]]:
        """What a person wants to know at the end, as rows of a table."""
        return []


LEAST = {
    "turn_tokens": 1,
    "episode_tokens": 1,
    "context_tokens": 0,
    "max_turns": 1,
    "max_actions": 1,
    "transitions": 1,
    "warmup_examples": 0,
    "format_examples": 0,
    "record_every": 0,
}
"""The least values of settings that several pipelines have."""


class ModelPipeline(Pipeline[Result]):
    """A pipeline that trains or samples a model: it has `self.engine` while it runs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(EngineConfig, Pipeline.Config):
        """The engine's settings beside those of every pipeline."""

        def __post_init__(self) -> None:
            """Refuse numbers that many pipelines have and none can run with."""
            Pipeline.Config.__post_init__(self)
            own = {name: least for name, least in LEAST.items() if hasattr(self, name)}
            check_least(self, **own)

        @property
        def unused(self) -> tuple[str, ...]:
            """Settings of trainers that are here and that the run leaves out, by their paths."""
            return ()

    config: Config
    engine: Engine
    masks_tokens: ClassVar[bool] = False
    """Samples under a mask of allowed ids; engines without one refuse the pipeline."""

    @property
    def needs_engine(self) -> bool:
        """Whether a model is trained or sampled here, and not by an endpoint."""
        return True

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        if self.needs_engine:
            check_settings(self.config, ranks=ranks, machines=machines, **self._episodes())
        self._check_turn_limits(here=True)

    def preflight(self) -> None:
        super().preflight()  # which has checked the limits of a model that is here
        self._check_turn_limits(here=False)
        if self.needs_engine:
            self._make_engine()  # which looks for its packages, and starts nothing

    @contextlib.contextmanager
    def resources(self, run: RunFolder) -> Iterator[None]:
        if not self.needs_engine:
            yield
            return
        with self._make_engine() as self.engine:
            yield

    def turn_limits(self) -> list[TurnLimit]:
        """The replies that are sampled here and rewarded; none where they have no limit."""
        return []

    def _check_turn_limits(self, *, here: bool) -> None:
        if limits := self.turn_limits():
            check_turn_limits(self.config.model, limits, here=here)  # type: ignore[attr-defined]

    def _make_engine(self) -> Engine:
        return make_engine(
            self.config,
            work=self.config.out / "engine",
            learners=getattr(self.config, "learners", None),
            model=_named_model(self.config),
            **self._episodes(),
        )

    def _episodes(self) -> dict[str, Any]:
        """What an engine must know of the episodes that the run trains on."""
        return {
            "rlvr": getattr(self.config, "rlvr", None),
            "temperature": getattr(self.config, "temperature", 1.0),
            "history": getattr(self.config, "history", "sampled"),
            "masks_tokens": self.masks_tokens,
        }


def _named_model(config: EngineConfig) -> str | None:
    """The folder or repository that a config names; our own names are small or no model at all."""
    name = getattr(config, "model", None)
    return name if name and ("/" in name or Path(name).is_dir()) else None


def run_pipeline(config: Pipeline.Config) -> Any:
    """Build and run a pipeline with a display, then show its summary; returns the result."""
    pipeline: Pipeline[Any] = config.build()
    with make_progress() as progress:
        result = pipeline.run(progress)
    show_metrics(f"results in {config.out}", pipeline.summary(result))
    return result
