"""`terrella rlvr RECIPE`: a model answers, the world verifies, better answers become likelier.

Format warm-up (for models made from scratch), evaluation on held-out instances, RLVR, evaluation
again, beside the baselines that need no model. An agent may train in imagination; evaluations and
baselines are always of the real world. The folder holds the exported model, the curve and the
manifest; the same call resumes.
    Rlvr(tiny_counter().replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import CodecConfig
from terrella.core.bounds import check_share
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.files import write_json_lines
from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import History
from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Model
from terrella.evals.baselines import baselines, to_beat
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.several_worlds import (
    OtherWorld,
    episodes_of,
    named_worlds,
    vocabulary_of,
)
from terrella.pipelines.text_only import require_text
from terrella.pipelines.turn_limits import TurnLimit, limits_of
from terrella.pipelines.validation import Validation, check_count, no_change_mean, validate
from terrella.pipelines.warmup import CORRECT_FRACTION, warmup_examples
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.mixed import MixedTasks
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.rollout.tasks import AgentTasks, Ask
from terrella.show.progress import BesideBaselines
from terrella.trust.gate import kept_counts

ALL_MASKED = "all verdicts masked"


@dataclass(frozen=True, kw_only=True)
class RlvrResult:
    """Mean verdict on validation tasks before and after training, beside the baselines.

    All of them are measured in the real world, also where training is imagined or gated.
    """

    before: Metric
    after: Metric
    baselines: dict[str, float | None]
    steps: int
    before_by_world: dict[str, Metric | None] = field(default_factory=dict)
    """Empty with a single world; None where all verdicts of a world are masked."""
    after_by_world: dict[str, Metric | None] = field(default_factory=dict)
    validation_steps: int = 0
    """Real steps of both evaluations and of the baselines; no training step is among them."""
    gates: dict[str, dict[str, int]] = field(default_factory=dict)
    """The ledger of each gated world: imagined and real steps of the warm-up and of training."""


@dataclass(frozen=True, kw_only=True)
class BaselinePart:
    """What needs no model, and the real steps that it took."""

    values: dict[str, float | None]
    steps: int


@dataclass(frozen=True, kw_only=True)
class TrainedPart:
    """What training leaves beside the model."""

    steps: int


class Rlvr(ModelPipeline[RlvrResult]):
    """RL with verifiable rewards, for an agent or a world model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        others: tuple[OtherWorld, ...] = ()
        """Further worlds: one model learns all of them, and metrics come for each."""
        ask: Ask = "action"
        """action: train an agent; observation: train a world model."""
        model: Local[str] = "tiny-0.3m"
        """A model by name or folder."""
        warmup_examples: int = 0
        """SFT examples before RLVR (`pipelines/warmup.py`); 0 for a model that knows the format."""
        correct_fraction: float = CORRECT_FRACTION
        """Fraction of the warm-up answers that are correct; the others are random."""
        learn_world: bool = False
        """An agent's warm-up also fits what the world showed, not only the actions."""
        warmup: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        train_instances: int = 0
        """Distinct instances of each world that an agent is trained on, each equally often.

        0 draws them as the world does: a small world then plays a few of them most of the time.
        """
        env_pool: Local[EnvPool.Config] = field(default_factory=EnvPool.Config)
        turn_tokens: int = 16
        max_turns: int = 10
        max_actions: int = 1
        episode_tokens: int = 4096
        """Most tokens of an episode after its prompt, the world's included."""
        context_tokens: int = 0
        """Most tokens that the model sees at once, its reply included; 0 is all it can read."""
        history: History = "sampled"
        """What an agent sees of earlier turns (`core.tokens.History`)."""
        thinking: Thinking = "auto"
        """Whether a chat model thinks before it answers; auto follows its template."""
        evaluate_on: int = 256
        """Validation tasks for the metrics before and after.

        Small worlds have fewer distinct instances; the metrics are over those.
        """
        record_every: int = 0
        """Keep the tokens of every n-th step for `terrella view`; 0 keeps none."""
        out: Path = Path("runs/rlvr")

        def __post_init__(self) -> None:
            super().__post_init__()
            check_share(self, "correct_fraction")

        @property
        def unused(self) -> tuple[str, ...]:
            return () if self.warmup_examples else ("warmup",)

    config: Config
    result_type = RlvrResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "record_every")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shares = [each.share for each in self.worlds().values()]
        check_count(config.evaluate_on, sum(shares[:-1]) + 1)  # one task of the last world
        if config.train_instances < 0 or (config.train_instances and config.ask != "action"):
            raise ConfigError(
                "train_instances",
                f"is {config.train_instances} with ask={config.ask}: it counts what an agent plays",
                "set it to 0 or more with ask=action, and to 0 with ask=observation",
            )

    def preflight(self) -> None:
        super().preflight()
        for each in self.worlds().values():
            require_text(each.world)

    def turn_limits(self) -> list[TurnLimit]:
        asked = [(each.world, self.codec_config(each)) for each in self.worlds().values()]
        return limits_of(self.config, asked, self.config.ask)

    def train(self, run: RunFolder) -> RlvrResult:
        start = self.warm_model(run)
        beside = run.part("real_baselines", BaselinePart, self.baselines)
        before = run.part("before", Validation, lambda: self.validate(start))
        trained = run.part(
            "rlvr", TrainedPart, lambda: self.reinforce(run, start, beside.values), collective=True
        )
        after = run.part("after", Validation, lambda: self.validate(run / "model"))
        return RlvrResult(
            before=before.metric,
            after=after.metric,
            baselines=beside.values,
            steps=trained.steps,
            before_by_world=before.worlds,
            after_by_world=after.worlds,
            validation_steps=before.steps + after.steps + beside.steps,
            gates={
                name: counts for name in self.worlds() if (counts := kept_counts(_kept(run, name)))
            },
        )

    def worlds(self) -> dict[str, OtherWorld]:
        """All worlds by name."""
        config = self.config
        first = OtherWorld(
            world=config.world, max_turns=config.max_turns, max_actions=config.max_actions
        )
        return named_worlds(first, config.others)

    def training_worlds(self, run: RunFolder) -> dict[str, OtherWorld]:
        """The worlds of the warm-up and of RLVR: a gate keeps its state in the run's folder."""
        return {
            name: each.replace(world=each.world.kept_in(_kept(run, name)))
            for name, each in self.worlds().items()
        }

    def real_worlds(self) -> dict[str, OtherWorld]:
        """The worlds of evaluations and baselines, by the names of `worlds`."""
        return {name: each.replace(world=each.world.real) for name, each in self.worlds().items()}

    # --- parts ------------------------------------------------------------------------------------

    def warm_model(self, run: RunFolder) -> Model:
        """The model that RLVR starts from: as named, or after the format warm-up."""
        config = self.config
        start = start_model(
            config.model,
            run / "start",
            vocabulary=vocabulary_of(self.worlds().values()),
            seed=config.seed,
        )
        if not config.warmup_examples:
            return start
        return run.model("warm", lambda folder: self.warm_up(run, start, folder))

    def warm_up(self, run: RunFolder, start: Model, folder: Path) -> None:
        config = self.config
        tokenizer = load_tokenizer(start)
        worlds = self.training_worlds(run).values()
        examples = [
            row
            for each in worlds
            for row in warmup_examples(
                each.world,
                self.codec_config(each).make(tokenizer),
                ask=config.ask,
                count=config.warmup_examples // len(worlds),
                seed=config.seed,
                learn_world=config.learn_world,
                correct_fraction=config.correct_fraction,
                history=config.history,
                instances=config.train_instances,
                progress=run.progress,
            )
        ]
        self.engine.sft(
            start,
            examples,
            config.warmup,
            folder,
            seed=config.seed,
            progress=run.progress,
            phase="warm up",
        )

    def reinforce(
        self,
        run: RunFolder,
        start: Model,
        baselines: Mapping[str, float | None],
    ) -> TrainedPart:
        config = self.config
        trained = self.engine.rlvr(
            start,
            self._mixed(self.training_worlds(run)),
            config.rlvr,
            run / "model",
            seed=config.seed,
            progress=BesideBaselines(run.progress, to_beat(baselines)),
            record_every=config.record_every,
        )
        if run.is_main:
            write_json_lines(run / "curve.jsonl", trained.curve)
        return TrainedPart(steps=trained.steps)

    def codec_config(self, world: OtherWorld) -> CodecConfig:
        return CodecConfig(max_actions=world.max_actions, thinking=self.config.thinking)

    def validation_source(self) -> EpisodeSource:
        """The same tasks in the real worlds: what an agent has learned counts there."""
        return self._mixed(self.real_worlds())

    def _mixed(self, worlds: Mapping[str, OtherWorld]) -> EpisodeSource:
        return episodes_of(worlds, self._source)

    def _source(self, each: OtherWorld) -> EpisodeSource:
        config = self.config
        rollout = Rollout.Config(
            world=each.world,
            max_turns=each.max_turns,
            max_actions=each.max_actions,
            turn_tokens=config.turn_tokens,
            episode_tokens=config.episode_tokens,
            context_tokens=config.context_tokens,
            history=config.history,
            env_pool=config.env_pool,
        )
        tasks = WorldTasks(
            world=each.world,
            ask=config.ask,
            seed=config.seed,
            train_instances=config.train_instances,
        )
        return EpisodeSource(rollout=rollout, tasks=tasks, codec=self.codec_config(each))

    # --- measuring --------------------------------------------------------------------------------

    def validate(self, model: Model) -> Validation:
        return validate(
            self.engine,
            self.validation_source(),
            model,
            count=self.config.evaluate_on,
            seed=self.config.seed,
        )

    def baselines(self) -> BaselinePart:
        """What needs no model, on the validation tasks; with several worlds for each."""
        worlds, tasks = self.real_worlds(), self.validation_source().tasks
        if not isinstance(tasks, MixedTasks):
            (only,) = worlds.values()
            return self._baselines(only, self.config.evaluate_on)
        counts = tasks.counts(self.config.evaluate_on)
        parts = {name: self._baselines(each, counts[name]) for name, each in worlds.items()}
        return BaselinePart(
            values={
                f"{baseline}/{name}": value
                for name, part in parts.items()
                for baseline, value in part.values.items()
            },
            steps=sum(part.steps for part in parts.values()),
        )

    def _baselines(self, each: OtherWorld, count: int) -> BaselinePart:
        config = self.config
        if config.ask == "observation":
            verifier = each.world.build().verifier
            tasks = self._source(each).on(Split.VALIDATION).tasks.make()
            return BaselinePart(
                values={"no_change": no_change_mean(verifier, tasks, count)}, steps=0
            )
        scores = baselines(
            each.world.build(),
            split=Split.VALIDATION,
            instances=count,
            plays=1,
            seed=AgentTasks(seed=config.seed)(0).seed,
            max_steps=each.max_turns * each.max_actions,
        )
        values = {
            "random_exact": scores.random_exact,
            "random": scores.random_played,
            "expert": scores.expert_played,
        }
        return BaselinePart(values=values, steps=scores.steps)

    def summary(self, result: RlvrResult) -> list[tuple[str, str]]:
        rows = [
            ("before", f"{result.before}, masked {result.before.masked}"),
            ("after", f"{result.after}, masked {result.after.masked}"),
            *(
                (
                    f"{name}: before, after",
                    f"{before or ALL_MASKED}; {result.after_by_world[name] or ALL_MASKED}",
                )
                for name, before in result.before_by_world.items()
            ),
        ]
        for name, value in result.baselines.items():
            if value is not None:
                rows.append((f"baseline: {name}", f"{value:.3f}"))
        return [*rows, *self._real_rows(result)]

    def _real_rows(self, result: RlvrResult) -> list[tuple[str, str]]:
        """Where the figures were measured, unless that is where the agent was trained."""
        measured = [each.world for each in self.real_worlds().values()]
        if measured == [each.world for each in self.worlds().values()]:
            return []
        names = ", ".join(world.owner.name for world in measured)
        rows = [("measured in the real world", f"{names}, {result.validation_steps:,} real steps")]
        for name, counts in result.gates.items():
            steps = f"{counts['real_steps']:,} real and {counts['imagined']:,} imagined steps"
            rows.append((f"trained behind the gate of {name}", steps))
        return rows


def _kept(run: RunFolder, world: str) -> Path:
    """The folder for what a world of a run keeps between sessions, for processes anywhere."""
    return (run / "gates" / world).absolute()
