"""Patterns of task files, matched in a child process with a time limit.

Python's regular expressions can take forever, as `^(a+)*$` does on many letters and a full stop,
and nothing in the same process can end them. The child starts with the first pattern and serves all
later ones.
    fits("^order [0-9]+$", "order 12")  # True
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from terrella.core.config import Configurable
from terrella.core.errors import WorldError
from terrella.core.types import Observation, State, Text, Verdict
from terrella.verify.isolated import Isolated

SECONDS, MEMORY_MB = 2.0, 256
"""Limits of one match. The patterns of the published tasks take less than a millisecond."""


class Pattern(Configurable):
    """1 where a pattern matches a text. It is a verifier so that `Isolated` can run it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Has no settings."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Match the text of `reply` with the pattern of `truth`."""
        assert isinstance(reply, Text) and isinstance(truth, State)
        asked = truth.value
        pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["any_case"] else 0)
        found = (pattern.fullmatch if asked["whole"] else pattern.search)(reply.text)
        return Verdict.of(float(found is not None))


def fits(pattern: str, text: str, *, whole: bool = False, any_case: bool = False) -> bool:
    """Whether a pattern of a task file matches a text, or a part of it.

    Raises WorldError for a pattern that is none, or that takes too long on this text.
    """
    asked = State.of({"pattern": pattern, "whole": whole, "any_case": any_case})
    verdict = _child().verify(Text(text), asked, Text(""))
    if verdict.value is None:
        raise WorldError(
            "webarena",
            f"the pattern {pattern[:80]!r} of a task cannot be matched: {verdict.evidence}",
            "correct the task file: it may repeat what is repeated already",
        )
    return verdict.value == 1.0


@functools.cache
def _child() -> Isolated:
    return Isolated(Isolated.Config(inner=Pattern.Config(), timeout=SECONDS, memory_mb=MEMORY_MB))
