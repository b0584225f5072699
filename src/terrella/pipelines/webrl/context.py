"""What every phase of WebRL uses, and what the first phase starts from.

The start is a policy that has imitated a few demonstrations and, if wanted, an outcome model. Both
are shared by the arms of a seed.
    with open_context(config) as context:
        base = make_base(run, config, context)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terrella.core.config import dump, record_from_json
from terrella.core.instances import plain
from terrella.core.integrity import damaged_files, write_sealed
from terrella.core.run_folder import RunFolder, read_part
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.types import Split
from terrella.data.attempts import Attempt, PracticeTask, write_attempts
from terrella.engines.pointer.batch_rollout import BatchRollout, expert_actions
from terrella.engines.pointer.records import train_steps
from terrella.pipelines.webrl.metrics import SuccessScores, success_scores
from terrella.pipelines.webrl.outcome_model import OutcomeModel, OutcomeModelResult
from terrella.pipelines.webrl.settings import WebRlSettings

if TYPE_CHECKING:
    from terrella.engines.pointer.learner import Learner, Net

logger = logging.getLogger("terrella")

DEMONSTRATION, PRACTICE, REPLAY, CRITIC, ACTOR = range(5)
"""What a random stream of a phase is used for."""
ACTOR_FILE, DEMONSTRATIONS_FILE = "actor.safetensors", "demonstrations.jsonl"
BASE_FIELDS = (
    "families",
    "unseen",
    "width",
    "layers",
    "demonstrated",
    "demonstrations",
    "imitation_updates",
    "seed",
    "validation",
    "read_instruction",
)
"""Settings that the first policy depends on."""


@dataclass(frozen=True, slots=True)
class TrainContext:
    """The worlds and the learner of a run."""

    rollout: BatchRollout
    learner: Learner

    def evaluate(
        self, actor: Net, families: Sequence[str], count: int, split: Split
    ) -> SuccessScores | None:
        """Greedy play of `count` instances of each family; None if there are none to play."""
        tasks = [PracticeTask(family=name, seed=seed) for name in families for seed in range(count)]
        if not tasks:
            return None
        sampler = self.learner.action_sampler(actor, greedy=True)
        return success_scores(self.rollout.play(sampler, tasks, split=split))


@contextlib.contextmanager
def open_context(config: WebRlSettings) -> Iterator[TrainContext]:
    """Build the learner and the worlds; the worlds are closed at the end."""
    from terrella.engines.pointer.learner import Learner
    from terrella.models.pointer import PointerSizes

    sizes = PointerSizes(width=config.width, layers=config.layers)
    learner = Learner(config.learner, sizes, seed=config.seed)
    with BatchRollout(
        {**config.families, **config.unseen},
        slots=config.slots,
        read_instruction=config.read_instruction,
    ) as rollout:
        yield TrainContext(rollout, learner)


# --- the first policy -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BaseResult:
    """The policy that has imitated the demonstrations."""

    demonstrations: int
    steps: int
    loss: float
    validation: SuccessScores | None


@dataclass(frozen=True)
class Base:
    """The folder of the first policy, and how it was made."""

    folder: Path
    result: BaseResult


def make_base(run: RunFolder, config: WebRlSettings, context: TrainContext) -> Base:
    """Let the expert demonstrate and a new policy imitate it; done once for all arms of a seed."""
    spec = {name: value for name, value in dump(config).items() if name in BASE_FIELDS}
    learner = config.learner
    spec["rates"] = [learner.learning_rate, learner.batch, learner.doubt]
    with run.shared(config.base_cache / f"seed-{config.seed}", spec) as folder:
        path = folder / "base.json"
        if not _is_made(path):
            write_sealed(path, {"value": plain(_imitate(config, context, folder))})
        return Base(folder, record_from_json(BaseResult, read_part(path)))


def _is_made(result: Path) -> bool:
    """Whether a shared folder is made, and as it was written; else it is made again."""
    if not result.exists():
        return False
    damaged = damaged_files(result.parent)
    if damaged:
        logger.warning("%s: %s is damaged: made again", result.parent, ", ".join(damaged))
    return not damaged


def _imitate(config: WebRlSettings, context: TrainContext, folder: Path) -> BaseResult:
    families = config.demonstrated or tuple(config.families)
    tasks = [
        PracticeTask(family=name, seed=seed)
        for name in families
        for seed in range(config.demonstrations)
    ]
    played = context.rollout.play(expert_actions, tasks, split=Split.TRAIN)
    demonstrations = [attempt for attempt in played if attempt.success]
    write_attempts(folder / DEMONSTRATIONS_FILE, demonstrations)
    steps = [step for attempt in demonstrations for step in train_steps(attempt, 1.0)]
    actor = context.learner.net("actor")
    rng = stream(TASK_STREAM, config.seed, 0, DEMONSTRATION)
    losses = context.learner.imitate(actor, steps, config.imitation_updates, rng)
    actor.save(folder / ACTOR_FILE)
    return BaseResult(
        demonstrations=len(demonstrations),
        steps=len(steps),
        loss=losses[-1],
        validation=context.evaluate(
            actor, config.all_families, config.validation, Split.VALIDATION
        ),
    )


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
        return self.model.success_probs(self.folder, context.learner.sizes, attempts)


def make_judge(
    run: RunFolder, config: WebRlSettings, context: TrainContext, base: Base
) -> OutcomeJudge | None:
    """Fit an outcome model to the first policy's attempts, once; None if the world judges."""
    if config.outcome_judge == "world":
        return None
    model = OutcomeModel(config.outcome_model)
    spec: dict[str, Any] = {"outcome_model": dump(config.outcome_model), "base": base.folder.name}
    with run.shared(config.base_cache / f"judge-{config.seed}", spec) as folder:
        path = folder / "judge.json"
        if not _is_made(path):
            learner = context.learner
            actor = learner.net("actor", base.folder / ACTOR_FILE)
            result = model.fit(
                context.rollout,
                learner.action_sampler(actor),
                learner.sizes,
                tuple(config.families),
                folder,
                seed=config.seed,
            )
            write_sealed(path, {"value": plain(result)})
        return OutcomeJudge(model, folder, record_from_json(OutcomeModelResult, read_part(path)))
