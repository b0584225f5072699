"""What to practise next: propose from failures, and admit what the critic finds neither hopeless nor known.

A family of tasks is a world config by name; a task is a family and an instance. `Vary` proposes other instances of what
failed, and of the families beside it; `AskModel` asks a language model behind an endpoint. A family that stays at zero
rests, because a band of difficulty alone keeps drawing what cannot be learnt. Every decision is counted by family.
    tasks, log = Curriculum.Config().build().choose(players, learner, critic, record, count=200, rng=rng)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.data.attempts import Attempt, PracticeTask
from terrella.engines.pointer.learn import Learner, Net
from terrella.engines.pointer.play import Players, expert_chooser
from terrella.policies.endpoint import Endpoint

MOST_SEED = 2**31


@dataclass(slots=True)
class Record:
    """What practice has shown so far: the curriculum is a function of this and a random stream."""

    families: tuple[str, ...]
    failed: list[PracticeTask] = field(default_factory=list)
    """Of the last phase."""
    had: set[str] = field(default_factory=set)
    rates: list[dict[str, float]] = field(default_factory=list)
    """Share of successes by family, phase by phase; families that were not tried are absent."""

    def add(self, attempts: Sequence[Attempt], outcomes: Sequence[float | None]) -> None:
        """A phase as it was judged; what was not judged leaves no trace but that it was had."""
        self.had |= {attempt.task.name for attempt in attempts}
        judged = [(a.task, o) for a, o in zip(attempts, outcomes, strict=True) if o is not None]
        self.failed = [task for task, outcome in judged if outcome < 0.5]
        groups: dict[str, list[float]] = {}
        for task, outcome in judged:
            groups.setdefault(task.family, []).append(outcome)
        self.rates.append({family: float(np.mean(won)) for family, won in groups.items()})

    def latest(self, family: str, back: int = 0) -> float | None:
        """The last (or an earlier) known rate of a family."""
        known = [rates[family] for rates in self.rates if family in rates]
        return known[-1 - back] if len(known) > back else None


class Proposer(Protocol):
    """Names families to draw new tasks from."""

    def families(self, record: Record, count: int, rng: np.random.Generator) -> list[str]:
        """So many, in order of proposal; repeats are meant."""
        ...


class Vary(Configurable):
    """Other instances of what failed, and of the families beside it: runs without any language model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How far it strays."""

        beside: int = 1
        """Families are tried up to this many places up or down the list; 0 where their order means nothing."""
        anything: float = 0.1
        """Share of proposals from any family at all, so that none is forgotten."""

    config: Config

    def families(self, record: Record, count: int, rng: np.random.Generator) -> list[str]:
        """A failed task's family or a neighbour of it, each failure as likely as any other."""
        names, places = record.families, {name: place for place, name in enumerate(record.families)}
        found = []
        for _ in range(count):
            if not record.failed or rng.random() < self.config.anything:
                found.append(names[int(rng.integers(len(names)))])
                continue
            place = places[record.failed[int(rng.integers(len(record.failed)))].family]
            place += int(rng.integers(-self.config.beside, self.config.beside + 1))
            found.append(names[min(max(place, 0), len(names) - 1)])
        return found


ASKED = (
    "You choose practice tasks for an agent. These tasks failed:\n{failed}\nThese kinds of tasks exist:\n{known}\n"
    "Choose {count} kinds to practise next, similar in difficulty and more diverse. Write each between backticks."
)


class AskModel(Configurable):
    """A language model chooses what to practise, as in the paper; what it names that does not exist is dropped."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Which model; how many failures it is shown."""

        endpoint: Endpoint.Config = field(default_factory=Endpoint.Config)
        shown: int = 10
        turns: int = 2

    config: Config

    def families(self, record: Record, count: int, rng: np.random.Generator) -> list[str]:
        """What it named, repeated until there are enough; an answer without a known name is an error."""
        endpoint, named = self.config.endpoint.build(), list[str]()
        for _ in range(self.config.turns):
            picks = rng.permutation(len(record.failed))[: self.config.shown]
            failed = "\n".join(f"- `{record.failed[pick].family}`" for pick in picks)
            asked = ASKED.format(failed=failed, known="\n".join(f"- `{n}`" for n in record.families), count=count)
            reply = endpoint.complete([{"role": "user", "content": asked}], int(rng.integers(MOST_SEED)))
            named += [name for name in re.findall(r"`([^`\n]{1,200})`", reply) if name in record.families]
        if not named:
            raise ConfigError("proposer", f"{self.config.endpoint.model} named no known kind of task", "use Vary")
        return [named[index % len(named)] for index in range(count)]


class Curriculum(Configurable):
    """Chooses a phase's tasks."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The band, the quotas, who proposes."""

        proposer: Vary.Config | AskModel.Config = field(default_factory=Vary.Config)
        low: float = 0.05
        high: float = 0.75
        """The critic's value of a task's beginning must lie here: one rule, the same value as the actor's."""
        quota: float = 0.34
        """No family gets a larger share of a phase, while others can fill it."""
        rest_below: float = 0.05
        rest_quota: float = 0.05
        """A family that was below the first in its last two phases rests: it gets the second, to see if it wakes."""
        tries: int = 4
        """Proposals per wanted task."""
        check: bool = False
        """Have the world's teacher solve each task first; what it cannot do is not practised. Costs real steps."""

    config: Config

    def choose(
        self, players: Players, learner: Learner, critic: Net | None, record: Record, *, count: int,
        rng: np.random.Generator,
    ) -> tuple[list[PracticeTask], dict[str, Any]]:  # fmt: skip
        """Tasks to practise, and what became of every proposal. Without a critic all are admitted."""
        wanted = self.config.proposer.build().families(record, count * self.config.tries, rng)
        proposed = [PracticeTask(family=name, seed=int(rng.integers(MOST_SEED))) for name in wanted]
        fresh = [task for task in proposed if task.name not in record.had]
        values = self._values(players, learner, critic, fresh)
        low, high = self.config.low, self.config.high
        inside = [critic is None or low <= value <= high for value in values]
        fine = [(task, value) for task, value, ok in zip(fresh, values, inside, strict=True) if ok]
        near = [(task, value) for task, value, ok in zip(fresh, values, inside, strict=True) if not ok]
        near.sort(key=lambda pair: max(low - pair[1], pair[1] - high))
        chosen = self._fill(fine, near, record, count)
        chosen, infeasible, checked = self._feasible(players, chosen)
        log = {
            "proposed": Counter(wanted), "had_before": len(proposed) - len(fresh),
            "too_easy": Counter(t.family for t, v in zip(fresh, values, strict=True) if critic and v > high),
            "too_hard": Counter(t.family for t, v in zip(fresh, values, strict=True) if critic and v < low),
            "admitted": Counter(task.family for task, _ in chosen), "infeasible": infeasible, "checked_steps": checked,
            "outside_band": sum(critic is not None and not low <= value <= high for _, value in chosen),
            "mean_value": float(np.mean([value for _, value in chosen])) if chosen and critic else None,
            "resting": [name for name in record.families if self.rests(record, name)],
        }  # fmt: skip
        return [task for task, _ in chosen], log

    def _values(
        self, players: Players, learner: Learner, critic: Net | None, tasks: Sequence[PracticeTask]
    ) -> list[float]:
        if critic is None:
            return [0.0] * len(tasks)
        sights = players.first_sights(tasks, Split.TRAIN)
        known = iter(learner.values(critic, [sight[0] for sight in sights if sight is not None]))
        return [next(known) if sight is not None else -1.0 for sight in sights]

    def rests(self, record: Record, family: str) -> bool:
        """No progress: at the bottom twice in a row."""
        now, before = record.latest(family), record.latest(family, back=1)
        return now is not None and before is not None and max(now, before) < self.config.rest_below

    def _fill(
        self, fine: Sequence[tuple[PracticeTask, float]], near: Sequence[tuple[PracticeTask, float]], record: Record,
        count: int,
    ) -> list[tuple[PracticeTask, float]]:  # fmt: skip
        """First what lies in the band, then what lies nearest to it; within quotas, then (if short) beyond them."""
        resting = {name: self.rests(record, name) for name in record.families}
        used: Counter[str] = Counter()
        chosen, left = list[tuple[PracticeTask, float]](), list[tuple[PracticeTask, float]]()
        for task, value in [*fine, *near]:
            quota = self.config.rest_quota if resting[task.family] else self.config.quota
            if len(chosen) < count and used[task.family] < max(1, quota * count):
                used[task.family] += 1
                chosen.append((task, value))
            else:
                left.append((task, value))
        return [*chosen, *left[: count - len(chosen)]]

    def _feasible(
        self, players: Players, chosen: list[tuple[PracticeTask, float]]
    ) -> tuple[list[tuple[PracticeTask, float]], int, int]:
        if not self.config.check:
            return chosen, 0, 0
        tried = players.play(expert_chooser, [task for task, _ in chosen], split=Split.TRAIN)
        kept = [pair for pair, attempt in zip(chosen, tried, strict=True) if attempt.success]
        return kept, len(chosen) - len(kept), sum(len(attempt.choices) for attempt in tried)


def fixed_tasks(families: Sequence[str], count: int, rng: np.random.Generator) -> list[PracticeTask]:
    """No curriculum: any family, any instance."""
    return [PracticeTask(family=families[int(rng.integers(len(families)))], seed=int(rng.integers(MOST_SEED)))
            for _ in range(count)]  # fmt: skip


def curriculum_table(logs: Sequence[Mapping[str, Any]], families: Sequence[str]) -> str:
    """Admitted tasks by family and phase as Markdown: how the curriculum moved."""
    share: Callable[[Mapping[str, Any], str], str] = lambda log, name: str(log["admitted"].get(name, 0))  # noqa: E731
    head = f"| phase | {' | '.join(families)} | mean value | resting |\n|{'---|' * (len(families) + 3)}\n"
    rows = [
        f"| {n + 1} | {' | '.join(share(log, name) for name in families)} | "
        f"{'' if log['mean_value'] is None else format(log['mean_value'], '.2f')} | {', '.join(log['resting'])} |\n"
        for n, log in enumerate(logs)
    ]
    return head + "".join(rows)
