"""Verifiers for text: exact match, and line F1 for partial credit.

Exact.Config().build().verify(Text("a"), Text("a"), before).value == 1.0
line_f1("a\\nb", "a\\nc") == 0.5
"""

from __future__ import annotations

from collections import Counter

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text

MAX_REPLY_CHARS = 1_000_000
"""A longer reply is not read at all: parsing it would let a reply spend our time."""


def reply_text(reply: Observation) -> str | None:
    """The reply without surrounding white space, or None when it is too long to be worth reading."""
    text = show_text(reply)
    return text.strip() if len(text) <= MAX_REPLY_CHARS else None


class Exact(Configurable):
    """1 when the reply is the truth, character by character; surrounding white space is forgiven."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the texts."""
        text = reply_text(reply)
        if not text:
            return Verdict.unparsable("empty reply" if text == "" else "reply too long")
        return Verdict.of(float(text == show_text(truth).strip()))


def line_f1(predicted: str, truth: str) -> float:
    """F1 over the multiset of lines, where lines beyond the truth's number also cost as such.

    The last factor closes the 'say everything' hole: a reply that lists both the old and the new version of
    each line scores below one that changes nothing. `line_f1("a\\nb", "a\\nc") == 0.5`
    """
    predicted_lines, true_lines = predicted.splitlines(), truth.splitlines()
    if not predicted_lines or not true_lines:
        return float(predicted_lines == true_lines)
    hits = (Counter(predicted_lines) & Counter(true_lines)).total()
    surplus = max(0, len(predicted_lines) - len(true_lines))
    return 2 * hits / (len(predicted_lines) + len(true_lines)) * max(0.0, 1 - surplus / len(true_lines))


class LineF1(Configurable):
    """Partial credit by lines; order matters only for the full 1."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the lines; the same lines in another order stay below 1."""
        text, true_text = reply_text(reply), show_text(truth).strip()
        if not text:
            return Verdict.unparsable("empty reply" if text == "" else "reply too long")
        score = line_f1(text, true_text)
        if score == 1.0 and text != true_text:
            score = max(0.0, 1.0 - 1.0 / len(true_text.splitlines()))
        return Verdict.of(score, exact=float(text == true_text))
