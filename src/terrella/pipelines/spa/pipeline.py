"""SPA, one arm and one seed: format SFT, self-play, SFT on true states, RL, held-out evaluation.

A model made from scratch first learns the reply format and nothing else (random actions, made-up
states); a chat model skips that. The arms of the paper are settings (`recipes/spa/`).
    Spa(spa_frozen_lake().arms["spa"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import TaggedCodecConfig
from terrella.codecs.tagged import TAG_TOKENS, Form, TaggedCodec
from terrella.core.bounds import check_least
from terrella.core.config import Local, dump
from terrella.core.errors import EngineError
from terrella.core.files import write_json_lines
from terrella.core.integrity import content_sha256
from terrella.core.protocols import Sampler
from terrella.core.run_folder import RunFolder, make_once
from terrella.core.tokens import TrainExample
from terrella.core.types import Split
from terrella.core.world import StateWorld, World
from terrella.data.train_examples import read_examples, write_examples
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Model
from terrella.evals.agents import Evaluate, evaluate_agent, reference_policies
from terrella.evals.results import ReferenceScores, RlCost, TestScores
from terrella.models.names import BUNDLED, TINY
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.several_worlds import (
    OtherWorld,
    episodes_of,
    named_worlds,
    split_among,
    vocabulary_of,
)
from terrella.pipelines.spa.interleaved_examples import (
    interleaved,
    refused_chat_model,
    script_of_form,
)
from terrella.pipelines.spa.results import (
    SelfPlayCost,
    SelfPlayResult,
    SpaResult,
    first_of,
    if_several,
)
from terrella.pipelines.spa.self_play import SelfPlay, collect_examples
from terrella.pipelines.spa.tagged_examples import Script, check_coordinates
from terrella.pipelines.turn_limits import TurnLimit, limits_of
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.reward_shaping import RewardShaping
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks

BASE_FIELDS = (
    "world",
    "others",
    "model",
    "form",
    "format_examples",
    "format_sft",
    "max_turns",
    "max_actions",
    "thinking",
    "seed",
)
"""Settings that a base model depends on."""


class Spa(ModelPipeline[SpaResult]):
    """Self-play with true states before RL."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        others: tuple[OtherWorld, ...] = ()
        """Further worlds: one model plays all of them, each with its share of everything."""
        model: Local[str] = "tiny-0.3m"
        form: Form = "worldmodel"
        """How replies and states are written; see `codecs/tagged.py`."""
        thinking: Thinking = "on"
        """Whether a chat model is asked for thoughts beside the states (RAGEN's `enable_think`)."""
        max_turns: int = 5
        max_actions: int = 5
        turn_tokens: int = 64
        episode_tokens: int = 4096
        """Most tokens of an episode after its prompt, the world's included."""
        format_examples: int = 0
        """Scripted episodes that teach a model from scratch the format; 0 for a chat model."""
        format_sft: SftConfig = field(default_factory=SftConfig)
        self_play: SelfPlay.Config = field(default_factory=SelfPlay.Config)
        rlvr: RlvrConfig = field(default_factory=lambda: RlvrConfig(reward="return"))
        """`steps` 0 leaves RL out."""
        reward_shaping: RewardShaping.Config = field(default_factory=RewardShaping.Config)
        max_env_steps: int = 0
        """Real env steps of self-play and RL together; 0 lets `rlvr.steps` end the run."""
        validation: Evaluate.Config = field(
            default_factory=lambda: Evaluate.Config(instances=128, split=Split.VALIDATION)
        )
        """Evaluation after each part; `instances` 0 leaves it out."""
        test: Evaluate.Config = field(default_factory=Evaluate.Config)
        env_pool: Local[EnvPool.Config] = field(default_factory=EnvPool.Config)
        base_cache: Local[Path] = Path("runs/spa-bases")
        """Folder of models that know the format; the arms of a seed share one.

        Each seed has its own: a seed repeats the whole arm, its base included.
        """
        out: Path = Path("runs/spa")

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self.test, instances=1)
            # Settings that contradict each other are refused before anything runs.
            for each in self.worlds().values():
                self.codec(each)

        @property
        def unused(self) -> tuple[str, ...]:
            used = {
                "format_sft": self.format_examples,
                "self_play.sft": self.self_play.trajectories,
            }
            return tuple(path for path, count in used.items() if not count)

        def worlds(self) -> dict[str, OtherWorld]:
            """All worlds by name, the first one first."""
            first = OtherWorld(
                world=self.world, max_turns=self.max_turns, max_actions=self.max_actions
            )
            return named_worlds(first, self.others)

        def codec(self, world: OtherWorld | None = None) -> TaggedCodecConfig:
            """How this run's replies are written and read; in its first world, unless given."""
            most = world.max_actions if world else self.max_actions
            return TaggedCodecConfig(form=self.form, thinking=self.thinking, max_actions=most)

    config: Config
    result_type = SpaResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "base_cache")

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        super().check_settings(ranks=ranks, machines=machines)
        if self.config.form == "shown" and self.config.model in BUNDLED:
            raise refused_chat_model()
        worlds = [each.world for each in self.worlds.values()]
        # Worlds of other kinds may start a browser.
        self._check_states([each for each in worlds if issubclass(each.owner, StateWorld)])

    def preflight(self) -> None:
        super().preflight()
        self._check_states([each.world for each in self.worlds.values()])
        if self.config.form == "shown" and self.config.model not in TINY:
            model = start_model(self.config.model, self.config.out / "start")
            for each in self.worlds.values():
                interleaved(self.codec(model, each))

    def turn_limits(self) -> list[TurnLimit]:
        if self.config.form == "shown" and self.config.model not in TINY:
            return []  # `preflight` says which models can be asked so
        asked = [(each.world, self.config.codec(each)) for each in self.worlds.values()]
        return limits_of(self.config, asked, "action")

    def _check_states(self, worlds: Iterable[World.Config]) -> None:
        """Refuse an ablation that would change nothing."""
        played = self.config.self_play
        if played.trajectories and played.states == "random_coordinates":
            for world in worlds:
                check_coordinates(world)

    @property
    def worlds(self) -> dict[str, OtherWorld]:
        """All worlds by name, the first one first."""
        return self.config.worlds()

    def train(self, run: RunFolder) -> SpaResult:
        config = self.config
        model = self.format_model(run)
        base = self.scores(run, "base", config.validation, model)
        self_play = None
        if config.self_play.trajectories:
            start = model
            model = run / "self_play"
            self_play = self.learn_from_self_play(run, start, model)
        rl = RlCost(env_steps=self_play.env_steps if self_play else 0)
        if config.rlvr.steps:
            start, spent = model, rl.env_steps
            model = run / "model"
            rl = run.part(
                "rl", RlCost, lambda: self.reinforce(run, start, spent=spent), collective=True
            )
        test = self.scores(run, "test", config.test, model)
        return SpaResult(
            base=first_of(base),
            self_play=self_play,
            rl=rl,
            test=next(iter(test.values())),
            base_by_world=if_several(base),
            test_by_world=if_several(test),
        )

    # --- parts ------------------------------------------------------------------------------------

    def format_model(self, run: RunFolder) -> Model:
        """The model that plays first: as named, or one that was taught the format."""
        config = self.config
        if not config.format_examples:
            return start_model(config.model, run / "start", seed=config.seed)
        with run.shared(config.base_cache / self.base_name(), self.base_spec()) as folder:
            return make_once(folder / "model", lambda path: self.teach_format(path, run))

    def base_spec(self) -> dict[str, Any]:
        """Everything that the base depends on."""
        return {name: value for name, value in dump(self.config).items() if name in BASE_FIELDS}

    def base_name(self) -> str:
        """A readable name with a hash: arms that differ in the spec have bases of their own."""
        config = self.config
        world = "-".join(each.world.owner.__name__.lower() for each in self.worlds.values())
        short = content_sha256(self.base_spec())[:12]
        return f"{world}-{config.world.view}-{config.form}-{config.seed}-{short}"

    def teach_format(self, folder: Path, run: RunFolder) -> None:
        config, seed = self.config, self.config.seed
        start = start_model(
            config.model,
            folder.with_name("start"),
            vocabulary=(*vocabulary_of(self.worlds.values()), *TAG_TOKENS),
            seed=seed,
        )
        examples: list[TrainExample] = []
        for name, count in split_among(self.worlds, config.format_examples).items():
            each = self.worlds[name]
            script = Script(max_turns=each.max_turns, max_actions=each.max_actions, truthful=False)
            codec = self.codec(start, each)
            examples += script_of_form(each.world, codec, script, count=count, seed=seed).examples
        self.engine.sft(
            start,
            examples,
            config.format_sft,
            folder,
            seed=seed,
            progress=run.progress,
            phase="format",
        )

    def learn_from_self_play(self, run: RunFolder, start: Model, folder: Path) -> SelfPlayResult:
        """Play, put the true states into the replies, and fit the model to them."""
        config = self.config
        file = run / "self_play.parquet"
        played = run.part("self_play_cost", SelfPlayCost, lambda: self.self_play(start, file))
        examples = read_examples(file)
        if not examples:
            raise EngineError(
                "self-play",
                f"none of {played.episodes} episodes is {config.self_play.keep!r}",
                "raise format_examples, or set self_play.keep=all",
            )
        run.model(
            folder.name,
            lambda path: self.engine.sft(
                start,
                examples,
                config.self_play.sft,
                path,
                seed=config.seed,
                progress=run.progress,
                phase="self-play",
            ),
        )
        validation = self.scores(run, "after_self_play", config.validation, folder)
        return SelfPlayResult(
            env_steps=played.env_steps,
            episodes=played.episodes,
            examples=len(examples),
            validation=first_of(validation),
            validation_by_world=if_several(validation),
        )

    def self_play(self, model: Model, file: Path) -> SelfPlayCost:
        """Play, and write the examples for the ranks that will be trained on them."""
        config = self.config.self_play
        examples: list[TrainExample] = []
        env_steps = episodes = 0
        for name, trajectories in split_among(self.worlds, config.trajectories).items():
            own = config.replace(trajectories=trajectories)
            with self.playing(model, self.worlds[name]) as (rollout, sampler, codec):
                collected = collect_examples(own, rollout, sampler, codec, seed=self.config.seed)
            examples += collected.examples
            env_steps += collected.env_steps
            episodes += collected.episodes
        write_examples(file, examples)
        return SelfPlayCost(env_steps=env_steps, episodes=episodes)

    def reinforce(self, run: RunFolder, start: Model, *, spent: int) -> RlCost:
        """RL on shaped returns until the steps or the env-step budget are used up."""
        config = self.config
        trained = self.engine.rlvr(
            start,
            self.episode_source(),
            config.rlvr,
            run / "model",
            seed=config.seed,
            progress=run.progress,
            phase="rl",
            budget=EnvStepBudget(limit=config.max_env_steps, spent=spent),
        )
        if run.is_main:
            write_json_lines(run / "curve.jsonl", trained.curve)
        return RlCost(
            env_steps=trained.budget.total, iterations=trained.steps, collapse=trained.collapse
        )

    def scores(
        self, run: RunFolder, part: str, config: Evaluate.Config, model: Model
    ) -> dict[str, TestScores]:
        """By world, each a part of the run; empty if no instances are asked for."""
        if not config.instances:
            return {}
        first, *others = self.worlds
        parts = {first: part, **{name: f"{part}_{name}" for name in others}}
        return {
            name: run.part(own, TestScores, partial(self.score, config, model, self.worlds[name]))
            for name, own in parts.items()
        }

    def score(self, config: Evaluate.Config, model: Model, world: OtherWorld) -> TestScores:
        """On instances of this run's seed, which are the same for all arms."""
        own = config.replace(seed=config.seed + self.config.seed)
        with self.playing(model, world) as (rollout, sampler, codec):
            return evaluate_agent(own, rollout, sampler, codec)

    # --- what the parts use -----------------------------------------------------------------------

    @contextlib.contextmanager
    def playing(
        self, model: Model, world: OtherWorld
    ) -> Iterator[tuple[Rollout, Sampler, TaggedCodec]]:
        """A model that plays a world: its rollout, its sampler, its codec."""
        codec = self.codec(model, world)
        config = self.source_in(world)
        with (
            Rollout(config.rollout, codec, shaping=self.config.reward_shaping.build()) as rollout,
            self.engine.sampler(model) as sampler,
        ):
            yield rollout, sampler, codec

    def codec(self, model: Model, world: OtherWorld) -> TaggedCodec:
        return self.config.codec(world).make(load_tokenizer(model))

    def episode_source(self) -> EpisodeSource:
        return episodes_of(self.worlds, self.source_in)

    def source_in(self, world: OtherWorld) -> EpisodeSource:
        config = self.config
        rollout = Rollout.Config(
            world=world.world,
            max_turns=world.max_turns,
            max_actions=world.max_actions,
            turn_tokens=config.turn_tokens,
            episode_tokens=config.episode_tokens,
            env_pool=config.env_pool,
        )
        return EpisodeSource(
            rollout=rollout,
            tasks=WorldTasks(world=world.world, seed=config.seed),
            codec=config.codec(world),
            shaping=config.reward_shaping,
        )

    def reference_scores(self) -> ReferenceScores | None:
        """Random and optimal play on the test instances, of the first world."""
        config = self.config
        most = config.max_turns * config.max_actions
        return reference_policies(config.world, config.test, most_actions=most)

    def summary(self, result: SpaResult) -> list[tuple[str, str]]:
        if result.test_by_world:
            tests = {f", {name}": scores for name, scores in result.test_by_world.items()}
        else:
            tests = {"": result.test}
        rows: list[tuple[str, str]] = []
        for name, test in tests.items():
            rows += [(f"test pass@{k}{name}", str(metric)) for k, metric in test.passes.items()]
            if test.masked:
                what = f"{test.masked:,}, left out; the first: {test.masked_reason}"
                rows.append((f"masked test episodes{name}", what))
        return [*rows, ("env steps", f"{result.rl.env_steps:,}")]
