"""`terrella train-world-model RECIPE`: a world model, from real env steps to a folder of weights.

Collect real steps, fit a model to them, fine-tune it with verified rewards. The folder holds the
data (`data/`, an episode store), the fitted model (`fitted/`), the final one (`model/`) and a
manifest that counts the real steps. The model predicts the next observation, then the reward and
whether the episode has ended.
    TrainWorldModel(lake_model().replace(out=Path("runs/lake"))).run(progress)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import CodecConfig
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.integrity import copy_folder
from terrella.core.protocols import Codec
from terrella.core.recorded_settings import LEAST_PREDICTION
from terrella.core.run_folder import MANIFEST, RunFolder, wait_for
from terrella.core.tokens import TrainExample
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, read_curve, start_model
from terrella.engines.interface import Curve
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.curve import groups_played
from terrella.pipelines.rl_part import RlPart, rl_finetune
from terrella.pipelines.store_examples import Scenes, prediction_examples
from terrella.pipelines.turn_limits import TurnLimit, limits_of
from terrella.pipelines.validation import check_count
from terrella.policies.basic import Mixture
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks

CUT_SHARE = 0.01
"""Share of the observations that may be longer than a prediction."""


@dataclass(frozen=True, kw_only=True)
class RealSteps:
    """Real env steps, by what they were used for."""

    data: int
    rlvr: int


@dataclass(frozen=True, kw_only=True)
class WorldModelResult:
    """What the model cost in real steps, and what RLVR changed."""

    real_steps: RealSteps
    rl: RlPart | None = None
    """None where RLVR was left out."""


class TrainWorldModel(ModelPipeline[WorldModelResult]):
    """A world model that is fitted to text observations."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        policy: Configurable.Config = field(default_factory=lambda: Mixture.Config(share=0.5))
        """Takes the real steps. It should reach all the states that an agent will reach."""
        transitions: int = 12_000
        model: Local[str] = "tiny-0.3m"
        sft: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=lambda: RlvrConfig(steps=0))
        """0 `steps` leave RLVR out. Its tasks take further real steps, which are counted."""
        turn_tokens: int = 64
        """Longest answer in RLVR, and longest prediction of the model if above LEAST_PREDICTION."""
        thinking: Thinking = "off"
        """Whether a chat model thinks before it answers; recorded steps hold no thoughts."""
        evaluate_on: int = 256
        """Validation tasks for the metrics before and after RLVR."""
        out: Path = Path("runs/world_model")

    config: Config
    result_type = WorldModelResult

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.rlvr.steps:
            check_count(config.evaluate_on)

    def turn_limits(self) -> list[TurnLimit]:
        if not self.config.rlvr.steps:
            return []
        return limits_of(self.config, [(self.config.world, self.codec_config())], "observation")

    def train(self, run: RunFolder) -> WorldModelResult:
        data = self.collect(run)
        fitted = run.model("fitted", lambda folder: self.fit(run, data, folder))
        rl = self.rl_finetune(run, fitted) if self.config.rlvr.steps else None
        self.export(run, fitted if rl is None else run / "rl" / "model")
        data_steps = sum(len(episode.transitions) for episode in data.episodes())
        rl_steps = 0 if rl is None else self.rlvr_env_steps(read_curve(run / "curve.jsonl"))
        return WorldModelResult(real_steps=RealSteps(data=data_steps, rlvr=rl_steps), rl=rl)

    # --- parts ------------------------------------------------------------------------------------

    def collect(self, run: RunFolder) -> EpisodeStore:
        """Play the policy in the world; rank 0 plays and the other ranks wait."""
        folder = run / "data"
        if run.is_main:
            config = Collect.Config(
                world=self.config.world,
                policy=self.config.policy,
                out=folder,
                transitions=self.config.transitions,
                seed=self.config.seed,
            )
            Collect(config).run(run.progress)
        wait_for(folder / MANIFEST)
        return EpisodeStore.open(folder)

    def fit(self, run: RunFolder, data: EpisodeStore, folder: Path) -> None:
        """Cross-entropy on what followed each real step."""
        config = self.config
        world: World = config.world.build()
        world.reset(seed=0)
        start = start_model(
            config.model, run / "start", vocabulary=world.vocabulary(), seed=config.seed
        )
        tokenizer = load_tokenizer(start)
        codec = self.codec_config().make(tokenizer)
        outcome = OutcomeCodec(tokenizer, codec.stop_ids)
        examples = [
            example
            for episode in data.episodes()
            for example in prediction_examples(Scenes(world), codec, episode, outcome=outcome)
        ]
        self._check_lengths([_observation_tokens(each, codec) for each in examples])
        self.engine.sft(
            start,
            examples,
            config.sft,
            folder,
            seed=config.seed,
            progress=run.progress,
        )

    def _check_lengths(self, answers: Sequence[int]) -> None:
        """Refuse a limit that cuts the model's predictions: each would count as unreadable."""
        limit = max(self.config.turn_tokens, LEAST_PREDICTION)
        longer = sum(length > limit for length in answers)
        if longer > CUT_SHARE * len(answers):
            raise ConfigError(
                "turn_tokens",
                f"{longer} of {len(answers)} observations are longer than {limit} tokens, "
                "so the model's predictions would be cut",
                f"set turn_tokens={max(answers)}, or choose a shorter view of the world",
            )

    def codec_config(self) -> CodecConfig:
        return CodecConfig(thinking=self.config.thinking)

    def rl_finetune(self, run: RunFolder, fitted: Path) -> RlPart:
        """RLVR on the predicted observations, from the fitted model to `rl/model`."""
        config = self.config
        return rl_finetune(
            run,
            self.engine,
            fitted,
            EpisodeSource(
                rollout=Rollout.Config(world=config.world, turn_tokens=config.turn_tokens),
                tasks=WorldTasks(world=config.world, ask="observation", seed=config.seed),
                codec=self.codec_config(),
            ),
            config.rlvr,
            seed=config.seed,
            evaluate_on=config.evaluate_on,
        )

    def rlvr_env_steps(self, curve: Curve) -> int:
        """Real steps of RLVR's train tasks, at most.

        Each task is one step of an episode of its own, which is played to its end.
        """
        return groups_played(curve, self.config.rlvr.groups) * self.config.world.max_steps

    def export(self, run: RunFolder, trained: Path) -> None:
        """Copy the final model to `model/`, which `certify` and `plan` read."""
        if run.is_main:
            copy_folder(trained, run / "model")

    def summary(self, result: WorldModelResult) -> list[tuple[str, str]]:
        rows = [
            ("real steps: data", f"{result.real_steps.data:,}"),
            ("real steps: rlvr", f"{result.real_steps.rlvr:,}"),
        ]
        if result.rl is not None:
            rows += [("before rlvr", str(result.rl.before)), ("after rlvr", str(result.rl.after))]
        return rows


def _observation_tokens(example: TrainExample, codec: Codec) -> int:
    """Tokens of the answer up to the end of the observation; the outcome follows it."""
    ends = (at for at, token in enumerate(example.completion_ids) if token in codec.stop_ids)
    return 1 + next(ends)
