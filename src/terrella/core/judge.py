"""Calls verifiers: an exception becomes a masked verdict that names it, never a zero.

verdict = judge(verifier, reply=Text("..."), truth=step.next_observation, before=step.observation)
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.protocols import BatchVerifier, Verifier
from terrella.core.types import Observation, Status, Transition, Verdict

UNREADABLE = "the reply did not end, or cannot be read"


def judge(
    verifier: Verifier, *, reply: Observation, truth: Observation, before: Observation
) -> Verdict:
    """The verifier's verdict; if it raises, a masked one that names the exception."""
    try:
        return verifier.verify(reply, truth, before)
    except Exception as error:  # noqa: BLE001  a bug in a verifier must be counted and masked
        return Verdict.failed(
            Status.ERROR, f"{type(verifier).__name__} raised {type(error).__name__}: {error}"
        )


def judge_steps(
    verifier: Verifier, replies: Sequence[Observation | None], steps: Sequence[Transition]
) -> list[Verdict]:
    """A verdict on the prediction of each step; None is a reply that could not be read."""
    if isinstance(verifier, BatchVerifier):
        try:
            return verifier.verify_many(replies, [step.next_observation for step in steps])
        except Exception as error:  # noqa: BLE001  as above
            what = f"{type(verifier).__name__} raised {type(error).__name__}: {error}"
            return [Verdict.failed(Status.ERROR, what) for _ in steps]
    return [
        Verdict.unparsable(UNREADABLE)
        if reply is None
        else judge(verifier, reply=reply, truth=step.next_observation, before=step.observation)
        for reply, step in zip(replies, steps, strict=True)
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
