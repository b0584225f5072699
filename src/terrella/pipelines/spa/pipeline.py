"""SPA, one arm and one seed: format SFT, self-play, SFT on true states, RL, held-out evaluation.

A model made from scratch first learns the reply format and nothing else (random actions, made-up
states); a chat model skips that. The arms of the paper are settings (`recipes/spa/`).
    Spa(spa_frozen_lake().arms["spa"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TAG_TOKENS, Form, TaggedCodec, reply_form
from terrella.core.config import dump
from terrella.core.errors import EngineError
from terrella.core.files import write_json_lines
from terrella.core.instances import plain
from terrella.core.run_folder import RunFolder, make_once
from terrella.core.tokens import TrainExample
from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines import engine
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.evals.agents import Evaluate, evaluate_agent, reference_policies
from terrella.evals.results import ReferenceScores, RlCost, TestScores
from terrella.pipelines.base import Pipeline
from terrella.pipelines.spa.interleaved_examples import script_of_form
from terrella.pipelines.spa.self_play import SelfPlay, collect_examples
from terrella.pipelines.spa.tagged_examples import Collected, Script
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.reward_shaping import RewardShaping
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks

BASE_FIELDS = (
    "world",
    "model",
    "form",
    "format_examples",
    "format_sft",
    "max_turns",
    "max_actions",
    "base_seed",
)
"""Settings that a base model depends on."""


@dataclass(frozen=True, kw_only=True)
class SelfPlayResult:
    """What self-play cost, and the model after SFT on it."""

    env_steps: int
    episodes: int
    examples: int
    validation: TestScores | None


@dataclass(frozen=True, kw_only=True)
class SpaResult:
    """Scores of each part; None where an arm leaves the part out."""

    base: TestScores | None
    self_play: SelfPlayResult | None
    rl: RlCost
    test: TestScores

    @property
    def after_sft(self) -> TestScores | None:
        """Validation scores between self-play and RL."""
        return self.self_play.validation if self.self_play else None


class Spa(Pipeline[SpaResult]):
    """Self-play with true states before RL."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        world: World.Config
        model: str = "tiny-0.3m"
        form: Form = "worldmodel"
        """How replies and states are written; see `codecs/tagged.py`."""
        max_turns: int = 5
        max_actions: int = 5
        turn_tokens: int = 64
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
        env_pool: EnvPool.Config = field(default_factory=EnvPool.Config)
        base_cache: Path = Path("runs/spa-bases")
        """Folder of models that know the format; arms share them."""
        base_seed: int = 0
        """One base for all seeds, like one pretrained model: seeds vary self-play, SFT and RL."""
        out: Path = Path("runs/spa")

    config: Config
    result_type = SpaResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "base_cache")

    def train(self, run: RunFolder) -> SpaResult:
        config = self.config
        model, tokenizer = self.format_model(run)
        codec = self.codec(tokenizer)
        with self.rollout(codec) as rollout:
            base = None
            if config.validation.instances:
                base = run.part("base", TestScores, lambda: self.validate(rollout, model, codec))
            self_play = None
            if config.self_play.trajectories:
                self_play = run.part(
                    "self_play",
                    SelfPlayResult,
                    lambda: self.learn_from_self_play(run, rollout, model, tokenizer, codec),
                    collective=True,
                )
                model = engine.load_model(str(run / "self_play"))[0]
            rl = RlCost(env_steps=self_play.env_steps if self_play else 0)
            if config.rlvr.steps:
                model, rl = self.reinforce(run, rollout, model, tokenizer, spent=rl.env_steps)
            test = evaluate_agent(config.test, rollout, engine.local_sampler(model), codec)
        return SpaResult(base=base, self_play=self_play, rl=rl, test=test)

    # --- parts ------------------------------------------------------------------------------------

    def format_model(self, run: RunFolder) -> tuple[Any, Any]:
        """The model that plays first: as loaded, or one that was taught the format."""
        config = self.config
        if not config.format_examples:
            return engine.load_model(config.model, seed=config.seed)
        spec = {name: value for name, value in dump(config).items() if name in BASE_FIELDS}
        with run.shared(config.base_cache / self.base_name(), spec) as folder:
            make_once(folder / "model", lambda path: self.teach_format(path, run))
        return engine.load_model(str(folder / "model"))

    def base_name(self) -> str:
        """A readable name; the spec inside the folder says everything that the base depends on."""
        config = self.config
        world = config.world.owner.__name__.lower()
        return f"{world}-{config.world.view}-{config.form}-{config.base_seed}"

    def teach_format(self, folder: Path, run: RunFolder) -> None:
        config, seed = self.config, self.config.base_seed
        world: World = config.world.build()
        world.reset(seed=0)
        vocabulary = (*world.vocabulary(), *TAG_TOKENS)
        model, tokenizer = engine.load_model(config.model, vocabulary=vocabulary, seed=seed)
        script = Script(max_turns=config.max_turns, max_actions=config.max_actions, truthful=False)
        scripted = script_of_form(
            config.world, self.codec(tokenizer), script, count=config.format_examples, seed=seed
        )
        engine.sft(
            model,
            tokenizer,
            config.format_sft,
            scripted.examples,
            folder,
            seed=seed,
            progress=run.progress,
            phase="format",
        )

    def learn_from_self_play(
        self, run: RunFolder, rollout: Rollout, model: Any, tokenizer: Any, codec: TaggedCodec
    ) -> SelfPlayResult:
        config = self.config
        collected = self.played_examples(run, rollout, model, codec)
        if not collected.examples:
            raise EngineError(
                "self-play",
                f"none of {collected.episodes} episodes is {config.self_play.keep!r}",
                "raise format_examples, or set self_play.keep=all",
            )
        engine.sft(
            model,
            tokenizer,
            config.self_play.sft,
            collected.examples,
            run / "self_play",
            seed=config.seed,
            progress=run.progress,
            phase="self-play",
        )
        trained = engine.load_model(str(run / "self_play"))[0]
        return SelfPlayResult(
            env_steps=collected.env_steps,
            episodes=collected.episodes,
            examples=len(collected.examples),
            validation=(
                self.validate(rollout, trained, codec) if config.validation.instances else None
            ),
        )

    def played_examples(
        self, run: RunFolder, rollout: Rollout, model: Any, codec: TaggedCodec
    ) -> Collected:
        """Rank 0 plays; the file gives all ranks the same examples, in the same number."""
        config = self.config

        def play() -> dict[str, Any]:
            sampler = engine.local_sampler(model)
            played = collect_examples(config.self_play, rollout, sampler, codec, seed=config.seed)
            return dict(plain(played._asdict()))

        kept = run.part("self_play_examples", dict[str, Any], play)
        return Collected(**{**kept, "examples": [TrainExample(**e) for e in kept["examples"]]})

    def reinforce(
        self, run: RunFolder, rollout: Rollout, model: Any, tokenizer: Any, *, spent: int
    ) -> tuple[Any, RlCost]:
        """RL on shaped returns until the steps or the env-step budget are used up."""
        config = self.config
        played_before = rollout.env_steps
        budget = EnvStepBudget(
            limit=config.max_env_steps,
            spent=spent,
            count=lambda: rollout.env_steps - played_before,
        )
        trained = engine.rlvr(
            model,
            tokenizer,
            config.rlvr,
            rollout,
            AgentTasks(split=Split.TRAIN, seed=config.seed),
            run / "model",
            seed=config.seed,
            progress=run.progress,
            phase="rl",
            budget=budget,
        )
        if run.is_main:
            write_json_lines(run / "curve.jsonl", trained.curve)
        cost = RlCost(env_steps=budget.total, iterations=trained.steps, collapse=trained.collapse)
        return trained.model, cost

    def validate(self, rollout: Rollout, model: Any, codec: TaggedCodec) -> TestScores:
        sampler = engine.local_sampler(model)
        return evaluate_agent(self.config.validation, rollout, sampler, codec)

    # --- what the parts use -----------------------------------------------------------------------

    def codec(self, tokenizer: Any) -> TaggedCodec:
        """Tags over a chat model's template, or over the interleaved format."""
        config = self.config
        if getattr(tokenizer, "chat_template", None):
            chat = ChatCodec(
                tokenizer, max_actions=config.max_actions, form=reply_form(config.form)
            )
            return TaggedCodec(chat, form=config.form, blank="\n")
        return TaggedCodec(InterleavedCodec(tokenizer), form=config.form)

    def rollout(self, codec: TaggedCodec) -> Rollout:
        config = self.config
        limits = Rollout.Config(
            world=config.world,
            max_turns=config.max_turns,
            max_actions=config.max_actions,
            turn_tokens=config.turn_tokens,
            env_pool=config.env_pool,
        )
        return Rollout(limits, codec, shaping=config.reward_shaping.build())

    def reference_scores(self) -> ReferenceScores | None:
        """Random and optimal play on the test instances."""
        return reference_policies(self.config.world, self.config.test)

    def summary(self, result: SpaResult) -> list[tuple[str, str]]:
        rows = [(f"test pass@{k}", str(metric)) for k, metric in result.test.passes.items()]
        return [*rows, ("env steps", f"{result.rl.env_steps:,}")]
