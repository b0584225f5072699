"""The engine for people without GPUs: a Tinker endpoint trains and samples, worlds run here.

Adapters only. A trained folder names its state at the endpoint (`tinker.json`), so the next part of
a run continues there, and holds the merged model where the base is a local folder.
    config = EngineConfig(engine="tinker", tinker=TinkerConfig(url="http://127.0.0.1:8123"))
    with TinkerEngine(config, Path("runs/x/engine")) as engine: ...
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from terrella.core.errors import EngineError, TerrellaError
from terrella.core.protocols import Learner, Progress, Sampler
from terrella.core.run_folder import processes, rank
from terrella.core.tokens import Head
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import EngineConfig, LearnerConfig, RlvrConfig, SftConfig
from terrella.engines.interface import Examples, Model, RlvrRun
from terrella.engines.tinker.adapter_folder import Reference, read_reference, write_model
from terrella.engines.tinker.client import Endpoint
from terrella.engines.tinker.limits import check_codec, check_part, check_temperature, no_learner
from terrella.engines.tinker.reduction import MEAN, SUM, Reduction, measure
from terrella.engines.tinker.same_base import check_same_base
from terrella.engines.tinker.sampler import TinkerSampler
from terrella.engines.tinker.sft import fit_examples, sft_steps
from terrella.engines.tinker.trainer import AdapterTrainer, SavedProgress
from terrella.rollout.source import EpisodeSource

logger = logging.getLogger("terrella")
SHOWN = ("loss", "reward", "zero_variance", "masked", "entropy", "mismatch/max", "grad_norm")


class TinkerEngine:
    """See `engines.interface.Engine`."""

    def __init__(
        self, config: EngineConfig, work: Path, *, connect: Callable[[str], Any] = Endpoint
    ) -> None:
        """Nothing is connected yet. `connect` makes the endpoint from its address."""
        self.config = config.tinker
        self.work = work
        self.connect = connect
        self._open: dict[str, Any] = {}
        """Adapters at the endpoint that are not trained any more, by saved state."""
        self._blank: dict[str, Any] = {}
        """Adapters that change nothing, by base model: they stand for it."""
        self._training = False

    def __enter__(self) -> Self:
        if processes() > 1 or rank() > 0:
            raise EngineError(
                "tinker", "several processes would train the same adapter", "start one process"
            )
        return self

    def __exit__(self, *_: object) -> None:
        for adapter in [*self._open.values(), *self._blank.values()]:
            adapter.close()
        self._open, self._blank = {}, {}

    @cached_property
    def endpoint(self) -> Any:
        return self.connect(self.config.url)

    # --- the verbs of an engine -------------------------------------------------------------------

    @contextlib.contextmanager
    def sampler(self, model: Model) -> Iterator[Sampler]:
        """A sampler of a base model or of a trained folder, at the endpoint."""
        if self._training:
            raise EngineError("tinker", "another model is sampled while one is trained")
        context = self._context(self._reference(model))
        yield TinkerSampler(self._resting(model).sampler(), context_tokens=context)

    def learner(
        self,
        model: Model,
        *,
        head: Head = "token",
        config: LearnerConfig | None = None,
        work: Path,
        seed: int = 0,
    ) -> AbstractContextManager[Learner]:
        """Refused: there are no value heads, and states are at the endpoint, not in a folder."""
        raise no_learner("engine")

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
        check_part(config, self.config, where="sft")
        saved = SavedProgress(folder.with_name(f"{folder.name}-sft"))
        with self._trained(start, saved, folder, seed) as trainer:
            progress.phase(phase, sft_steps(len(examples), config))
            progress.advance(saved.step)
            fit_examples(trainer, examples, config, saved, seed=seed, show=_show(progress))
        return [float(row["loss"]) for row in saved.curve]

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
        from terrella.engines.tinker.loop import RlvrLoop
        from terrella.engines.trl.token_recorder import TokenRecorder
        from terrella.models.presets import load_tokenizer

        check_part(config, self.config, where="rlvr")
        check_temperature(source.rollout.temperature)
        tokenizer = load_tokenizer(start)
        check_codec(source.codec.make(tokenizer))
        budget = budget or EnvStepBudget()
        saved = SavedProgress(folder.with_name(f"{folder.name}-rlvr"))
        with (
            source.make_rollout(tokenizer) as rollout,
            self._trained(start, saved, folder, seed) as trainer,
        ):
            recorder = None
            if record_every:
                tokens = saved.folder / "tokens"
                recorder = TokenRecorder(tokens, rollout.codec, tokenizer, every=record_every)
            loop = RlvrLoop(
                trainer,
                rollout,
                source.tasks.make(),
                config,
                saved,
                seed=seed,
                budget=budget,
                reference=self._resting(start) if config.kl else None,
                recorder=recorder,
            )
            progress.phase(phase, config.steps)
            progress.advance(saved.step)
            steps = loop.run(_show(progress))
        if loop.collapse:
            logger.warning("this run seems to have collapsed: %s", loop.collapse)
        curve = [row for row in saved.curve if "reward" in row]  # one row per batch of episodes
        return RlvrRun(curve, steps, loop.collapse, budget)

    # --- adapters ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _trained(
        self, start: Model, saved: SavedProgress, folder: Path, seed: int
    ) -> Iterator[AdapterTrainer]:
        """An adapter to train; afterwards it is exported, and stays to be sampled from."""
        reference = self._reference(start)
        reduction = self._reduction(reference)
        base_model, size = reference.base_model, self.config.lora_rank
        state = saved.state or reference.state
        if state:
            adapter = self.endpoint.load_adapter(
                base_model, state, rank=size, optimizer=bool(saved.state)
            )
        else:
            adapter = self.endpoint.new_adapter(base_model, rank=size, seed=seed)
        self._training = True
        try:
            context = self._context(reference)
            yield AdapterTrainer(adapter, reduction, self.config, context_tokens=context)
        except BaseException:
            adapter.close()
            raise
        finally:
            self._training = False
        self._open[saved.state] = adapter
        self._export(adapter, _trained_to(reference, saved.state), start, folder)

    def _export(self, adapter: Any, reference: Reference, start: Model, folder: Path) -> None:
        from terrella.models.presets import load_tokenizer

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "adapter.tar.gz"
            self.endpoint.download(adapter.save_for_sampling("export"), archive)
            write_model(archive, reference, folder, load_tokenizer(start))

    def _resting(self, model: Model) -> Any:
        """An adapter with this model's weights that nobody trains."""
        reference = self._reference(model)
        if not reference.state:
            return self._blank_adapter(reference)
        if reference.state not in self._open:
            self._open[reference.state] = self.endpoint.load_adapter(
                reference.base_model, reference.state, rank=reference.rank, optimizer=False
            )
        return self._open[reference.state]

    def _blank_adapter(self, reference: Reference) -> Any:
        name = reference.base_model
        if name not in self._blank:
            blank = self.endpoint.new_adapter(name, rank=self.config.lora_rank, seed=0)
            self._blank[name] = blank
            check_same_base(blank, reference, batch_rows=self.config.batch_rows)
        return self._blank[name]

    def _reference(self, model: Model) -> Reference:
        """Where a model is at the endpoint; its state is empty for a base model."""
        trained = read_reference(model)
        if trained is None:
            name = self.config.base_model or str(model)
            size = self.config.lora_rank
            return Reference(base_model=name, base=str(model), rank=size, state="")
        if trained.rank != self.config.lora_rank:
            raise EngineError(
                "tinker",
                f"{model} was trained with rank {trained.rank}, not {self.config.lora_rank}",
                f"set tinker.lora_rank={trained.rank}",
            )
        return trained

    def _context(self, reference: Reference) -> int:
        """Most tokens of a sequence: what the endpoint states and the model has; 0 is no bound."""
        name = reference.base_model
        if name not in self._contexts:
            known = (self.endpoint.context_tokens(name), _positions(reference.base))
            self._contexts[name] = min(filter(None, known), default=0)
        return self._contexts[name]

    @cached_property
    def _contexts(self) -> dict[str, int]:
        return {}

    @cached_property
    def _measured(self) -> dict[str, Reduction]:
        return {}

    def _reduction(self, reference: Reference) -> Reduction:
        if self.config.reduction != "measure":
            return SUM if self.config.reduction == "sum" else MEAN
        name = reference.base_model
        if name not in self._measured:
            config = self.config
            self._measured[name] = measure(
                self._blank_adapter(reference),
                pad_tokens=config.pad_tokens,
                batch_rows=config.batch_rows,
            )
            logger.info("tinker: the endpoint's reduction is %s", self._measured[name])
        return self._measured[name]


def _positions(model: str) -> int:
    """The longest sequence of a model; 0 if its config cannot be read here."""
    from terrella.models.presets import max_positions

    try:
        return max_positions(model)
    except (TerrellaError, OSError, AttributeError) as error:
        logger.warning("tinker: the longest sequence of %s is not known: %s", model, error)
        return 0


def _trained_to(reference: Reference, state: str) -> Reference:
    return Reference(
        base_model=reference.base_model, base=reference.base, rank=reference.rank, state=state
    )


def _show(progress: Progress) -> Callable[[int, dict[str, float]], None]:
    def show(step: int, row: dict[str, float]) -> None:
        progress.advance(step, **{name: row[name] for name in SHOWN if name in row})

    return show
