"""What every phase of WebRL uses, and what the first phase starts from.

The start is a policy that has imitated a few demonstrations and, if wanted, an outcome model. Both
are shared by the arms of a seed.
    with open_context(config, engine, run) as context:
        base = make_base(run, config, context)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.config import dump, record_from_json
from terrella.core.errors import ConfigError
from terrella.core.instances import plain
from terrella.core.integrity import damaged_files, write_sealed
from terrella.core.protocols import Progress
from terrella.core.run_folder import RunFolder, read_part, wait_for
from terrella.core.seeds import TASK_STREAM, instance_seed, stream
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import (
    Attempt,
    PracticeTask,
    count_steps,
    read_attempts,
    write_attempts,
)
from terrella.data.train_steps import train_steps
from terrella.data.webrl_formats import attempt_of, read_traces
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Engine
from terrella.models.names import is_pretrained
from terrella.pipelines.webrl.agent import Agent
from terrella.pipelines.webrl.language_agent import LanguageAgent
from terrella.pipelines.webrl.metrics import SuccessScores, success_scores
from terrella.pipelines.webrl.outcome_model import OutcomeModel, OutcomeModelResult
from terrella.pipelines.webrl.settings import POINTER, WebRlSettings
from terrella.pipelines.webrl.updates import SILENT, begin, imitate
from terrella.rollout.batch_rollout import BatchRollout, expert_actions, expert_writes

logger = logging.getLogger("terrella")

DEMONSTRATION, PRACTICE, REPLAY, CRITIC, ACTOR, FOLDS, WRITING = range(7)
"""What a random stream of a phase is used for."""
DEMONSTRATIONS_FILE = "demonstrations.jsonl"
BASE_FIELDS = (
    "families",
    "unseen",
    "model",
    "agent",
    "width",
    "layers",
    "demonstrated",
    "demonstrations",
    "traces",
    "imitation_updates",
    "seed",
    "validation",
    "read_instruction",
)
"""Settings that the first policy depends on."""


@dataclass(frozen=True, slots=True)
class TrainContext:
    """The worlds and the models of a run."""

    rollout: BatchRollout
    agent: Agent
    seed: int
    patience: int
    """Broken attempts in a row that end the run."""
    _seeds: dict[tuple[str, int, Split], list[int]] = field(default_factory=dict, repr=False)
    """Seeds of distinct instances: every evaluation of a run plays the same ones.

    Runs of other seeds play others: a difference over seeds is not about one set of pages.
    """

    def evaluate(
        self,
        actor: Path,
        families: Sequence[str],
        count: int,
        split: Split,
        progress: Progress = SILENT,
        *,
        journal: Path | None = None,
    ) -> SuccessScores | None:
        """Greedy play of `count` distinct instances of each family; None if there are none.

        A repeated instance would be the same episode again, counted as another trial. `journal`
        names where attempts are kept until all have ended; the actor must be whole by then.
        """
        tasks = [
            PracticeTask(family=name, seed=seed)
            for name in families
            for seed in self.distinct_seeds(name, count, split)
        ]
        if not tasks:
            return None
        begin(progress, split.value, len(tasks))
        with contextlib.ExitStack() as stack:
            kept = None
            if journal is not None:
                kept = stack.enter_context(AttemptJournal(journal, patience=self.patience))
            player = stack.enter_context(self.agent.player(actor))
            played = player.play(
                tasks,
                split=split,
                greedy=True,
                watch=lambda _, done: progress.advance(done),
                journal=kept,
            )
            if kept is not None:
                kept.discard()
        return success_scores(played)

    def distinct_seeds(self, family: str, count: int, split: Split) -> list[int]:
        key = family, count, split
        if key not in self._seeds:
            first = instance_seed(self.seed, 0)
            self._seeds[key] = self.rollout.distinct_seeds(*key, first=first)
        return self._seeds[key]


@contextlib.contextmanager
def open_context(config: WebRlSettings, engine: Engine, run: RunFolder) -> Iterator[TrainContext]:
    """Build the models and the worlds; the worlds are closed at the end."""
    with BatchRollout(
        {**config.families, **config.unseen},
        slots=config.slots,
        read_instruction=config.read_instruction,
        threads=config.env_threads,
    ) as rollout:
        agent = _agent(config, engine, run, rollout)
        yield TrainContext(rollout, agent, config.seed, config.patience)


def _agent(config: WebRlSettings, engine: Engine, run: RunFolder, rollout: BatchRollout) -> Agent:
    if config.model == POINTER:
        from terrella.engines.pointer.agent import PointerAgent
        from terrella.models.pointer import PointerSizes

        sizes = PointerSizes(width=config.width, layers=config.layers)
        return PointerAgent(rollout, sizes, seed=config.seed)
    vocabulary: tuple[str, ...] = ()
    if not is_pretrained(config.model):  # a model from scratch gets words of its world
        world: World = config.world.build()
        world.reset(seed=0)
        vocabulary = world.vocabulary()
    start = start_model(config.model, run / "start", vocabulary=vocabulary, seed=config.seed)
    codec = config.agent.codec.make(load_tokenizer(start))
    return LanguageAgent(
        engine,
        rollout,
        config.agent,
        codec,
        start=start,
        work=run / "learner",
        seed=config.seed,
    )


# --- the first policy -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BaseResult:
    """The policy that has imitated the demonstrations."""

    demonstrations: int
    steps: int
    """Steps of the demonstrations that succeeded."""
    env_steps: int = 0
    """Real steps of all demonstrations; recorded traces take none."""
    loss: float
    validation: SuccessScores | None


@dataclass(frozen=True)
class Base:
    """The folder of the first policy, and how it was made."""

    folder: Path
    result: BaseResult


def make_base(run: RunFolder, config: WebRlSettings, context: TrainContext) -> Base:
    """Let the expert demonstrate and a new policy imitate it; done once for all arms of a seed."""
    spec = base_spec(config)
    with run.shared(config.base_cache / f"seed-{config.seed}", spec) as folder:
        path = folder / "base.json"
        if not _is_made(path):
            result = _imitate(run, config, context, folder)
            if run.is_main:
                write_sealed(path, {"value": plain(result)})
        wait_for(path)
        return Base(folder, record_from_json(BaseResult, read_part(path)))


def base_spec(config: WebRlSettings) -> dict[str, Any]:
    """Everything that the first policy depends on."""
    spec = {name: value for name, value in dump(config).items() if name in BASE_FIELDS}
    learner = config.learner
    rate = learner.imitation_learning_rate or learner.learning_rate
    spec["rates"] = [rate, learner.batch, learner.doubt, learner.max_norm]
    return spec


def _is_made(result: Path) -> bool:
    """Whether a shared folder is made, and as it was written; else it is made again."""
    if not result.exists():
        return False
    damaged = damaged_files(result.parent)
    if damaged:
        logger.warning("%s: %s is damaged: made again", result.parent, ", ".join(damaged))
    return not damaged


def _imitate(
    run: RunFolder, config: WebRlSettings, context: TrainContext, folder: Path
) -> BaseResult:
    """Rank 0 plays, all ranks train."""
    demonstrations, env_steps = _demonstrate(run, config, context, folder / DEMONSTRATIONS_FILE)
    steps = [step for attempt in demonstrations for step in train_steps(attempt, 1.0)]
    saved = folder / f"actor{context.agent.suffix}"
    rng = stream(TASK_STREAM, config.seed, 0, DEMONSTRATION)
    with context.agent.actor(None) as actor:
        losses = imitate(actor, steps, config.imitation_updates, config.learner, rng, run.progress)
        actor.save(saved)
    validation = None
    if run.is_main:
        validation = context.evaluate(
            saved, config.all_families, config.validation, Split.VALIDATION, run.progress
        )
    return BaseResult(
        demonstrations=len(demonstrations),
        steps=len(steps),
        env_steps=env_steps,
        loss=losses[-1],
        validation=validation,
    )


def _demonstrate(
    run: RunFolder, config: WebRlSettings, context: TrainContext, path: Path
) -> tuple[list[Attempt], int]:
    """Successes of the expert, or of a folder of traces, and the env steps; rank 0 makes them."""
    env_steps = 0
    families = config.demonstrated or tuple(config.families)
    tasks = [
        PracticeTask(family=name, seed=instance_seed(config.seed, index))
        for name in families
        for index in range(config.demonstrations)
    ]
    if run.is_main:
        if config.traces:
            traces = read_traces(Path(config.traces))
            played = [attempt_of(trace, families[0], n) for n, trace in enumerate(traces)]
        else:
            expert = expert_writes if context.agent.writes else expert_actions
            played = context.rollout.play(expert, tasks, split=Split.TRAIN)
            env_steps = count_steps(played)
        won = [attempt for attempt in played if attempt.success]
        write_attempts(path, context.agent.in_own_words(won))
    wait_for(path)
    attempts = read_attempts(path)
    if not attempts:
        raise ConfigError(
            "demonstrations",
            "none of them succeeded: there is nothing to imitate",
            "check the world's expert, or the scores of the traces",
        )
    return attempts, env_steps


# --- who judges attempts --------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeJudge:
    """A fitted outcome model in its folder."""

    model: OutcomeModel
    folder: Path
    result: OutcomeModelResult

    def success_probs(
        self, context: TrainContext, attempts: Sequence[Attempt]
    ) -> list[float | None]:
        return self.model.success_probs(context.agent, self.folder, attempts)


def judge_spec(config: WebRlSettings) -> dict[str, Any]:
    """Everything that the outcome model depends on: it judges the first policy's attempts."""
    return {"outcome_model": dump(config.outcome_model), "base": base_spec(config)}


def make_judge(
    run: RunFolder, config: WebRlSettings, context: TrainContext, base: Base
) -> OutcomeJudge | None:
    """Fit an outcome model to the first policy's attempts, once; None if the world judges."""
    if config.outcome_judge == "world":
        return None
    model = OutcomeModel(config.outcome_model)
    with run.shared(config.base_cache / f"judge-{config.seed}", judge_spec(config)) as folder:
        path = folder / "judge.json"
        if not _is_made(path):
            result = model.fit(
                context.agent,
                base.folder / f"actor{context.agent.suffix}",
                tuple(config.families),
                folder,
                seed=config.seed,
                patience=config.patience,
                progress=run.progress,
            )
            if run.is_main:
                write_sealed(path, {"value": plain(result)})
        wait_for(path)
        return OutcomeJudge(model, folder, record_from_json(OutcomeModelResult, read_part(path)))
