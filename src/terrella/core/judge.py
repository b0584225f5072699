"""The one door to a verifier: an exception in it is masked and named, never a silent zero.

verdict = judge(verifier, reply=Text("..."), truth=step.next_observation, before=step.observation)
"""

from __future__ import annotations

from terrella.core.protocols import Verifier
from terrella.core.types import Observation, Status, Verdict


def judge(verifier: Verifier, *, reply: Observation, truth: Observation, before: Observation) -> Verdict:
    """The verifier's verdict; if its code raises, a masked one that names the exception."""
    try:
        return verifier.verify(reply, truth, before)
    except Exception as error:  # noqa: BLE001  any bug of a verifier must become a counted, masked verdict
        return Verdict.failed(Status.ERROR, f"{type(verifier).__name__} raised {type(error).__name__}: {error}")
