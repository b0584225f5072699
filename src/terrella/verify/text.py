"""Verifiers for text: exact match, and partial credit by lines.

Both forgive blank lines around a reply, and nothing else: spaces are part of a drawing. The hook that matters is
`line_gain`: credit is for coming nearer to the truth than a reply that changes nothing.
    LineGain.Config().build().verify(Text("a\\nB\\nc"), truth=Text("a\\nB\\nC"), before=Text("a\\nb\\nc")).value == 0.5
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text

LENGTH_FACTOR, LENGTH_SLACK = 20, 10_000
"""A reply may be this much longer than what it is compared with; beyond, reading it would let it spend our time."""


def refuse_unread(reply: str, truth: str, before: str) -> Verdict | None:
    """The verdict on a reply that is not worth reading (empty or endless), or None when it is."""
    limit = LENGTH_FACTOR * max(len(truth), len(before)) + LENGTH_SLACK
    if len(reply) > limit:
        return Verdict.unparsable(f"reply too long: {len(reply)} characters, more than {limit}")
    if not reply.strip() and truth.strip():
        return Verdict.unparsable("empty reply")
    return None


def without_blank_ends(reply: str, truth: str, before: str) -> tuple[str, str, str]:
    """The three texts without blank lines at their ends, unless such lines are all that changed."""
    bare = reply.strip("\r\n"), truth.strip("\r\n"), before.strip("\r\n")
    hides_the_change = truth != before and bare[1] == bare[2]
    return (reply, truth, before) if hides_the_change else bare


class Exact(Configurable):
    """1 when the reply is the truth, character by character, else 0; blank lines around it are forgiven."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the texts."""
        texts = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(*texts)
        if refused is not None:
            return refused
        answer, true, _ = without_blank_ends(*texts)
        return Verdict.of(float(answer == true))


class LineGain(Configurable):
    """Partial credit by lines: the value is `line_gain`, the plain F1 is a part beside it.

    F1 itself is not the reward: it pays for listing the old and the new version of a line, for lines in any order,
    and for the lines that never change.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the lines."""
        texts = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(*texts)
        if refused is not None:
            return refused
        answer, true, old = (text.split("\n") if text else [] for text in without_blank_ends(*texts))
        return Verdict.of(line_gain(answer, true, old), exact=float(answer == true), f1=line_f1(answer, true))


def line_gain(reply: Sequence[str], truth: Sequence[str], before: Sequence[str]) -> float:
    """How far the reply comes from `before` to `truth`: 0 for changing nothing, 1 for the truth only.

    value = max(0, right - wrong) / new lines of the truth. A new line that the reply claims is right when it brings
    the reply nearer to the truth, in order, and wrong otherwise; a line left as it was is neither. A reply longer
    than the truth lists alternatives and earns nothing. Where nothing changed, only the truth earns.
    """
    if reply == truth:
        return 1.0
    if before == truth:
        return 0.0
    kept = common_lines(before, truth)
    if kept == len(truth):
        return _removal_gain(reply, truth, before)
    if len(reply) > len(truth):
        return 0.0
    right = max(0, common_lines(reply, truth) - kept)
    claimed = (Counter(reply) - Counter(before)).total()
    wrong = max(0, claimed - right)
    return max(0, right - wrong) / (len(truth) - kept)


def _removal_gain(reply: Sequence[str], truth: Sequence[str], before: Sequence[str]) -> float:
    """Where lines only vanish: the share of them that the reply drops, if it drops and adds nothing else."""
    only_drops = common_lines(reply, before) == len(reply) and common_lines(reply, truth) == len(truth)
    return (len(before) - len(reply)) / (len(before) - len(truth)) if only_drops else 0.0


def line_f1(predicted: Sequence[str], truth: Sequence[str]) -> float:
    """F1 over lines in order: `line_f1(["a", "b"], ["a", "c"]) == 0.5`. For reports; it can be farmed."""
    total = len(predicted) + len(truth)
    return 2 * common_lines(predicted, truth) / total if total else 1.0


def common_lines(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence of lines.

    Bit-parallel (Hyyrö 2004): one bit per line of `second`, so that thousands of lines take milliseconds.
    """
    places: dict[str, int] = {}
    for index, line in enumerate(second):
        places[line] = places.get(line, 0) | 1 << index
    everything = (1 << len(second)) - 1
    unmatched = everything
    for line in first:
        found = unmatched & places.get(line, 0)
        unmatched = ((unmatched + found) | (unmatched - found)) & everything
    return len(second) - unmatched.bit_count()
