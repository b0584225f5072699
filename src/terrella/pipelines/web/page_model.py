"""A page world model from recorded episodes: what changes on a page after an action.

The model reads a page and an action and writes the changes (`verify/tree_diff.py`, or the published
lists of `verify/page_sections.py`), then the reward and whether the episode ends. It is fitted to
recorded steps, then trained with RLVR on the same steps; neither needs a browser.
    config = page_model().replace(train=Path("runs/pages/train"), test=Path("runs/pages/test"))
    result = PageModel(config).run(progress)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from terrella.codecs.chat_template import Thinking
from terrella.codecs.pages import PageAsk, PageCodecConfig, PageForm
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import Task
from terrella.core.types import Split, Transition
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Model
from terrella.models.names import TINY
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.rl_part import RlPart, rl_finetune
from terrella.pipelines.validation import check_count
from terrella.pipelines.web.page_scores import (
    PageRow,
    PageScores,
    baseline_scores,
    greedy_replies,
    page_rows,
    score_rows,
)
from terrella.pipelines.web.page_steps import (
    CHANGE_TOKENS,
    VERIFIERS,
    LongPages,
    SelectedSteps,
    StepCounts,
    StepSelection,
    page_examples,
    situation_of,
)
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, TaskSource

logger = logging.getLogger("terrella")

STRIDE = 7919
"""A prime: tasks visit all recorded steps in a fixed, mixed order."""


@dataclass(frozen=True, kw_only=True)
class PageModelResult:
    """Scores on the test steps after each part of the training, beside the baselines."""

    train_steps: int
    test_steps: int
    selection: dict[str, StepCounts]
    """What was left out or cut of the steps for training and for the test, by reason."""
    baselines: dict[str, PageScores]
    before: PageScores | None
    """Scores before training; None for a model from scratch, and without `score_before`."""
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
        form: PageForm = "changes"
        """The language of changes: ours, or the published lists."""
        prompt: PageAsk = "explained"
        """Whether a chat model's prompt explains that language."""
        thinking: Thinking = "off"
        """Whether a chat model thinks before it answers; recorded steps hold no thoughts."""
        context_tokens: int = 0
        """Most tokens of a question with its answer; 0 is what the model can read."""
        long_pages: LongPages = "refuse"
        """A page that does not fit is refused, left out, or cut around the acted element."""
        page_characters: int = 0
        """Leave out longer pages, whatever fits; 0 sets no bound."""
        change_characters: int = 0
        sft: SftConfig = field(default_factory=SftConfig)
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        """0 steps leave RLVR out."""
        turn_tokens: int = 64
        score_before: bool = False
        """Also score a chat model before SFT: how much its prompt alone tells it."""
        most_train_steps: int = 0
        """Train steps that are used, evenly chosen; 0 uses all."""
        most_test_steps: int = 0
        evaluate_on: int = 64
        """Validation tasks before and after RL."""
        out: Path = Path("runs/page_model")

    config: Config
    result_type = PageModelResult

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.rlvr.steps:
            check_count(config.evaluate_on)

    def preflight(self) -> None:
        super().preflight()
        for store in (self.config.train, self.config.test):
            EpisodeStore.open(store)

    def train(self, run: RunFolder) -> PageModelResult:
        config = self.config
        start = self.start(run)
        train = self.select(start, config.train, training=True)
        test = self.select(start, config.test, training=False)
        asked = test.steps
        before = None
        if config.score_before and config.model not in TINY:
            before = self.scores(run, "before", start, asked)
        fitted = run.model("fitted", lambda folder: self.fit(run, start, train.steps, folder))
        sft = self.scores(run, "sft", fitted, asked)
        rl = rlvr = None
        if config.rlvr.steps:
            rl = rl_finetune(
                run,
                self.engine,
                fitted,
                self.episode_source(start),
                config.rlvr,
                seed=config.seed,
                evaluate_on=config.evaluate_on,
            )
            rlvr = self.scores(run, "rlvr", run / "rl" / "model", asked)
        return PageModelResult(
            train_steps=len(train.steps),
            test_steps=len(asked),
            selection={"train": train.counts, "test": test.counts},
            baselines=baseline_scores(asked, config.form),
            before=before,
            sft=sft,
            rl=rl,
            rlvr=rlvr,
        )

    # --- parts ------------------------------------------------------------------------------------

    def start(self, run: RunFolder) -> Model:
        """The model to start from; one from scratch is made with the words of the world."""
        config = self.config
        vocabulary: dict[str, None] = {}
        if config.model in TINY:  # the world may need sites that a chat model's training does not
            vocabulary = dict.fromkeys((*config.world.build().vocabulary(), *CHANGE_TOKENS))
        return start_model(
            config.model, run / "start", vocabulary=tuple(vocabulary), seed=config.seed
        )

    def codec_config(self) -> PageCodecConfig:
        config = self.config
        return PageCodecConfig(form=config.form, ask=config.prompt, thinking=config.thinking)

    def selection(self, start: Model, store: Path, *, training: bool) -> StepSelection:
        config = self.config
        return StepSelection(
            store=store,
            model=str(start),
            codec=self.codec_config(),
            turn_tokens=config.turn_tokens,
            context_tokens=config.context_tokens,
            long_pages=config.long_pages,
            page_characters=config.page_characters,
            change_characters=config.change_characters,
            most=config.most_train_steps if training else config.most_test_steps,
            training=training,
        )

    def select(self, start: Model, store: Path, *, training: bool) -> SelectedSteps:
        selected = self.selection(start, store, training=training).load()
        counts = selected.counts
        lost = sum(counts.left_out.values())
        if lost or counts.cut:
            logger.warning(
                "%s: of %d steps %d are left out %s, %d cut (%d with hidden changes)",
                store,
                counts.kept + lost,
                lost,
                counts.left_out,
                counts.cut,
                counts.hidden,
            )
        return selected

    def fit(self, run: RunFolder, start: Model, steps: Sequence[Transition], folder: Path) -> None:
        config = self.config
        tokenizer = load_tokenizer(start)
        codec = self.codec_config().make(tokenizer)
        self.engine.sft(
            start,
            page_examples(steps, codec, tokenizer, config.form),
            config.sft,
            folder,
            seed=config.seed,
            progress=run.progress,
        )

    def episode_source(self, start: Model) -> EpisodeSource:
        config = self.config
        return EpisodeSource(
            rollout=Rollout.Config(
                world=config.world,
                turn_tokens=config.turn_tokens,
                episode_tokens=max(Rollout.Config.episode_tokens, config.turn_tokens),
                context_tokens=config.context_tokens,
            ),
            tasks=RecordedTasks(
                steps=self.selection(start, config.train, training=True), seed=config.seed
            ),
            codec=self.codec_config(),
            verifier=VERIFIERS[config.form],
        )

    def scores(
        self, run: RunFolder, name: str, model: Model, steps: Sequence[Transition]
    ) -> PageScores:
        """The rows of the test are kept in `NAME_rows.json`."""
        rows = run.part(f"{name}_rows", list[PageRow], lambda: self.ask(run, model, steps))
        return score_rows(rows)

    def ask(self, run: RunFolder, model: Model, steps: Sequence[Transition]) -> list[PageRow]:
        codec = self.codec_config().make(load_tokenizer(model))
        with self.engine.sampler(model) as sampler:
            replies = greedy_replies(
                sampler,
                codec,
                steps,
                turn_tokens=self.config.turn_tokens,
                progress=run.progress,
            )
        return page_rows(steps, replies, self.config.form)

    def summary(self, result: PageModelResult) -> list[tuple[str, str]]:
        scores = {
            **result.baselines,
            "before SFT": result.before,
            "after SFT": result.sft,
            "after RLVR": result.rlvr,
        }
        rows = []
        for name, each in scores.items():
            if each is not None:
                changed, all_steps = each.changed, each.all
                text = f"{changed.f1 or 'masked'}; unreadable {all_steps.unparsable}"
                rows.append((f"F1 of what changes: {name}", f"{text} of {all_steps.n}"))
        for name, counts in result.selection.items():
            lost = ", ".join(f"{n} {reason}" for reason, n in counts.left_out.items())
            text = f"{counts.kept:,} kept, {counts.cut:,} cut, left out: {lost or 'none'}"
            rows.append((f"steps: {name}", text))
        return rows


@dataclass(frozen=True, kw_only=True)
class RecordedTasks(TaskSource):
    """Ask about recorded steps; the last tenth of them is for validation.

    SFT has seen them all, RL has not. The test is another store.
    """

    steps: StepSelection

    def make(self) -> Tasks:
        chosen = self.steps.load().steps
        cut = len(chosen) * 9 // 10
        own = chosen[:cut] if self.split is Split.TRAIN else chosen[cut:]
        if not own:
            raise ConfigError(
                str(self.steps.store), f"has no steps for {self.split}", "collect more episodes"
            )

        def task(index: int) -> Task:
            step = own[(index * STRIDE + self.seed) % len(own)]
            return Task(seed=index, split=self.split, situation=situation_of(step), transition=step)

        return task
