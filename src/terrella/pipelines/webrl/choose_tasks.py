"""The tasks of a phase: proposed from failures, valued by the critic, admitted by its band.

Rank 0 proposes and resets worlds, all ranks value; every part is a file of the phase.
    chosen = choose_tasks(config, phase, record)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import numpy as np

from terrella.core.types import Split
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.webrl.context import PRACTICE, WRITING
from terrella.pipelines.webrl.curriculum import NO_START, Curriculum, PhaseTasks, fixed_tasks
from terrella.pipelines.webrl.instructions import (
    Complete,
    InstructionWriter,
    Models,
    PhaseInstructions,
)
from terrella.pipelines.webrl.phase import Phase
from terrella.pipelines.webrl.proposers import PracticeRecord
from terrella.pipelines.webrl.results import Proposed, Values
from terrella.pipelines.webrl.settings import WebRlSettings
from terrella.policies.endpoint import Endpoint


def choose_tasks(config: WebRlSettings, phase: Phase, record: PracticeRecord) -> PhaseTasks:
    """Choose as many tasks as could be started within the env steps of a phase."""
    count = max(1, config.phase_steps // config.group_size)  # an attempt has at least one step
    if config.curriculum == "fixed":
        rng = phase.rng(PRACTICE)
        return phase.part(
            "tasks",
            PhaseTasks,
            lambda: PhaseTasks(tasks=fixed_tasks(tuple(config.families), count, rng)),
        )
    count = min(count, _expected_count(config, phase))
    curriculum: Curriculum = config.practice.build()
    written = _written(config, phase, record, count)
    proposed = phase.part(
        "proposed", Proposed, lambda: _propose(curriculum, phase, record, count, written)
    )
    values = _values(phase, proposed)
    return phase.part(
        "tasks",
        PhaseTasks,
        lambda: curriculum.admit(
            proposed.proposals,
            values,
            record,
            phase.context.rollout,
            count=count,
            written=written,
        ),
    )


def _written(
    config: WebRlSettings, phase: Phase, record: PracticeRecord, count: int
) -> PhaseInstructions | None:
    """New instructions for their share of the proposals; None if nothing is written."""
    practice = config.practice
    wanted = round(practice.instructions.share * practice.tries * count)
    if not wanted:
        return None
    writer = InstructionWriter(practice.instructions)

    def write() -> PhaseInstructions:
        with _models(practice.instructions, phase) as models:
            return writer.write(
                record,
                phase.context.rollout,
                models,
                count=wanted,
                rng=phase.rng(WRITING),
                judged=config.judges,
            )

    return phase.part("written", PhaseInstructions, write)


@contextlib.contextmanager
def _models(config: InstructionWriter.Config, phase: Phase) -> Iterator[Models]:
    """Yield the models that write and screen instructions; the actor is opened once."""
    with contextlib.ExitStack() as stack:
        actor: Complete | None = None
        if "actor" in (config.writer, config.screen):
            opened = phase.context.agent.writer(
                phase.previous.actor, reply_tokens=config.reply_tokens
            )
            actor = stack.enter_context(opened).complete

        def endpoint(prompt: str, seed: int) -> str:
            made: Endpoint = config.endpoint.build()
            return made.complete([{"role": "user", "content": prompt}], seed)

        def model(name: Literal["templates", "none", "actor", "endpoint"]) -> Complete | None:
            return {"actor": actor, "endpoint": endpoint}.get(name)

        yield Models(write=model(config.writer), screen=model(config.screen))


def _propose(
    curriculum: Curriculum,
    phase: Phase,
    record: PracticeRecord,
    count: int,
    written: PhaseInstructions | None,
) -> Proposed:
    """Proposals; after the first phase also what the critic must see of them."""
    rng = phase.rng(PRACTICE)
    proposals = curriculum.propose(record, count=count, rng=rng, written=written)
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
    """The critic's value of each task's first state; `NO_START` if the world cannot be reset."""
    if phase.number == 1:
        return None

    def value() -> Values:
        shown = [one for one in proposed.inputs if one is not None]
        with phase.context.agent.critic(phase.previous.critic, base=phase.base_actor) as critic:
            values = iter(critic.values(shown))
        return Values(values=[NO_START if one is None else next(values) for one in proposed.inputs])

    return phase.part("values", Values, value, collective=True).values
