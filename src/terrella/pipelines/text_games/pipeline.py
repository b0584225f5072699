"""A world model of recorded text games: SFT on records, RLVR, and every test record asked.

One arm, one seed. The model after SFT is kept in `base_cache` and shared by the arms of a seed.
    TextGameModel(bytesized32_tiny().arms["exact"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from terrella.codecs.chat_template import Thinking
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.choose import CodecConfig
from terrella.core.config import Local, dump, record_from_json
from terrella.core.errors import ConfigError, EngineError
from terrella.core.files import write_json
from terrella.core.instances import plain
from terrella.core.integrity import content_sha256, read_sealed, write_sealed
from terrella.core.metric import Metric
from terrella.core.protocols import Codec
from terrella.core.run_folder import RunFolder, make_once, rank, wait_for
from terrella.core.types import Split
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, read_curve, start_model
from terrella.engines.interface import Examples, Model
from terrella.evals.results import RlCost
from terrella.evals.text_games import (
    TextGameScores,
    baseline_marks,
    greedy_marks,
    text_game_scores,
)
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.curve import groups_played, groups_refilled, known_mean, step_values
from terrella.pipelines.rl_part import rl_finetune
from terrella.pipelines.text_games.examples import bundle_examples, bundles
from terrella.pipelines.text_games.reasoning import reasoned_examples, teacher_questions
from terrella.pipelines.text_games.rounds import fit_in_rounds
from terrella.pipelines.text_games.teacher import (
    Teacher,
    TeacherReport,
    read_replies,
    teacher_report,
)
from terrella.pipelines.turn_limits import TurnLimit, limits_of
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

BASE_FIELDS = (
    "model",
    "sft_share",
    "states",
    "actions",
    "max_invalid",
    "sft_rounds",
    "thinking",
    "teacher",
    "sft",
)
"""Settings that a base depends on, beside its seed and the world."""
TEACHER_TRANSPORT = (
    "url",
    "key_variable",
    "timeout",
    "retries",
    "backoff",
    "patience",
    "concurrency",
    "may_fail",
)
"""Settings of a teacher that change none of its replies."""
RL_OR_LOCAL = ("reward", "gold_share", "even_games", "path", "rules_folder")
"""Settings of a world that no SFT example depends on."""
REPORT = "report.json"
BASELINES = ("no_change", "nearest_neighbour", "nearest_neighbour_inside_tables")
VALIDATE_ON = 128
"""Validation tasks before and after RL."""


@dataclass(frozen=True, kw_only=True)
class TextGameRl(RlCost):
    """RL, with validation before and after it. An env step is one record that is asked."""

    before: Metric | None = None
    after: Metric | None = None
    reward: list[float | None] = field(default_factory=list[float | None])
    """By training step; None where all verdicts were masked."""
    without_spread: float | None = None
    """Share of the groups that were all right or all wrong, before they were replaced."""
    refilled: int = 0
    """Groups that were asked in their place (`rlvr.refill`)."""


@dataclass(frozen=True, kw_only=True)
class TextGameResult:
    """Scores on the test records."""

    test: TextGameScores
    rl: TextGameRl
    marks: str
    """One mark per test record; see `evals/text_games.py`."""
    teacher: TeacherReport | None = None


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
        max_invalid: float = 1.0
        """SFT goes on in rounds while more replies than this fraction cannot be read."""
        sft_rounds: int = 1
        """Rounds of SFT, at most, each with `states` new bundles."""
        teacher: Teacher.Config | None = None
        """For chat models: SFT fits the teacher's reasoning and answers where they are correct."""
        thinking: Thinking = "off"
        """Whether a chat model thinks before it answers: records hold no thoughts, a teacher's
        replies do."""
        sft: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=lambda: RlvrConfig(steps=0))
        """0 steps leave RLVR out."""
        turn_tokens: int = 48
        test_records: int = 0
        """Test records that are asked, evenly chosen; 0 asks all."""
        base_cache: Local[Path] = Path("runs/game-bases")
        out: Path = Path("runs/game_model")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.teacher is not None and self.thinking == "off":
                raise ConfigError(
                    "thinking",
                    "off, but SFT would fit the thoughts of a teacher",
                    "set thinking=auto, or teacher=none",
                )

    config: Config
    result_type = TextGameResult
    ignored: ClassVar[tuple[str, ...]] = (
        "out",
        "base_cache",
        *(f"teacher.{name}" for name in TEACHER_TRANSPORT),
    )

    def turn_limits(self) -> list[TurnLimit]:
        config = self.config
        if config.model in BASELINES:
            return []
        asked = [(config.world, self.codec_config())]
        return limits_of(config, asked, "observation", kind=ByteSized32)

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
        teacher = self.read_teacher_report()
        return TextGameResult(test=scores, rl=rl, marks=marks, teacher=teacher)

    # --- SFT --------------------------------------------------------------------------------------

    def base(self, run: RunFolder) -> Path:
        """The model after SFT, fitted by the first arm that needs it."""
        config, spec = self.config, self.base_spec()
        with run.shared(config.base_cache / f"sft-{_short_hash(spec)}", spec) as folder:
            return make_once(folder / "model", lambda path: self._fit_base(run, path))

    def base_spec(self) -> dict[str, Any]:
        """Everything that the base depends on."""
        config = self.config
        spec: dict[str, Any] = {k: v for k, v in dump(config).items() if k in BASE_FIELDS}
        spec["seed"] = self.config.seed
        spec["world"] = self._world_spec()
        if config.teacher is not None:
            spec["teacher"] = {
                k: v for k, v in spec["teacher"].items() if k not in TEACHER_TRANSPORT
            }
        if config.sft_rounds > 1:  # replies that are cut off decide whether another round follows
            spec["turn_tokens"] = config.turn_tokens
        return spec

    def _fit_base(self, run: RunFolder, folder: Path) -> None:
        config = self.config
        if config.sft_rounds == 1:
            self._fit(run, folder)
            return
        if config.teacher is not None:
            raise ConfigError("sft_rounds", "a teacher is asked once", "set sft_rounds=1")
        fit_in_rounds(
            lambda part, start, place: self._fit(run, place, start, part),
            self._invalid,
            folder,
            limit=config.max_invalid,
            most=config.sft_rounds,
        )

    def _invalid(self, model: Path) -> float:
        """Fraction of a model's replies on validation records that cannot be read."""
        records = self.config.world.build().pools[Split.VALIDATION]
        marks = self.marks(model, _evenly(records, VALIDATE_ON))
        return marks.count("?") / len(marks)

    def _world_spec(self) -> dict[str, Any]:
        """What is asked and how it is shown, wherever the data are and however RL draws."""
        world = dump(self.config.world)
        spec = {k: v for k, v in world.items() if k not in RL_OR_LOCAL}
        return {**spec, "rules": self.config.world.rules_folder is not None}

    def _fit(self, run: RunFolder, folder: Path, start: Model | None = None, part: int = 0) -> None:
        config = self.config
        seed = self.config.seed
        world: ByteSized32 = config.world.replace(reward="exact").build()
        start = start or start_model(
            config.model, folder.with_name("start"), vocabulary=world.vocabulary(), seed=seed
        )
        chosen = bundles(
            world,
            states=config.states,
            actions=config.actions,
            share=config.sft_share,
            seed=seed,
            part=part,
        )
        codec = self.codec(start)
        if config.teacher is None:
            examples: Examples = [bundle_examples(world, codec, records) for records in chosen]
        else:
            records = [record for bundle in chosen for record in bundle]
            self.ask_teacher(run, config.teacher, world, records)
            examples = self._reasoned_examples(world, codec, records, config.teacher, folder)
        self.engine.sft(start, examples, config.sft, folder, seed=seed, progress=run.progress)

    def codec_config(self) -> CodecConfig:
        return CodecConfig(thinking=self.config.thinking)

    def codec(self, model: Model) -> Codec:
        """The codec of SFT, RLVR and the test."""
        return self.codec_config().make(load_tokenizer(model))

    def _reasoned_examples(
        self,
        world: ByteSized32,
        codec: Codec,
        records: Sequence[Record],
        teacher: Teacher.Config,
        folder: Path,
    ) -> Examples:
        if not isinstance(codec, ChatCodec):
            raise ConfigError(
                "teacher", "only chat models can reason", "choose a chat model, or set teacher=none"
            )
        replies = read_replies(self.teacher_folder()[0])
        examples, too_long = reasoned_examples(
            world, codec, records, replies, longest=teacher.longest
        )
        if rank() == 0:
            counts = {"examples": len(examples), "too_long": too_long}
            write_json(folder.with_name("examples.json"), counts)
        if not examples:
            counts = teacher_report(replies, records=len(records), failed=0).replies
            raise EngineError("teacher", f"no reply was kept: {counts}", "choose a better teacher")
        return examples

    # --- the teacher ------------------------------------------------------------------------------

    def teacher_folder(self) -> tuple[Path, dict[str, Any]]:
        """Where the teacher's replies are, and what they depend on: not on how SFT uses them."""
        config = self.config
        assert config.teacher is not None
        teacher = {
            k: v
            for k, v in dump(config.teacher).items()
            if k not in (*TEACHER_TRANSPORT, "longest")
        }
        spec = {
            "teacher": teacher,
            "world": self._world_spec(),
            "records": [config.sft_share, config.states, config.actions, self.config.seed],
        }
        return config.base_cache / f"teacher-{_short_hash(spec)}", spec

    def ask_teacher(
        self, run: RunFolder, teacher: Teacher.Config, world: ByteSized32, records: Sequence[Record]
    ) -> None:
        """Rank 0 asks what is missing; the other ranks wait for its report.

        A report with more failures than are allowed now is made again.
        """
        folder, spec = self.teacher_folder()
        with run.shared(folder, spec):
            path = folder / REPORT
            if run.is_main and not _is_enough(path, teacher):
                run.progress.phase("teacher", len(records))
                questions = teacher_questions(
                    world, records, ask_for_thought=teacher.ask_for_thought
                )
                failed = teacher.build().ask(questions, world.verifier, folder, run.progress)
                replies = read_replies(folder)
                made = teacher_report(replies, records=len(records), failed=failed)
                write_sealed(path, plain(made))
            wait_for(path, lambda each: _is_enough(each, teacher))

    def read_teacher_report(self) -> TeacherReport | None:
        if self.config.teacher is None:
            return None
        return _read_report(self.teacher_folder()[0] / REPORT)

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
                codec=self.codec_config(),
            ),
            config.rlvr,
            seed=config.seed,
            evaluate_on=min(VALIDATE_ON, config.test_records or VALIDATE_ON),
        )
        curve = read_curve(run / "curve.jsonl")
        return TextGameRl(
            env_steps=groups_played(curve, config.rlvr.groups),
            refilled=groups_refilled(curve),
            without_spread=known_mean(step_values(curve, "zero_variance")),
            before=trained.before,
            after=trained.after,
            reward=trained.reward,
        )

    # --- evaluation -------------------------------------------------------------------------------

    def test_records(self, world: ByteSized32) -> list[Record]:
        return _evenly(world.pools[Split.TEST], self.config.test_records)

    def test_marks(self, folder: Path) -> str:
        return self.marks(folder, self.test_records(self.config.world.build()))

    def marks(self, folder: Path, records: Sequence[Record]) -> str:
        """Marks of a model, whatever reward it was trained with."""
        world: ByteSized32 = self.config.world.replace(reward="exact").build()
        with self.engine.sampler(folder) as sampler:
            codec, turn_tokens = self.codec(folder), self.config.turn_tokens
            return greedy_marks(world, records, sampler, codec, turn_tokens=turn_tokens)

    def reference_scores(self) -> dict[str, float]:
        """Nothing is played here; baselines are arms of their own."""
        return {}

    def summary(self, result: TextGameResult) -> list[tuple[str, str]]:
        means = result.test.means()
        return [(name, f"{value:.3f}") for name, value in means.items()]


def _read_report(path: Path) -> TeacherReport:
    return record_from_json(TeacherReport, read_sealed(path))


def _is_enough(path: Path, teacher: Teacher.Config) -> bool:
    """Whether a teacher has reported, and failed on no more records than it may."""
    if not path.exists():
        return False
    report = _read_report(path)
    return report.failed <= teacher.may_fail * report.records


def _evenly(records: Sequence[Record], count: int) -> list[Record]:
    """About `count` records, evenly chosen; 0 are all of them."""
    return list(records[:: max(1, len(records) // (count or len(records)))])


def _short_hash(spec: Mapping[str, Any]) -> str:
    return content_sha256(spec)[:12]
