"""Calls verifiers. A failure that the reply causes is a zero; any other is masked, with its cause.

Which of the two it is, is found by experiment: after a failure the verifier judges the truth
itself. If it fails there too, the reply is not to blame. If it does not, the reply is judged once
more, so that a passing fault costs nothing; a second failure is the reply's, and scores 0. A policy
can therefore not leave the mean by writing replies that break the verifier.
    verdict = judge(verifier, reply=reply, truth=step.next_observation, before=step.observation)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from terrella.core.protocols import BatchVerifier, Verifier
from terrella.core.types import Observation, Status, Transition, Verdict

logger = logging.getLogger("terrella")
T = TypeVar("T")

UNREADABLE = "the reply did not end, or cannot be read"
MAX_REASON = 300
"""Characters of an exception's message that are kept; it may quote the whole reply."""


def judge(
    verifier: Verifier, *, reply: Observation, truth: Observation, before: Observation
) -> Verdict:
    """The verifier's verdict; 0 if the reply makes it fail, masked if it fails on the truth too."""
    return find_cause(partial(_verify, verifier, truth, before), reply, control=truth)


def attempt(
    verifier: Verifier, *, reply: Observation, truth: Observation, before: Observation
) -> Verdict:
    """The verifier's verdict; masked if it raises, whatever the cause. For tests of verifiers."""
    return _verify(verifier, truth, before, reply)


def find_cause(verdict_on: Callable[[T], Verdict], reply: T, *, control: T) -> Verdict:
    """The verdict on a reply; 0 if it fails on the reply alone, and not on the `control`.

    `verdict_on` reports its own failures as masked verdicts (`error` or `timeout`).
    """
    first = verdict_on(reply)
    if not _has_failed(first) or _has_failed(verdict_on(control)):
        return first
    second = verdict_on(reply)
    if not _has_failed(second):
        return second
    reason = f"the reply makes the verifier fail: {second.evidence}"
    logger.warning("scored 0: %s", reason)
    return Verdict.unparsable(reason)


def failure(name: str, error: BaseException) -> Verdict:
    """The masked verdict that names an exception."""
    return Verdict.failed(
        Status.ERROR, f"{name} raised {type(error).__name__}: {error}"[:MAX_REASON]
    )


def _verify(
    verifier: Verifier, truth: Observation, before: Observation, reply: Observation
) -> Verdict:
    name = type(verifier).__name__
    try:
        verdict = verifier.verify(reply, truth, before)
    except Exception as error:  # noqa: BLE001  any exception is counted, and its cause is looked for
        return failure(name, error)
    if not isinstance(verdict, Verdict):
        what = f"{name} returned {type(verdict).__name__}, not a Verdict"
        return Verdict.failed(Status.ERROR, what)
    return verdict


def _has_failed(verdict: Verdict) -> bool:
    return verdict.status in (Status.ERROR, Status.TIMEOUT)


def judge_steps(
    verifier: Verifier, replies: Sequence[Observation | None], steps: Sequence[Transition]
) -> list[Verdict]:
    """A verdict on the prediction of each step; None is a reply that could not be read.

    A batch in which something fails is judged again, reply by reply.
    """
    befores = [step.observation for step in steps]
    if isinstance(verifier, BatchVerifier):
        # The model has seen the first observation only: for it "nothing changes" means that one.
        befores = [steps[0].observation for _ in steps]
        try:
            return verifier.verify_many(replies, [step.next_observation for step in steps], befores)
        except Exception as error:  # noqa: BLE001  as above
            what = failure(type(verifier).__name__, error).evidence
            logger.warning("%s; judging reply by reply", what)
    return [
        Verdict.unparsable(UNREADABLE)
        if reply is None
        else judge(verifier, reply=reply, truth=step.next_observation, before=before)
        for reply, step, before in zip(replies, steps, befores, strict=True)
    ]


def mean_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on predictions in a row: means of values and of the parts that all have.

    One masked masks all.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    masked = next((verdict for verdict in verdicts if verdict.masked), None)
    if masked is not None:
        return Verdict.failed(masked.status, masked.evidence)
    shared = set.intersection(*(set(verdict.parts) for verdict in verdicts))
    parts = {
        name: sum(verdict.parts[name] for verdict in verdicts) / len(verdicts)
        for name in sorted(shared)
    }
    value = sum(verdict.value or 0.0 for verdict in verdicts) / len(verdicts)
    return Verdict(value=min(1.0, value), parts=parts)
