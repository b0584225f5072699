"""Proposers of practice tasks: other instances of what failed, or what a language model suggests.

A family of tasks is a world config by name; a task is a family and an instance.
    families = Vary.Config().build().families(record, count=100, rng=rng)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.data.attempts import Attempt, count_steps
from terrella.data.webrl_formats import instruction_of
from terrella.policies.endpoint import Endpoint

MAX_SEED = 2**31


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that failed: its family, and what the agent was asked to do."""

    family: str
    instruction: str
    written: str = ""
    """The world's task, if a curriculum wrote it (`core/written_tasks.py`)."""


@dataclass(slots=True)
class PracticeRecord:
    """The phases so far: the curriculum is a function of this and a random stream."""

    families: tuple[str, ...]
    failed: list[FailedTask] = field(default_factory=list[FailedTask])
    """Tasks that failed in the last phase."""
    tried: set[str] = field(default_factory=set[str])
    """Names of all tasks so far."""
    instructions: list[str] = field(default_factory=list[str])
    """What the agent was asked so far, without repetitions."""
    rates: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Fraction of successes by family, for each phase; families that were not tried are absent."""
    env_steps: int = 0

    def add(self, attempts: Sequence[Attempt], outcomes: Sequence[float | None]) -> None:
        """Add a phase. An attempt without an outcome counts as tried and as nothing else."""
        self.tried |= {attempt.task.name for attempt in attempts}
        self.env_steps += count_steps(attempts)
        asked = [*self.instructions, *map(instruction_of, attempts)]
        self.instructions = list(dict.fromkeys(asked))
        pairs = zip(attempts, outcomes, strict=True)
        judged = [(attempt, outcome) for attempt, outcome in pairs if outcome is not None]
        self.failed = [
            FailedTask(attempt.task.family, instruction_of(attempt), attempt.task.written)
            for attempt, outcome in judged
            if outcome < 0.5
        ]
        by_family: dict[str, list[float]] = {}
        for attempt, outcome in judged:
            by_family.setdefault(attempt.task.family, []).append(outcome)
        self.rates.append({family: float(np.mean(values)) for family, values in by_family.items()})

    def latest(self, family: str, back: int = 0) -> float | None:
        """The last known rate of a family, or the one `back` phases before it."""
        known = [rates[family] for rates in self.rates if family in rates]
        return known[-1 - back] if len(known) > back else None


class TaskProposer(Protocol):
    """Names the families that new tasks are drawn from."""

    def families(self, record: PracticeRecord, count: int, rng: np.random.Generator) -> list[str]:
        """`count` families in order of proposal; a family may be named more than once."""
        ...


class Vary(Configurable):
    """Other instances of what failed, and of the neighbouring families. Needs no language model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        beside: int = 1
        """How far up or down the list of families to go; 0 where their order means nothing."""
        anything: float = 0.1
        """Share of proposals from any family at all, so that none is forgotten."""

    config: Config

    def families(self, record: PracticeRecord, count: int, rng: np.random.Generator) -> list[str]:
        """The family of a failed task or a neighbour of it; every failure is equally likely."""
        names = record.families
        positions = {name: position for position, name in enumerate(names)}
        proposed = []
        for _ in range(count):
            if not record.failed or rng.random() < self.config.anything:
                proposed.append(names[int(rng.integers(len(names)))])
                continue
            failed = record.failed[int(rng.integers(len(record.failed)))]
            offset = int(rng.integers(-self.config.beside, self.config.beside + 1))
            position = positions[failed.family] + offset
            proposed.append(names[min(max(position, 0), len(names) - 1)])
        return proposed


PROMPT = """You choose practice tasks for an agent. These tasks failed:
{failed}
These kinds of tasks exist:
{known}
Choose {count} kinds to practise next, similar in difficulty and more diverse. \
Write each between backticks."""


class AskModel(Configurable):
    """A language model proposes families, as in the paper; names that do not exist are dropped."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        endpoint: Endpoint.Config = field(default_factory=Endpoint.Config)
        shown: int = 10
        """Failed tasks in one prompt."""
        turns: int = 2

    config: Config

    def families(self, record: PracticeRecord, count: int, rng: np.random.Generator) -> list[str]:
        """The named families, repeated until there are enough; no known name is an error."""
        endpoint: Endpoint = self.config.endpoint.build()
        known = "\n".join(f"- `{name}`" for name in record.families)
        named: list[str] = []
        for _ in range(self.config.turns):
            picks = rng.permutation(len(record.failed))[: self.config.shown]
            failed = "\n".join(f"- `{record.failed[pick].family}`" for pick in picks)
            prompt = PROMPT.format(failed=failed, known=known, count=count)
            messages = [{"role": "user", "content": prompt}]
            reply = endpoint.complete(messages, int(rng.integers(MAX_SEED)))
            candidates = re.findall(r"`([^`\n]{1,200})`", reply)
            named += [name for name in candidates if name in record.families]
        if not named:
            raise ConfigError(
                "proposer",
                f"{self.config.endpoint.model} named no known family of tasks",
                "use another model, or Vary",
            )
        return [named[index % len(named)] for index in range(count)]
