"""The curriculum: propose tasks from failures, admit those that are neither hopeless nor mastered.

A family whose success stays at zero rests, because admission by difficulty alone would keep drawing
what cannot be learnt. Every decision is counted by family.
    curriculum = Curriculum.Config().build()
    proposals = curriculum.propose(record, count=200, rng=rng)
    phase_tasks = curriculum.admit(proposals, values, record, rollout, count=200)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from terrella.core.bounds import check_least, check_share
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split
from terrella.data.attempts import PracticeTask, count_steps
from terrella.pipelines.webrl.instructions import InstructionWriter, PhaseInstructions
from terrella.pipelines.webrl.proposers import (
    MAX_SEED,
    AskModel,
    PracticeRecord,
    TaskProposer,
    Vary,
)
from terrella.rollout.batch_rollout import BatchRollout, expert_actions

NO_START = -1.0
"""Stands for the critic's value of a task that the world could not be reset to."""


@dataclass(frozen=True, kw_only=True)
class CurriculumLog:
    """What happened to every proposal of a phase; counts are by family."""

    proposed: dict[str, int]
    tried_before: int
    too_easy: dict[str, int]
    too_hard: dict[str, int]
    admitted: dict[str, int]
    outside_band: int
    """Admitted tasks outside the band, because the band had too few."""
    mean_value: float | None
    """The critic's mean value of the admitted tasks; None without a critic."""
    resting: list[str]
    infeasible: int
    checked_steps: int
    """Env steps that the expert used to check tasks."""
    no_start: int = 0
    """Proposals that were dropped because the world could not be reset to them."""
    written: dict[str, int] | None = None
    """New instructions by what became of them, and how many were admitted; None without."""


@dataclass(frozen=True, kw_only=True)
class PhaseTasks:
    """The tasks of a phase, and how they were chosen; a fixed curriculum has no log."""

    tasks: list[PracticeTask]
    log: CurriculumLog | None = None


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """New tasks from the proposed families; seeds that were tried before are dropped."""

    families: list[str]
    tasks: list[PracticeTask]
    tried_before: int


@dataclass(frozen=True)
class ValuedTask:
    """A task with the critic's value of its first state."""

    task: PracticeTask
    value: float


class Curriculum(Configurable):
    """Chooses the tasks of a phase."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        proposer: Vary.Config | AskModel.Config = field(default_factory=Vary.Config)
        instructions: InstructionWriter.Config = field(default_factory=InstructionWriter.Config)
        """New instructions, for worlds that take tasks in words."""
        low: float = 0.05
        high: float = 0.75
        """A task is admitted if the critic's value of its first state lies between these."""
        quota: float = 0.34
        """No family gets a larger share of a phase while others can fill it."""
        rest_below: float = 0.05
        rest_quota: float = 0.05
        """A family below `rest_below` in its last two phases gets only this share."""
        tries: int = 4
        """Proposals per wanted task. With 1 all of them are admitted, and the band does nothing."""
        check: bool = False
        """Let the world's expert solve each task first and drop what it cannot; uses env steps."""

        def __post_init__(self) -> None:
            """Refuse a band without values, and shares that are none."""
            check_share(self, "low", "high", "quota", "rest_below", "rest_quota")
            check_least(self, tries=1)
            if self.low > self.high:
                raise ConfigError(
                    "practice.low",
                    f"is {self.low:g}, above practice.high={self.high:g}: no task is admitted",
                    "set low below high",
                )

    config: Config

    def propose(
        self,
        record: PracticeRecord,
        *,
        count: int,
        rng: np.random.Generator,
        written: PhaseInstructions | None = None,
    ) -> Proposals:
        """Propose `tries` tasks for each of the `count` that are wanted, written ones first."""
        proposer: TaskProposer = self.config.proposer.build()
        first = [] if written is None else written.tasks
        wanted = max(0, count * self.config.tries - len(first))
        families = proposer.families(record, wanted, rng)
        tasks = [PracticeTask(family=name, seed=int(rng.integers(MAX_SEED))) for name in families]
        tasks = [*first, *tasks]
        families = [task.family for task in tasks]
        new = [task for task in tasks if task.name not in record.tried]
        return Proposals(families=families, tasks=new, tried_before=len(tasks) - len(new))

    def admit(
        self,
        proposals: Proposals,
        values: Sequence[float] | None,
        record: PracticeRecord,
        rollout: BatchRollout,
        *,
        count: int,
        written: PhaseInstructions | None = None,
    ) -> PhaseTasks:
        """The `count` best proposals. `values` are the critic's; None admits all.

        A task that the world could not be reset to (`NO_START`) is never admitted.
        """
        low, high = self.config.low, self.config.high
        known_values = [(low + high) / 2] * len(proposals.tasks) if values is None else values
        pairs = map(ValuedTask, proposals.tasks, known_values)
        valued = [item for item in pairs if item.value != NO_START]
        no_start = len(proposals.tasks) - len(valued)
        if no_start and not valued:
            raise _no_start_at_all(no_start)
        inside = [item for item in valued if low <= item.value <= high]
        outside = [item for item in valued if not low <= item.value <= high]
        outside.sort(key=lambda item: max(low - item.value, item.value - high))
        chosen = self._fill([*inside, *outside], record, count)
        feasible, checked_steps = self._feasible(rollout, chosen)
        mean_value = None
        if feasible and values is not None:
            mean_value = float(np.mean([item.value for item in feasible]))
        log = CurriculumLog(
            proposed=Counter(proposals.families),
            tried_before=proposals.tried_before,
            too_easy=_by_family(item for item in outside if item.value > high),
            too_hard=_by_family(item for item in outside if item.value < low),
            admitted=_by_family(feasible),
            infeasible=len(chosen) - len(feasible),
            checked_steps=checked_steps,
            no_start=no_start,
            outside_band=sum(not low <= item.value <= high for item in feasible),
            mean_value=mean_value,
            resting=[name for name in record.families if self.rests(record, name)],
            written=_fates(written, feasible),
        )
        return PhaseTasks(tasks=[item.task for item in feasible], log=log)

    def rests(self, record: PracticeRecord, family: str) -> bool:
        """Whether a family made no progress in its last two phases."""
        now, before = record.latest(family), record.latest(family, back=1)
        return now is not None and before is not None and max(now, before) < self.config.rest_below

    def _fill(
        self, ranked: Sequence[ValuedTask], record: PracticeRecord, count: int
    ) -> list[ValuedTask]:
        """The first tasks within the quotas; if they are too few, the next ones beyond them."""
        resting = {name: self.rests(record, name) for name in record.families}
        used: Counter[str] = Counter()
        chosen: list[ValuedTask] = []
        left: list[ValuedTask] = []
        for item in ranked:
            family = item.task.family
            quota = self.config.rest_quota if resting[family] else self.config.quota
            if len(chosen) < count and used[family] < max(1, quota * count):
                used[family] += 1
                chosen.append(item)
            else:
                left.append(item)
        return [*chosen, *left[: count - len(chosen)]]

    def _feasible(
        self, rollout: BatchRollout, chosen: list[ValuedTask]
    ) -> tuple[list[ValuedTask], int]:
        """The tasks that the expert solves, and the env steps that it used."""
        if not self.config.check:
            return chosen, 0
        attempts = rollout.play(expert_actions, [item.task for item in chosen], split=Split.TRAIN)
        solved = [item for item, attempt in zip(chosen, attempts, strict=True) if attempt.success]
        return solved, count_steps(attempts)


def _no_start_at_all(count: int) -> WorldError:
    return WorldError(
        "practice",
        f"cannot be reset to any of {count} proposed tasks: the log says why",
        "mend the world, delete proposed.json and values.json of the last phase, and run again",
    )


def _by_family(items: Iterable[ValuedTask]) -> dict[str, int]:
    return Counter(item.task.family for item in items)


def _fates(
    written: PhaseInstructions | None, admitted: Sequence[ValuedTask]
) -> dict[str, int] | None:
    if written is None:
        return None
    return {**written.fates, "admitted": sum(bool(item.task.written) for item in admitted)}


def fixed_tasks(
    families: Sequence[str], count: int, rng: np.random.Generator
) -> list[PracticeTask]:
    """Tasks without a curriculum: any family, any instance."""
    return [
        PracticeTask(
            family=families[int(rng.integers(len(families)))], seed=int(rng.integers(MAX_SEED))
        )
        for _ in range(count)
    ]
