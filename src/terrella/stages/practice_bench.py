"""Where practice is done: players, learner, sizes and seed together; networks, random streams and evaluation from them.

Also what practice begins with: a policy that has imitated the teacher a little, and an outcome model if one judges.
    bench = Bench(players, learner, sizes, seed=0); imitate(bench, tasks, updates=40, folder=folder, glance=...)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from terrella.core.instances import TASK_STREAM, stream
from terrella.core.types import Split
from terrella.data.attempts import PracticeTask, write_attempts
from terrella.data.store import write_atomic
from terrella.engines.pointer.learn import Learner, Net, lessons_of, make_net
from terrella.engines.pointer.play import Players, expert_chooser, policy_chooser
from terrella.models.pointer import Sizes
from terrella.stages.outcome_model import OutcomeModel
from terrella.stages.practice_report import success_figures

DEMONSTRATION, PRACTICE, REPLAY, CRITIC, ACTOR = range(5)
"""What a random stream of a phase is for."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part of practice uses."""

    players: Players
    learner: Learner
    sizes: Sizes
    seed: int

    def net(self, kind: Literal["actor", "critic"], path: Path | None) -> Net:
        """A network as a file holds it, or a new one."""
        rates = self.learner.config
        rate = rates.learning_rate if kind == "actor" else rates.critic_learning_rate
        return make_net(kind, self.sizes, learning_rate=rate, seed=self.seed, path=path)

    def rng(self, number: int, use: int) -> np.random.Generator:
        """The random stream of one part of one phase."""
        return stream(TASK_STREAM, self.seed, number, use)

    def success(self, actor: Net, names: Sequence[str], count: int, split: Split) -> dict[str, Any]:
        """The best guess at each step, on held-out instances; empty when there are none to play."""
        tasks = [PracticeTask(family=name, seed=seed) for name in names for seed in range(count)]
        choose = policy_chooser(actor, self.learner.reader, greedy=True)
        return success_figures(self.players.play(choose, tasks, split=split)) if tasks else {}


def imitate(
    bench: Bench, tasks: Sequence[PracticeTask], *, updates: int, folder: Path, glance: Callable[[Net], dict[str, Any]]
) -> None:
    """The teacher plays the tasks, a new policy imitates; demonstrations, policy and figures go to the folder."""
    if (folder / "base.json").exists():
        return
    shown = [attempt for attempt in bench.players.play(expert_chooser, tasks, split=Split.TRAIN) if attempt.success]
    write_attempts(folder / "demonstrations.jsonl", shown)
    actor = bench.net("actor", None)
    lessons = [lesson for attempt in shown for lesson in lessons_of(attempt, 1.0)]
    losses = bench.learner.imitate(actor, lessons, updates, bench.rng(0, DEMONSTRATION))
    actor.save(folder / "actor.safetensors")
    figures = {"demonstrations": len(shown), "steps": len(lessons), "loss": losses[-1], **glance(actor)}
    write_atomic(folder / "base.json", json.dumps(figures).encode())


def train_judge(bench: Bench, model: OutcomeModel, actor: Net, families: Sequence[str], folder: Path) -> None:
    """An outcome model from the policy's plays, with the world's verdicts as labels; made once."""
    if not (folder / "judge.json").exists():
        choose = policy_chooser(actor, bench.learner.reader)
        found = model.fit(bench.players, choose, bench.sizes, families, folder, seed=bench.seed)
        write_atomic(folder / "judge.json", json.dumps(found).encode())
