"""Verifiers for text: exact match, and partial credit by lines.

Both ignore blank lines around a reply, and nothing else: spaces may be part of a drawing. The
scoring rule is `line_gain`: credit for being closer to the truth than the no-change reply.
    verifier = LineGain.Config().build()
    verdict = verifier.verify(Text("a\\nB\\nc"), truth=Text("a\\nB\\nC"), before=Text("a\\nb\\nc"))
    verdict.value == 0.5
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text

LENGTH_FACTOR, LENGTH_SLACK = 20, 10_000
"""The longest reply that is read, relative to the texts it is compared with.

A limit on the time that a reply can cost: one CPU second for every verifier.
"""
LENGTH_MOST = 150_000
"""A longer reply is read only if it is at most twice as long as these texts."""
LINES_FACTOR, LINES_SLACK = 4, 100


def longest_reply(truth: str, before: str) -> int:
    """The length of the longest reply that is read."""
    longest = max(len(truth), len(before))
    return max(2 * longest, min(LENGTH_FACTOR * longest + LENGTH_SLACK, LENGTH_MOST))


def refuse_unread(reply: str, truth: str, before: str) -> Verdict | None:
    """Verdict on a reply that is empty or too long to read; None for any other reply."""
    limit = longest_reply(truth, before)
    if len(reply) > limit:
        return Verdict.unparsable(f"reply too long: {len(reply)} characters, more than {limit}")
    if not reply.strip() and truth.strip():
        return Verdict.unparsable("empty reply")
    return None


def without_blank_ends(reply: str, truth: str, before: str) -> tuple[str, str, str]:
    """Strip blank lines at the ends of the texts, unless such lines are the only change."""
    bare = reply.strip("\r\n"), truth.strip("\r\n"), before.strip("\r\n")
    hides_the_change = truth != before and bare[1] == bare[2]
    return (reply, truth, before) if hides_the_change else bare


class Exact(Configurable):
    """1 if the reply equals the truth, apart from blank lines around it, else 0."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        texts = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(*texts)
        if refused is not None:
            return refused
        answer, true, _ = without_blank_ends(*texts)
        return Verdict.of(float(answer == true))


class LineGain(Configurable):
    """Partial credit by lines: the value is `line_gain`, plain F1 is a part.

    F1 itself is not the reward: it gives credit for listing both the old and the new version of a
    line, and for the lines that never change.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        texts = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(*texts)
        if refused is not None:
            return refused
        answer, true, old = (
            text.split("\n") if text else [] for text in without_blank_ends(*texts)
        )
        most = LINES_FACTOR * max(len(true), len(old)) + LINES_SLACK
        if len(answer) > most:
            return Verdict.unparsable(f"reply too long: more than {most} lines")
        return Verdict.of(
            line_gain(answer, true, old), exact=float(answer == true), f1=line_f1(answer, true)
        )


def line_gain(reply: Sequence[str], truth: Sequence[str], before: Sequence[str]) -> float:
    """Progress of the reply from `before` (0) to `truth` (1, for the truth only).

    value = max(0, right - wrong) / new lines of the truth. A line that the reply adds is right if
    it brings the reply closer to the truth, in order, and wrong otherwise; an unchanged line is
    neither. A reply longer than the truth lists alternatives and scores 0. Where nothing changed,
    everything but the truth scores 0.
    """
    if reply == truth:
        return 1.0
    if before == truth:
        return 0.0
    unchanged = common_lines(before, truth)
    if unchanged == len(truth):
        return _removal_gain(reply, truth, before)
    if len(reply) > len(truth):
        return 0.0
    right = max(0, common_lines(reply, truth) - unchanged)
    claimed = (Counter(reply) - Counter(before)).total()
    wrong = max(0, claimed - right)
    return max(0, right - wrong) / (len(truth) - unchanged)


def _removal_gain(reply: Sequence[str], truth: Sequence[str], before: Sequence[str]) -> float:
    """Score where lines only disappear: the fraction of them that the reply drops.

    0 if the reply drops or adds anything else.
    """
    adds_nothing = common_lines(reply, before) == len(reply)
    only_drops = adds_nothing and common_lines(reply, truth) == len(truth)
    return (len(before) - len(reply)) / (len(before) - len(truth)) if only_drops else 0.0


def line_f1(predicted: Sequence[str], truth: Sequence[str]) -> float:
    """F1 over lines in order: `line_f1(["a", "b"], ["a", "c"]) == 0.5`.

    For reports only; as a reward it can be exploited.
    """
    total = len(predicted) + len(truth)
    return 2 * common_lines(predicted, truth) / total if total else 1.0


def common_lines(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence of lines.

    Bit-parallel (Hyyrö 2004): one bit per line of `second`, so that thousands of lines take
    milliseconds.
    """
    positions: dict[str, int] = {}
    for index, line in enumerate(second):
        positions[line] = positions.get(line, 0) | 1 << index
    everything = (1 << len(second)) - 1
    unmatched = everything
    for line in first:
        matched = unmatched & positions.get(line, 0)
        unmatched = ((unmatched + matched) | (unmatched - matched)) & everything
    return len(second) - unmatched.bit_count()
