"""The tasks of a phase: proposed from failures, valued by the critic, admitted by its band.

Rank 0 proposes and resets worlds, all ranks value; every part is a file of the phase.
    chosen = choose_tasks(config, phase, lambda: record)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from terrella.core.types import Split
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.webrl.context import PRACTICE
from terrella.pipelines.webrl.curriculum import Curriculum, PhaseTasks, fixed_tasks
from terrella.pipelines.webrl.phase import Phase
from terrella.pipelines.webrl.proposers import PracticeRecord
from terrella.pipelines.webrl.results import Proposed, Values
from terrella.pipelines.webrl.settings import WebRlSettings


def choose_tasks(
    config: WebRlSettings, phase: Phase, make_record: Callable[[], PracticeRecord]
) -> PhaseTasks:
    """As many tasks as could be started within the env steps of a phase."""
    count = max(1, config.phase_steps // config.group_size)  # an attempt has at least one step
    if config.curriculum == "fixed":
        rng = phase.rng(PRACTICE)
        return phase.part(
            "tasks",
            PhaseTasks,
            lambda: PhaseTasks(tasks=fixed_tasks(tuple(config.families), count, rng)),
        )
    count = min(count, _expected_count(config, phase))
    record = make_record()
    curriculum: Curriculum = config.practice.build()
    proposed = phase.part("proposed", Proposed, lambda: _propose(curriculum, phase, record, count))
    values = _values(phase, proposed)
    return phase.part(
        "tasks",
        PhaseTasks,
        lambda: curriculum.admit(
            proposed.proposals, values, record, phase.context.rollout, count=count
        ),
    )


def _propose(curriculum: Curriculum, phase: Phase, record: PracticeRecord, count: int) -> Proposed:
    """Proposals; after the first phase also what the critic must see of them."""
    proposals = curriculum.propose(record, count=count, rng=phase.rng(PRACTICE))
    inputs: list[PolicyInput | None] = []
    if phase.number > 1:
        inputs = phase.context.rollout.first_inputs(proposals.tasks, Split.TRAIN)
    return Proposed(proposals=proposals, inputs=inputs)


def _expected_count(config: WebRlSettings, phase: Phase) -> int:
    """Tasks that the env steps will suffice for, from the length of the last attempts.

    The critic looks at the first state of each proposal, so there should not be too many.
    """
    length = 2.0
    if phase.number > 1:
        lengths = [len(attempt.choices) for attempt in phase.previous.attempts()]
        length = max(1.0, 0.7 * float(np.mean(lengths)))
    return int(config.phase_steps / length / config.group_size) + 1


def _values(phase: Phase, proposed: Proposed) -> list[float] | None:
    """The critic's value of each task's first state; -1 if the world cannot be reset."""
    if phase.number == 1:
        return None

    def value() -> Values:
        shown = [one for one in proposed.inputs if one is not None]
        with phase.context.agent.critic(phase.previous.critic, base=phase.base_actor) as critic:
            values = iter(critic.values(shown))
        return Values(values=[-1.0 if one is None else next(values) for one in proposed.inputs])

    return phase.part("values", Values, value, collective=True).values
