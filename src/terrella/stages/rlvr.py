"""`terrella rlvr RECIPE`: a model answers, the world verifies, the better answers are pushed up.

Warm-up (for models made from scratch), RLVR, evaluation before and after on held-out instances beside the
baselines that need no model. The folder holds the exported model, the curve and the manifest; run again, it resumes.
    Rlvr(tiny_counter().replace(out=Path("runs/x"))).run()
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.config import Configurable, dump
from terrella.core.errors import ConfigError
from terrella.core.judge import judge
from terrella.core.protocols import Codec, Progress, Task
from terrella.core.stats import mean_interval
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.store import settle_plan, write_atomic
from terrella.engines.episodes.driver import Driver
from terrella.engines.episodes.seats import Seats
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.sampling.vllm_server import VllmServer
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.engines.trl.token_recorder import TokenRecorder
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.engines.verl.verl_settings import VerlSettings
from terrella.models.export import export_model
from terrella.models.presets import load_model
from terrella.show.progress import make_progress, show_figures
from terrella.stages.tasks import AgentTasks, PredictionTasks
from terrella.stages.warmup import HINT, warmup_rows
from terrella.use.baselines import baselines

if TYPE_CHECKING:
    from terrella.engines.trl.rlvr_trainer import RlvrTrainer
    from terrella.engines.verl.verl_engine import VerlEngine


class Rlvr(Configurable):
    """The stage: `run` returns what was measured."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A whole run."""

        world: World.Config
        ask: Literal["action", "observation"] = "action"
        """action: an agent; observation: a world model."""
        model: str = "tiny-0.3m"
        warmup_rows: int = 0
        """Rows of SFT before RLVR (see `stages/warmup.py`); 0 for a model that knows the format."""
        hint: float = HINT
        """Share of the warm-up answers that are right; the others are random."""
        learn_world: bool = False
        """An agent's warm-up also fits what the world showed, not only the random actions."""
        warmup: SftSettings.Config = field(default_factory=SftSettings.Config)
        rlvr: RlvrSettings.Config = field(default_factory=RlvrSettings.Config)
        engine: Literal["trl", "verl"] = "trl"
        """trl: a laptop or one node; verl: a cluster."""
        verl: VerlSettings.Config = field(default_factory=VerlSettings.Config)
        """Read where `engine` is verl; any key of verl's own can be set here, too."""
        sampler: Literal["local", "vllm"] = "local"
        """trl: the trainer's own weights in its process, or a vLLM server started beside it (see `vllm`)."""
        vllm: VllmServer.Config = field(default_factory=VllmServer.Config)
        seats: Seats.Config = field(default_factory=Seats.Config)
        turn_tokens: int = 16
        max_turns: int = 10
        max_actions: int = 1
        evaluate_on: int = 256
        """Held-out (validation) questions for the figures before and after."""
        record_every: int = 0
        """Keep the tokens of every n-th step for `terrella view`; 0 keeps none."""
        seed: int = 0
        out: Path = Path("runs/rlvr")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Warm up, evaluate, train, evaluate, export. The manifest comes last."""
        config, out = self.config, self.config.out
        out.mkdir(parents=True, exist_ok=True)
        cluster = self._cluster_engine() if config.engine == "verl" else None  # refuses before anything is loaded
        # Where it goes and what is kept to look at change no result.
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k not in ("out", "record_every")}})
        model, tokenizer = self._warm_model(progress, cluster)
        driver = self.driver(self.codec(tokenizer))
        with contextlib.closing(driver.seats):
            before = self._once(out / "before.json", lambda: self.evaluate(driver, model))
            if cluster is not None:
                history, main = self._train_on_cluster(cluster, model, tokenizer, progress), True
                trained = load_model(str(out / "model"))[0]
            else:
                trainer = self._trainer(model, tokenizer, driver, progress)
                with self._sampling(trainer):
                    trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
                trainer.export(out / "model")
                trained, history = trainer.policy, trainer.state.log_history
                main = trainer.accelerator.is_main_process
            after = self.evaluate(driver, trained)
        found = {"before": before, "after": after, "baselines": self.baselines(), "steps": config.rlvr.steps}
        if main:
            self._finish(found, history)
        return found

    def _cluster_engine(self) -> VerlEngine:
        from terrella.engines.verl.verl_engine import VerlEngine

        return VerlEngine(self.config, self.limits(), self.config.out / "warm")

    def _train_on_cluster(
        self, engine: VerlEngine, model: Any, tokenizer: Any, progress: Progress
    ) -> list[dict[str, Any]]:
        """Verl reads the model it starts from, and leaves the one it made, as folders."""
        if not (self.config.out / "warm" / "config.json").exists():
            export_model(model, tokenizer, self.config.out / "warm")
        history = engine.train(progress)
        engine.export(self.config.out / "model")
        return history

    @contextlib.contextmanager
    def _sampling(self, trainer: RlvrTrainer) -> Iterator[None]:
        """Who samples while the trainer trains: itself, or a vLLM server that is sent the weights before each batch."""
        if self.config.sampler == "local":
            yield
            return
        if trainer.accelerator.num_processes > 1:
            raise ConfigError("sampler", "a server of its own is started by one process only",
                              "train with one process here, or with engine=verl")  # fmt: skip
        trainer.export(self.config.out / "served")
        with VllmServer(self.config.vllm, self.config.out / "served", log=self.config.out / "vllm.log") as server:
            trainer.sampler = server.sampler()
            yield

    @staticmethod
    def _once(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measured once and kept: a resumed run must not say something else."""
        if not path.exists():
            write_atomic(path, json.dumps(measure()).encode())
        return dict(json.loads(path.read_text("utf-8")))

    def _warm_model(self, progress: Progress, cluster: VerlEngine | None) -> tuple[Any, Any]:
        """The model that RLVR starts from: as loaded, or after the format warm-up (done once, then read back)."""
        config, folder = self.config, self.config.out / "warm"
        if (folder / "config.json").exists():
            return load_model(str(folder))
        world: World = config.world.build()
        world.reset(seed=0)
        model, tokenizer = load_model(config.model, words=world.words(), seed=config.seed)
        if config.warmup_rows:
            rows = warmup_rows(
                config.world, self.codec(tokenizer), ask=config.ask, count=config.warmup_rows, seed=config.seed,
                learn_world=config.learn_world, hint=config.hint,
            )  # fmt: skip
            if cluster is not None:
                export_model(model, tokenizer, config.out / "start")
                cluster.fit(rows, config.out / "start", folder)
            else:
                callbacks = [ShowProgress(progress, "warm up")]
                SftTrainer(model, tokenizer, config.warmup, rows, config.out / "sft", callbacks).fit(folder)
            return load_model(str(folder))  # as a resumed run reads it: both start from the same bytes
        return model, tokenizer

    def codec(self, tokenizer: Any) -> Codec:
        """Chat models are spoken to through their template; models of our own in the interleaved format."""
        if getattr(tokenizer, "chat_template", None):
            return ChatCodec(tokenizer, max_actions=self.config.max_actions)
        return InterleavedCodec(tokenizer)

    def driver(self, codec: Codec) -> Driver:
        """The driver of this run: for training and evaluation alike."""
        return Driver(self.limits(), codec)

    def limits(self) -> Driver.Config:
        """How long an episode may be, and where its world lives."""
        config = self.config
        return Driver.Config(
            world=config.world, max_turns=config.max_turns, max_actions=config.max_actions,
            turn_tokens=config.turn_tokens, seats=config.seats,
        )  # fmt: skip

    def tasks(self, split: Split) -> Callable[[int], Task]:
        """Question i of a split."""
        if self.config.ask == "action":
            return AgentTasks(split=split, seed=self.config.seed)
        return PredictionTasks(self.config.world, split=split, seed=self.config.seed)

    def evaluate(self, driver: Driver, model: Any) -> dict[str, Any]:
        """Mean verdict on held-out questions, one sampled answer each, with its interval."""
        tasks = [self.tasks(Split.VALIDATION)(index) for index in range(self.config.evaluate_on)]
        episodes = driver.run(LocalSampler(model), tasks, group_size=1, seed=self.config.seed + 1)
        values = [episode.outcome.value for episode in episodes if episode.outcome.value is not None]
        low, high = mean_interval(values)
        return {"mean": sum(values) / len(values), "low": low, "high": high, "n": len(values),
                "masked": len(episodes) - len(values)}  # fmt: skip

    def _trainer(self, model: Any, tokenizer: Any, driver: Driver, progress: Progress) -> RlvrTrainer:
        from terrella.engines.trl.rlvr_trainer import RlvrTrainer  # heavy, and not wanted where verl trains

        settings = self.config.rlvr.replace(seed=self.config.seed)
        callbacks, out = [ShowProgress(progress, "rlvr")], self.config.out / "rlvr"
        trainer = RlvrTrainer(model, tokenizer, settings, driver, self.tasks(Split.TRAIN), out, callbacks)
        if self.config.record_every and trainer.accelerator.is_main_process:
            trainer.recorder = TokenRecorder(out / "tokens", driver.codec, tokenizer, every=self.config.record_every)
        return trainer

    def baselines(self) -> dict[str, float | None]:
        """What needs no model, on the same questions."""
        count = self.config.evaluate_on
        if self.config.ask == "action":
            found = baselines(self.config.world.build(), split=Split.VALIDATION, instances=count, plays=1,
                              seed=AgentTasks(seed=self.config.seed)(0).seed)  # fmt: skip
            return {"random_exact": found.random_exact, "random": found.random_played, "expert": found.expert_played}
        tasks, verifier = self.tasks(Split.VALIDATION), self.config.world.build().verifier
        values = [_no_change(verifier, tasks(index)) for index in range(count)]
        return {"no_change": sum(values) / count}

    def _finish(self, found: dict[str, Any], history: Sequence[dict[str, Any]]) -> None:
        """The curve, then the manifest: its existence means the run is whole."""
        lines = "".join(json.dumps(row) + "\n" for row in history if "reward" in row)
        write_atomic(self.config.out / "curve.jsonl", lines.encode())
        manifest = json.dumps({"config": dump(self.config), **found}, indent=1)
        write_atomic(self.config.out / "manifest.json", manifest.encode())


def _no_change(verifier: Any, task: Task) -> float:
    assert task.transition is not None
    before, truth = task.transition.observation, task.transition.next_observation
    return judge(verifier, reply=before, truth=truth, before=before).value or 0.0


def run(config: Rlvr.Config) -> dict[str, Any]:
    """Train with a display and show the figures; returns them."""
    with make_progress() as progress:
        found = Rlvr(config).run(progress)
    rows = [(name, _interval(found[name])) for name in ("before", "after")]
    rows += [(f"baseline: {name}", f"{value:.3f}") for name, value in found["baselines"].items() if value is not None]
    show_figures(f"trained into {config.out}", rows)
    return found


def _interval(figure: dict[str, Any]) -> str:
    interval = f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
    return f"{interval}, n = {figure['n']}, masked {figure['masked']}"
