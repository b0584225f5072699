"""Traces of web agents in WebRL's format as episodes: pages, replies and the score.

A page is a text, a reply is an action, and the task is in the info of each step. The page after the
last reply was not recorded: it is the last page again.
    episode = trace_episode(trace, source="webrl/rollouts", number=0)
"""

from __future__ import annotations

from terrella.core.errors import StoreError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Episode, Status, Stop, Text, Transition, Verdict
from terrella.data.webrl_formats import Trace

UNFINISHED = "the trace has no score: it was not finished"


def trace_episode(trace: Trace, *, source: str, number: int) -> Episode:
    """Convert a trace. Traces of one task are one instance, so that they share their split."""
    if not trace.steps:
        raise StoreError(f"{source}, trace {trace.task_id[:80]}", "has no step", "leave it out")
    if trace.score > 1.0:
        raise StoreError(
            f"{source}, trace {trace.task_id[:80]}", f"has the score {trace.score}, not 0 to 1"
        )
    instance = instance_id(["webrl", trace.steps[0].target])
    return Episode(
        world=source,
        policy="recorded",
        instance=instance,
        split=split_of(instance),
        seed=number,
        noise_seed=0,
        first=Text(trace.steps[0].html),
        transitions=tuple(_transition(trace, index) for index in range(len(trace.steps))),
        stop=Stop.TERMINATED if trace.score >= 0 else Stop.OUT_OF_STEPS,
        outcome=(
            Verdict.of(trace.score)
            if trace.score >= 0
            else Verdict.failed(Status.NO_OUTCOME, UNFINISHED)
        ),
    )


def _transition(trace: Trace, index: int) -> Transition:
    step = trace.steps[index]
    is_last = index + 1 == len(trace.steps)
    after = step if is_last else trace.steps[index + 1]
    ended = is_last and trace.score >= 0
    return Transition(
        observation=Text(step.html),
        action=step.response,
        next_observation=Text(after.html),
        reward=trace.score if ended else 0.0,
        terminated=ended,
        truncated=is_last and not ended,
        info={
            "valid": True,
            "effective": step.html != after.html,
            "success": ended and trace.score == 1.0,
            "task": step.target,
        },
    )
