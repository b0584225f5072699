"""A world model of recorded text games: SFT on records, RLVR, and every test record asked.

One arm, one seed. The model after SFT is kept in `base_cache` and shared by the arms of a seed.
    TextGameModel(bytesized32_tiny().arms["exact"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.choose import codec_for
from terrella.core.config import Local, dump
from terrella.core.errors import ConfigError, EngineError
from terrella.core.files import write_json
from terrella.core.metric import Metric
from terrella.core.protocols import Codec
from terrella.core.run_folder import RunFolder, make_once
from terrella.core.types import Split, canonical_json
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Examples
from terrella.evals.results import RlCost
from terrella.evals.text_games import (
    TextGameScores,
    baseline_marks,
    greedy_marks,
    text_game_scores,
)
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.rlvr import rl_finetune
from terrella.pipelines.text_games.examples import bundle_examples, bundles
from terrella.pipelines.text_games.reasoning import reasoned_examples
from terrella.policies.endpoint import Endpoint
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

BASE_FIELDS = ("model", "sft_share", "states", "actions", "teacher", "sft")
"""Settings that a base depends on, beside its seed and the world."""
BASELINES = ("no_change", "nearest_neighbour", "nearest_neighbour_inside_tables")
VALIDATE_ON = 128
"""Validation tasks before and after RL."""


@dataclass(frozen=True, kw_only=True)
class TextGameRl(RlCost):
    """RL, with validation before and after it. An env step is one record that is asked."""

    before: Metric | None = None
    after: Metric | None = None
    reward: list[float] = field(default_factory=list[float])
    """By training step."""


@dataclass(frozen=True, kw_only=True)
class TextGameResult:
    """Scores on the test records."""

    test: TextGameScores
    rl: TextGameRl
    marks: str
    """One mark per test record; see `evals/text_games.py`."""


class TextGameModel(ModelPipeline[TextGameResult]):
    """SFT, then RLVR from verified answers."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: ByteSized32.Config
        model: Local[str] = "tiny-1m"
        """A model, or a baseline that needs none: one of `BASELINES`."""
        sft_share: float = 1.0
        """Fraction of the train records that SFT may use; RLVR asks all of them."""
        states: int = 4000
        """Bundles of SFT: a state and `actions` records of it."""
        actions: int = 12
        teacher: Endpoint.Config | None = None
        """For chat models: SFT fits the teacher's reasoning and answers where they are correct."""
        sft: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=lambda: RlvrConfig(steps=0))
        """0 steps leave RLVR out."""
        turn_tokens: int = 48
        test_records: int = 0
        """Test records that are asked, evenly chosen; 0 asks all."""
        base_cache: Local[Path] = Path("runs/game-bases")
        base_seed: int | None = None
        """Seed of SFT if the arms of all seeds share one base; None fits a base per seed."""
        out: Path = Path("runs/game_model")

    config: Config
    result_type = TextGameResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "base_cache")

    def train(self, run: RunFolder) -> TextGameResult:
        config = self.config
        rl = TextGameRl(env_steps=0)
        if config.model in BASELINES:
            world: ByteSized32 = config.world.build()
            marks = baseline_marks(world, self.test_records(world), config.model)
        else:
            model = self.base(run)
            if config.rlvr.steps:
                rl = self.rl_finetune(run, model)
                model = run / "rl" / "model"
            marks = run.part("marks", str, lambda: self.test_marks(model))
        world = config.world.build()
        scores = text_game_scores(world, self.test_records(world), marks)
        return TextGameResult(test=scores, rl=rl, marks=marks)

    # --- SFT --------------------------------------------------------------------------------------

    def base(self, run: RunFolder) -> Path:
        """The model after SFT, fitted by the first arm that needs it."""
        config = self.config
        spec: dict[str, Any] = {k: v for k, v in dump(config).items() if k in BASE_FIELDS}
        spec["seed"] = self._sft_seed
        world = dump(config.world)
        spec["world"] = {k: v for k, v in world.items() if k not in ("reward", "path")}
        name = hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:12]
        with run.shared(config.base_cache / f"sft-{name}", spec) as folder:
            return make_once(folder / "model", lambda path: self._fit(run, path))

    @property
    def _sft_seed(self) -> int:
        return self.config.seed if self.config.base_seed is None else self.config.base_seed

    def _fit(self, run: RunFolder, folder: Path) -> None:
        config = self.config
        seed = self._sft_seed
        world: ByteSized32 = config.world.build()
        start = start_model(
            config.model, folder.with_name("start"), vocabulary=world.vocabulary(), seed=seed
        )
        chosen = bundles(
            world, states=config.states, actions=config.actions, share=config.sft_share, seed=seed
        )
        codec = codec_for(load_tokenizer(start))
        if config.teacher is None:
            examples: Examples = [bundle_examples(world, codec, records) for records in chosen]
        else:
            examples = self._reasoned_examples(world, codec, chosen, config.teacher, folder)
        self.engine.sft(start, examples, config.sft, folder, seed=seed, progress=run.progress)

    def _reasoned_examples(
        self,
        world: ByteSized32,
        codec: Codec,
        chosen: Iterable[list[Record]],
        teacher: Endpoint.Config,
        folder: Path,
    ) -> Examples:
        if not isinstance(codec, ChatCodec):
            raise ConfigError(
                "teacher", "only chat models can reason", "choose a chat model, or set teacher=none"
            )
        records = [record for bundle in chosen for record in bundle]
        endpoint: Endpoint = teacher.build()
        examples, counts = reasoned_examples(world, codec, records, endpoint.complete)
        write_json(folder.with_name("teacher.json"), counts)
        if not examples:
            raise EngineError(
                "teacher", f"no reply was correct: {dict(counts)}", "choose a better teacher"
            )
        return examples

    # --- RLVR -------------------------------------------------------------------------------------

    def rl_finetune(self, run: RunFolder, start: Path) -> TextGameRl:
        config = self.config
        trained = rl_finetune(
            run,
            self.engine,
            start,
            EpisodeSource(
                rollout=Rollout.Config(world=config.world, turn_tokens=config.turn_tokens),
                tasks=WorldTasks(world=config.world, ask="observation", seed=config.seed),
            ),
            config.rlvr,
            seed=config.seed,
            evaluate_on=min(VALIDATE_ON, config.test_records or VALIDATE_ON),
        )
        return TextGameRl(
            env_steps=config.rlvr.steps * config.rlvr.groups,
            before=trained.before,
            after=trained.after,
            reward=trained.reward,
        )

    # --- evaluation -------------------------------------------------------------------------------

    def test_records(self, world: ByteSized32) -> list[Record]:
        records = world.pools[Split.TEST]
        wanted = self.config.test_records or len(records)
        return list(records[:: max(1, len(records) // wanted)])

    def test_marks(self, folder: Path) -> str:
        """Marks of a model, whatever reward it was trained with."""
        world: ByteSized32 = self.config.world.replace(reward="exact").build()
        with self.engine.sampler(folder) as sampler:
            return greedy_marks(
                world,
                self.test_records(world),
                sampler,
                codec_for(load_tokenizer(folder)),
                turn_tokens=self.config.turn_tokens,
            )

    def reference_scores(self) -> dict[str, float]:
        """Nothing is played here; baselines are arms of their own."""
        return {}

    def summary(self, result: TextGameResult) -> list[tuple[str, str]]:
        means = result.test.means()
        return [(name, f"{value:.3f}") for name, value in means.items()]
