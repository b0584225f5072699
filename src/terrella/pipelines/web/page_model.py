"""A page world model from recorded episodes: what changes on a page after an action.

The model reads a compact page and an action and writes the changes (`verify/tree_diff.py`), then
the reward and whether the episode ends. It is fitted to recorded steps, then trained with RLVR on
the same steps; neither needs a browser.
    config = page_model().replace(train=Path("runs/pages/train"), test=Path("runs/pages/test"))
    result = PageModel(config).run(progress)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.config import Local
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import Task
from terrella.core.types import Split, Transition
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, start_model
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.rlvr import RlPart, rl_finetune
from terrella.pipelines.web.page_scores import PageScores, baseline_scores, greedy_scores
from terrella.pipelines.web.page_steps import (
    CHANGE_TOKENS,
    change_examples,
    load_steps,
    situation_of,
)
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, TaskSource

VALIDATE_ON = 64
"""Validation tasks before and after RL."""
STRIDE = 7919
"""A prime: tasks visit all recorded steps in a fixed, mixed order."""


@dataclass(frozen=True, kw_only=True)
class PageModelResult:
    """Scores on the test steps after each part of the training, beside the baselines."""

    train_steps: int
    test_steps: int
    baselines: dict[str, PageScores]
    sft: PageScores
    rl: RlPart | None
    rlvr: PageScores | None
    """None without RLVR."""


class PageModel(ModelPipeline[PageModelResult]):
    """SFT on recorded steps, then RLVR on them."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        train: Local[Path]
        """A store of recorded episodes."""
        test: Local[Path]
        model: Local[str] = "tiny-0.3m"
        sft: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        """0 steps leave RLVR out."""
        turn_tokens: int = 64
        out: Path = Path("runs/page_model")

    config: Config
    result_type = PageModelResult

    def train(self, run: RunFolder) -> PageModelResult:
        config = self.config
        train, test = load_steps(config.train), load_steps(config.test)
        fitted = run.model("fitted", lambda folder: self.fit(run, train, folder))
        sft = run.part("sft_scores", PageScores, lambda: self.score(fitted, test))
        rl = rlvr = None
        if config.rlvr.steps:
            rl = rl_finetune(
                run,
                self.engine,
                fitted,
                EpisodeSource(
                    rollout=Rollout.Config(world=config.world, turn_tokens=config.turn_tokens),
                    tasks=RecordedTasks(store=config.train, seed=config.seed),
                ),
                config.rlvr,
                seed=config.seed,
                evaluate_on=VALIDATE_ON,
            )
            trained = run / "rl" / "model"
            rlvr = run.part("rlvr_scores", PageScores, lambda: self.score(trained, test))
        return PageModelResult(
            train_steps=len(train),
            test_steps=len(test),
            baselines=baseline_scores(test),
            sft=sft,
            rl=rl,
            rlvr=rlvr,
        )

    def fit(self, run: RunFolder, steps: Sequence[Transition], folder: Path) -> None:
        config = self.config
        vocabulary = dict.fromkeys((*config.world.build().vocabulary(), *CHANGE_TOKENS))
        start = start_model(
            config.model, run / "start", vocabulary=tuple(vocabulary), seed=config.seed
        )
        tokenizer = load_tokenizer(start)
        examples = list(change_examples(steps, InterleavedCodec(tokenizer), tokenizer))
        self.engine.sft(
            start,
            examples,
            config.sft,
            folder,
            seed=config.seed,
            progress=run.progress,
        )

    def score(self, folder: Path, steps: Sequence[Transition]) -> PageScores:
        codec = InterleavedCodec(load_tokenizer(folder))
        with self.engine.sampler(folder) as sampler:
            return greedy_scores(sampler, codec, steps, turn_tokens=self.config.turn_tokens)

    def summary(self, result: PageModelResult) -> list[tuple[str, str]]:
        scores = {**result.baselines, "after SFT": result.sft}
        if result.rlvr is not None:
            scores["after RLVR"] = result.rlvr
        return [(name, f"value {score.all.value or 'masked'}") for name, score in scores.items()]


@dataclass(frozen=True, kw_only=True)
class RecordedTasks(TaskSource):
    """Ask about recorded steps; the last tenth of them is for validation."""

    store: Local[Path]

    def make(self) -> Tasks:
        steps = load_steps(self.store)
        cut = len(steps) * 9 // 10
        chosen = steps[:cut] if self.split is Split.TRAIN else steps[cut:]

        def task(index: int) -> Task:
            step = chosen[(index * STRIDE + self.seed) % len(chosen)]
            return Task(seed=index, split=self.split, situation=situation_of(step), transition=step)

        return task
