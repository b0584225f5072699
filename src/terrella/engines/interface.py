"""What an engine is: the protocol that pipelines call, and what goes in and out.

Models go in and out as Hugging Face folders, episodes as a config (`rollout/source.py`). TrlEngine,
VerlEngine and TinkerEngine implement it; `engines/engine.py` makes one.
    with engine.sampler(Path("runs/x/model")) as sampler: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from terrella.core.protocols import Learner, Progress, Sampler
from terrella.core.tokens import Head, TrainExample
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import LearnerConfig, RlvrConfig, SftConfig
from terrella.rollout.source import EpisodeSource

Examples = Sequence[TrainExample | Sequence[TrainExample]]
"""Training examples; several that share a prompt stay together, so that it is read once."""
Curve = list[dict[str, Any]]
"""Metrics by step, as the trainer logged them."""
Model = str | Path
"""A Hugging Face folder, or a model's name."""


@dataclass(frozen=True, slots=True)
class RlvrRun:
    """How RL went; the trained model is in its folder."""

    curve: Curve
    steps: int
    collapse: str | None = None
    """Why the run seems to have collapsed, if it does."""
    budget: EnvStepBudget = field(default_factory=EnvStepBudget)
    """Real env steps, those of resumed parts included."""


class Engine(Protocol):
    """Trains and samples models. All ranks of a launched run train together."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """End every server and process that the engine started."""
        ...

    def sampler(self, model: Model) -> AbstractContextManager[Sampler]:
        """A sampler of this model, for the rank that calls it."""
        ...

    def learner(
        self,
        model: Model,
        *,
        head: Head = "token",
        config: LearnerConfig | None = None,
        work: Path,
        seed: int = 0,
    ) -> AbstractContextManager[Learner]:
        """A learner that starts from this model, on all ranks of the run.

        `work` is the folder for what it writes while it runs; `seed` is that of new adapters. A
        value head is read from the model's folder, and starts at zero if that has none.
        """
        ...

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
        """Fit a model to the masked tokens of examples and export it; returns the losses.

        Checkpoints go to `<folder>-sft`; the same call resumes from them.
        """
        ...

    def rlvr(  # noqa: PLR0913  a start, its tasks, its settings, where it goes
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
        """Train with verified rewards and export to `folder`.

        Checkpoints go to `<folder>-rlvr`; the same call resumes from them. Tokens of every
        `record_every`-th step are kept.
        """
        ...
