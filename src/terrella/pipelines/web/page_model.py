"""A page world model from recorded episodes: what changes on a page after an action.

The model reads a compact page and an action and writes the changes (`verify/tree_diff.py`), then
the reward and whether the episode ends. It is fitted to recorded steps, then trained with RLVR on
the same steps; neither needs a browser.
    config = page_model().replace(train=Path("runs/pages/train"), test=Path("runs/pages/test"))
    result = PageModel(config).run(progress)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import Task
from terrella.core.types import Split, Transition
from terrella.core.world import World
from terrella.engines import engine
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.base import Pipeline
from terrella.pipelines.rlvr import RlPart, rl_finetune
from terrella.pipelines.web.page_scores import PageScores, baseline_scores, greedy_scores
from terrella.pipelines.web.page_steps import (
    CHANGE_TOKENS,
    change_examples,
    load_steps,
    situation_of,
)
from terrella.rollout.rollout import Rollout

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


class PageModel(Pipeline[PageModelResult]):
    """SFT on recorded steps, then RLVR on them."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        world: World.Config
        train: Path
        """A store of recorded episodes."""
        test: Path
        model: str = "tiny-0.3m"
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
                fitted,
                Rollout.Config(world=config.world, turn_tokens=config.turn_tokens),
                recorded_tasks(train, seed=config.seed),
                config.rlvr,
                seed=config.seed,
                evaluate_on=VALIDATE_ON,
            )
            rlvr = self.score(run / "rl" / "model", test)
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
        model, tokenizer = engine.load_model(
            config.model, vocabulary=tuple(vocabulary), seed=config.seed
        )
        examples = list(change_examples(steps, InterleavedCodec(tokenizer), tokenizer))
        engine.sft(
            model,
            tokenizer,
            config.sft,
            examples,
            folder,
            seed=config.seed,
            progress=run.progress,
        )

    def score(self, folder: Path, steps: Sequence[Transition]) -> PageScores:
        return greedy_scores(folder, steps, turn_tokens=self.config.turn_tokens)

    def summary(self, result: PageModelResult) -> list[tuple[str, str]]:
        scores = {**result.baselines, "after SFT": result.sft}
        if result.rlvr is not None:
            scores["after RLVR"] = result.rlvr
        return [(name, f"value {score.all.value or 'masked'}") for name, score in scores.items()]


def recorded_tasks(
    steps: Sequence[Transition], *, seed: int
) -> Callable[[Split], Callable[[int], Task]]:
    """Tasks that ask about recorded steps; the last tenth of them is for validation."""
    cut = len(steps) * 9 // 10
    by_split = {Split.TRAIN: steps[:cut], Split.VALIDATION: steps[cut:]}

    def tasks(split: Split) -> Callable[[int], Task]:
        chosen = by_split[split]

        def task(index: int) -> Task:
            step = chosen[(index * STRIDE + seed) % len(chosen)]
            return Task(seed=index, split=split, situation=situation_of(step), transition=step)

        return task

    return tasks
