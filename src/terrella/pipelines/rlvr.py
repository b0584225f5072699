"""`terrella rlvr RECIPE`: a model answers, the world verifies, better answers become likelier.

Format warm-up (for models made from scratch), evaluation on held-out instances, RLVR, evaluation
again, beside the baselines that need no model. The folder holds the exported model, the curve and
the manifest; the same call resumes.
    Rlvr(tiny_counter().replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from terrella.codecs.choose import codec_for
from terrella.core.files import write_json_lines
from terrella.core.judge import judge
from terrella.core.metric import Metric
from terrella.core.protocols import Verifier
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import Task
from terrella.core.types import Split, Tally, Verdict
from terrella.core.world import World
from terrella.engines import engine
from terrella.engines.configs import RlvrConfig, SftConfig, VerlConfig
from terrella.engines.vllm.server import VllmServer
from terrella.evals.baselines import baselines
from terrella.pipelines.base import Pipeline
from terrella.pipelines.warmup import CORRECT_FRACTION, warmup_examples
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks, Ask, tasks_for

if TYPE_CHECKING:
    from terrella.engines.verl.verl_engine import VerlEngine

logger = logging.getLogger("terrella")

TasksOf = Callable[[Split], Callable[[int], Task]]
"""Task `i` of a split, as a pure function of `i`."""


@dataclass(frozen=True, kw_only=True)
class RlvrResult:
    """Mean verdict on validation tasks before and after training, beside the baselines."""

    before: Metric
    after: Metric
    baselines: dict[str, float | None]
    steps: int


class Rlvr(Pipeline[RlvrResult]):
    """RL with verifiable rewards, for an agent or a world model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        world: World.Config
        ask: Ask = "action"
        """action: train an agent; observation: train a world model."""
        model: str = "tiny-0.3m"
        """A model by name or folder."""
        warmup_examples: int = 0
        """SFT examples before RLVR (`pipelines/warmup.py`); 0 for a model that knows the format."""
        correct_fraction: float = CORRECT_FRACTION
        """Fraction of the warm-up answers that are correct; the others are random."""
        learn_world: bool = False
        """An agent's warm-up also fits what the world showed, not only the actions."""
        warmup: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        engine: Literal["trl", "verl"] = "trl"
        """trl: a laptop or one node; verl: a cluster."""
        verl: VerlConfig = field(default_factory=VerlConfig)
        """Used with engine=verl; any key of verl's own can be set here, too."""
        sampler: Literal["local", "vllm"] = "local"
        """With engine=trl: the trainer's own weights, or a vLLM server beside the trainer."""
        vllm: VllmServer.Config = field(default_factory=VllmServer.Config)
        env_pool: EnvPool.Config = field(default_factory=EnvPool.Config)
        turn_tokens: int = 16
        max_turns: int = 10
        max_actions: int = 1
        evaluate_on: int = 256
        """Validation tasks for the metrics before and after."""
        record_every: int = 0
        """Keep the tokens of every n-th step for `terrella view`; 0 keeps none."""
        out: Path = Path("runs/rlvr")

    config: Config
    result_type = RlvrResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "record_every")

    def train(self, run: RunFolder) -> RlvrResult:
        config = self.config
        verl = self._verl_engine() if config.engine == "verl" else None
        model, tokenizer = self.warm_model(run, verl)
        with Rollout(
            self.rollout_config(), codec_for(tokenizer, max_actions=config.max_actions)
        ) as rollout:
            before = run.part("before", Metric, lambda: self.evaluate(rollout, model))
            if verl is None:
                trained, curve = self._train_on_trl(run, model, tokenizer, rollout)
            else:
                trained, curve = self._train_on_verl(run, verl, model, tokenizer)
            # Every rank evaluates: sharded weights are gathered by all of them together.
            after = self.evaluate(rollout, trained)
        if run.is_main:
            write_json_lines(run / "curve.jsonl", curve)
        return RlvrResult(
            before=before,
            after=after,
            baselines=self.baselines(),
            steps=config.rlvr.steps,
        )

    # --- parts ------------------------------------------------------------------------------------

    def warm_model(self, run: RunFolder, verl: VerlEngine | None = None) -> tuple[Any, Any]:
        """The model that RLVR starts from: as loaded, or after the format warm-up."""
        config, folder = self.config, run / "warm"
        if (folder / "config.json").exists():
            return engine.load_model(str(folder))
        world: World = config.world.build()
        world.reset(seed=0)
        model, tokenizer = engine.load_model(
            config.model, vocabulary=world.vocabulary(), seed=config.seed
        )
        if not config.warmup_examples:
            return model, tokenizer
        examples = warmup_examples(
            config.world,
            codec_for(tokenizer, max_actions=config.max_actions),
            ask=config.ask,
            count=config.warmup_examples,
            seed=config.seed,
            learn_world=config.learn_world,
            correct_fraction=config.correct_fraction,
        )
        if verl is not None:
            engine.export_model(model, tokenizer, run / "start")
            verl.fit(examples, config.warmup, run / "start", folder)
        else:
            engine.sft(
                model,
                tokenizer,
                config.warmup,
                examples,
                folder,
                seed=config.seed,
                progress=run.progress,
                phase="warm up",
            )
        return engine.load_model(str(folder))  # the bytes that a resumed run reads, too

    def _train_on_trl(
        self, run: RunFolder, model: Any, tokenizer: Any, rollout: Rollout
    ) -> tuple[Any, engine.Curve]:
        config = self.config
        trained = engine.rlvr(
            model,
            tokenizer,
            config.rlvr,
            rollout,
            self.tasks(Split.TRAIN),
            run / "model",
            seed=config.seed,
            progress=run.progress,
            vllm=config.vllm if config.sampler == "vllm" else None,
            record_every=config.record_every,
        )
        return trained.model, trained.curve

    def _verl_engine(self) -> VerlEngine:
        from terrella.engines.verl.verl_engine import VerlEngine

        return VerlEngine(
            self.config.rlvr,
            self.config.verl,
            self.rollout_config(),
            self.config.ask,
            model=self.config.out / "warm",
            folder=self.config.out / "verl",
            seed=self.config.seed,
        )

    def _train_on_verl(
        self, run: RunFolder, verl: VerlEngine, model: Any, tokenizer: Any
    ) -> tuple[Any, engine.Curve]:
        """Verl reads the model that it starts from, and leaves the trained one, as folders."""
        if not (run / "warm" / "config.json").exists():
            engine.export_model(model, tokenizer, run / "warm")
        curve = verl.train(run.progress)
        verl.export(run / "model")
        return engine.load_model(str(run / "model"))[0], [row for row in curve if "reward" in row]

    def rollout_config(self) -> Rollout.Config:
        config = self.config
        return Rollout.Config(
            world=config.world,
            max_turns=config.max_turns,
            max_actions=config.max_actions,
            turn_tokens=config.turn_tokens,
            env_pool=config.env_pool,
        )

    # --- measuring --------------------------------------------------------------------------------

    def tasks(self, split: Split) -> Callable[[int], Task]:
        return tasks_for(self.config.ask, self.config.world, split=split, seed=self.config.seed)

    def evaluate(self, rollout: Rollout, model: Any) -> Metric:
        return evaluate(
            rollout,
            model,
            self.tasks(Split.VALIDATION),
            count=self.config.evaluate_on,
            seed=self.config.seed,
        )

    def baselines(self) -> dict[str, float | None]:
        """What needs no model, on the same tasks."""
        config = self.config
        if config.ask == "observation":
            verifier = config.world.build().verifier
            tasks = self.tasks(Split.VALIDATION)
            return {"no_change": no_change_mean(verifier, tasks, config.evaluate_on)}
        scores = baselines(
            config.world.build(),
            split=Split.VALIDATION,
            instances=config.evaluate_on,
            plays=1,
            seed=AgentTasks(seed=config.seed)(0).seed,
        )
        return {
            "random_exact": scores.random_exact,
            "random": scores.random_played,
            "expert": scores.expert_played,
        }

    def summary(self, result: RlvrResult) -> list[tuple[str, str]]:
        rows = [
            ("before", f"{result.before}, masked {result.before.masked}"),
            ("after", f"{result.after}, masked {result.after.masked}"),
        ]
        for name, value in result.baselines.items():
            if value is not None:
                rows.append((f"baseline: {name}", f"{value:.3f}"))
        return rows


def evaluate(
    rollout: Rollout, model: Any, tasks: Callable[[int], Task], *, count: int, seed: int
) -> Metric:
    """Mean verdict over `count` tasks, one sampled answer each."""
    asked = [tasks(index) for index in range(count)]
    episodes = rollout.run(engine.local_sampler(model), asked, group_size=1, seed=seed + 1)
    return Metric.of([episode.outcome.value for episode in episodes])


@dataclass(frozen=True, kw_only=True)
class RlPart:
    """RL as one part of a longer pipeline: metrics on validation tasks, and the reward by step."""

    before: Metric
    after: Metric
    reward: list[float]


def rl_finetune(  # noqa: PLR0913  a run, its start, its tasks and its settings
    run: RunFolder,
    start: Path,
    rollout_config: Rollout.Config,
    tasks: TasksOf,
    config: RlvrConfig,
    *,
    seed: int,
    evaluate_on: int,
    phase: str = "rlvr",
) -> RlPart:
    """RLVR from the model in `start` to `rl/model` in the run's folder; done once."""
    (run / "rl").mkdir(exist_ok=True)
    validation = tasks(Split.VALIDATION)

    def train() -> RlPart:
        model, tokenizer = engine.load_model(str(start))
        with Rollout(rollout_config, codec_for(tokenizer)) as rollout:
            before = run.part(
                "rl/before",
                Metric,
                lambda: evaluate(rollout, model, validation, count=evaluate_on, seed=seed),
            )
            trained = engine.rlvr(
                model,
                tokenizer,
                config,
                rollout,
                tasks(Split.TRAIN),
                run / "rl" / "model",
                seed=seed,
                progress=run.progress,
                phase=phase,
            )
            after = evaluate(rollout, trained.model, validation, count=evaluate_on, seed=seed)
        if run.is_main:
            write_json_lines(run / "curve.jsonl", trained.curve)
        return RlPart(
            before=before,
            after=after,
            reward=[round(float(row["reward"]), 4) for row in trained.curve],
        )

    return run.part("rl/result", RlPart, train, collective=True)


def no_change_mean(verifier: Verifier, tasks: Callable[[int], Task], count: int) -> float | None:
    """Mean verdict of predicting that nothing changes; None where every verdict is masked."""
    verdicts = [_no_change(verifier, tasks(index)) for index in range(count)]
    return _known_mean(verdicts)


def _no_change(verifier: Verifier, task: Task) -> Verdict:
    assert task.transition is not None
    before, truth = task.transition.observation, task.transition.next_observation
    return judge(verifier, reply=before, truth=truth, before=before)


def _known_mean(verdicts: Sequence[Verdict]) -> float | None:
    """The mean over verdicts that are not masked; a warning counts the masked ones."""
    tally = Tally()
    for verdict in verdicts:
        tally.add(verdict)
    if tally.masked:
        reason = next(verdict.evidence for verdict in verdicts if verdict.masked)
        logger.warning(
            "baseline no_change: %d of %d verdicts are masked and left out: %s",
            tally.masked,
            len(verdicts),
            reason,
        )
    return tally.mean
