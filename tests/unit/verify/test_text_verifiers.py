"""Exact and LineGain: what is ignored, what earns partial credit, and what must not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrella.core.types import Frames, Status, Text
from terrella.verify.text import Exact, LineGain, common_lines, line_f1, line_gain

exact, lines = Exact.Config().build(), LineGain.Config().build()


def value(verifier, reply, truth, before="something else"):
    return verifier.verify(Text(reply), Text(truth), Text(before)).value


@pytest.mark.parametrize("verifier", [exact, lines])
def test_blank_lines_around_a_reply_are_ignored_but_spaces_are_part_of_the_drawing(verifier):
    assert value(verifier, "\n\n#@ #\r\n", "#@ #") == 1.0
    assert value(verifier, "@   ", "   @", before=" @  ") == 0.0
    assert value(verifier, " @", "@") == 0.0


@pytest.mark.parametrize("verifier", [exact, lines])
def test_a_change_of_blank_lines_only_is_a_change(verifier):
    assert value(verifier, "\n@", "@\n", before="\n@") == 0.0
    assert value(verifier, "@\n", "@\n", before="\n@") == 1.0


@pytest.mark.parametrize("verifier", [exact, lines])
def test_an_empty_truth_can_be_predicted(verifier):
    assert value(verifier, "", "", before="a") == 1.0
    assert value(verifier, "a", "", before="a") == 0.0
    verdict = verifier.verify(Text("  "), Text("a"), Text("b"))
    assert (verdict.value, verdict.status) == (0.0, Status.UNPARSABLE)


@pytest.mark.parametrize("verifier", [exact, lines])
def test_a_huge_reply_is_not_read(verifier):
    began = time.process_time()
    verdict = verifier.verify(Text("a\n" * 5_000_000), Text("a\nb"), Text("a"))
    assert (verdict.value, verdict.status) == (0.0, Status.UNPARSABLE)
    assert "too long" in verdict.evidence
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("verifier", [exact, lines])
def test_a_reply_may_be_twenty_times_longer_and_ten_thousand_characters(verifier):
    for truth, before in (("t" * 100, "b"), ("t", "b" * 100)):
        at_most = "x" * (20 * 100 + 10_000)
        assert verifier.verify(Text(at_most), Text(truth), Text(before)).status is Status.OK
        assert (
            verifier.verify(Text(at_most + "x"), Text(truth), Text(before)).status
            is Status.UNPARSABLE
        )


@pytest.mark.parametrize("verifier", [exact, lines])
def test_a_blank_reply_to_a_blank_truth_can_be_read(verifier):
    assert verifier.verify(Text("\n"), Text(" "), Text("a")).status is Status.OK
    assert verifier.verify(Text("\n"), Text("a"), Text(" ")).status is Status.UNPARSABLE


@pytest.mark.parametrize("verifier", [exact, lines])
def test_frames_raise_an_error(verifier):
    with pytest.raises(TypeError, match="frames have no text"):
        verifier.verify(Frames(b"\0", (1, 1, 1, 1)), Text("a"), Text("b"))


HALF_RIGHT = {
    "two lines change, one is found": ("a\nb\nc\nd", "a\nB\nC\nd", "a\nB\nc\nd"),
    "all lines change, half are found": ("a\nb\nc\nd", "A\nB\nC\nD", "A\nb\nC\nd"),
    "two lines come, one is found": ("a\nb", "a\nx\nb\ny", "a\nx\nb"),
    "two lines go, one is found": ("a\nb\nc\nd", "a\nd", "a\nb\nd"),
    "one goes and two come, one is found": ("a\nb\nc", "x\na\ny", "x\na"),
    "lines change places, one is found": ("a\nb\nc\nd\ne", "e\nb\nc\na\nd", "b\nc\na\nd\ne"),
    "a short text becomes a long one": ("You wait.", "l1\nl2\nl3\nl4", "l1\nl2"),
}


@pytest.mark.parametrize(("before", "truth", "half"), HALF_RIGHT.values(), ids=HALF_RIGHT)
def test_half_right_beats_no_change_and_is_beaten_by_the_truth(before, truth, half):
    assert value(lines, before, truth, before) == 0.0 < value(lines, half, truth, before) < 1.0
    assert value(lines, truth, truth, before) == 1.0


WORTH = {
    "one of two changed lines": ("a\nb\nc\nd", "a\nB\nC\nd", "a\nB\nc\nd", 1 / 2),
    "two of three": ("a\nb\nc", "A\nB\nC", "A\nB\nc", 2 / 3),
    "two of three, and a wrong one": ("a\nb\nc", "A\nB\nC", "A\nB\nX", 1 / 3),
    "one of four new lines": ("a", "w\nx\ny\nz", "w", 1 / 4),
    "three of four, one line too few": ("a", "w\nx\ny\nz", "w\nx\ny", 3 / 4),
    "one of three that vanish": ("a\nb\nc\nd", "d", "a\nb\nd", 1 / 3),
    "two of three that vanish": ("a\nb\nc\nd", "d", "a\nd", 2 / 3),
    "a vanished line and another instead": ("a\nb\nc\nd", "d", "x\nd", 0.0),
}


@pytest.mark.parametrize(("before", "truth", "reply", "worth"), WORTH.values(), ids=WORTH)
def test_the_gain_is_right_minus_wrong_over_the_new_lines(before, truth, reply, worth):
    assert value(lines, reply, truth, before) == pytest.approx(worth)


def test_f1_is_twice_the_common_lines_over_all_lines():
    assert line_f1(["a", "b", "c"], ["a", "c"]) == pytest.approx(4 / 5)
    verdict = lines.verify(Text("a\nB"), Text("a\nB"), Text("a\nb"))
    assert verdict.value == 1.0 and verdict.parts == {"exact": 1.0, "f1": 1.0}


WORTHLESS = {
    "old and new version of a line": ("a\nb\nc", "a\nB\nc", "a\nb\nB\nc"),
    "one right and one invented line": ("a\nb\nc", "a\nB\nC", "a\nB\nX"),
    "input, then truth, which is longer": ("a", "b\nc\nd\ne\nf", "a\nb\nc\nd\ne\nf"),
    "truth and one more line": ("a\nb", "c\nd", "c\nd\ne"),
    "truth in reverse order": ("a\nb\nc\nd", "w\nx\ny\nz", "z\ny\nx\nw"),
    "only the lines that stay": ("a\nb\nc\nd", "a\nx\nc\ny", "a\nc"),
    "the input scrolled by a line": ("1\n2\n3\n4\n5", "2\n3\n4\n5\n6", "2\n3\n4\n5"),
    "fewer lines when the truth has fewer": ("a\nb\nc\nd\ne\nf", "x\ny", "z"),
    "dropping what stays": ("a\nb\nc\nd", "a\nd", "d"),
    "unicode line breaks instead of lines": ("a\nb", "x\ny\nz", "x\u2028y\x1cz"),
    "a change where nothing changes": ("a\nb\nc", "a\nb\nc", "a\nb\nC"),
}


@pytest.mark.parametrize(("before", "truth", "reply"), WORTHLESS.values(), ids=WORTHLESS)
def test_no_partial_credit_for(before, truth, reply):
    assert value(lines, reply, truth, before) == 0.0


def test_plain_f1_is_reported_beside_the_value():
    verdict = lines.verify(Text("a\nb"), Text("a\nc"), Text("a\nb"))
    assert verdict.value == 0.0 and verdict.parts == {"exact": 0.0, "f1": 0.5}
    assert line_f1([], []) == 1.0 and line_f1(["a"], []) == 0.0


some_lines = st.lists(st.sampled_from("abcd"), max_size=7)


@given(some_lines, some_lines, some_lines)
def test_line_gain_is_a_share_and_full_only_for_the_truth(reply, truth, before):
    gain = line_gain(reply, truth, before)
    assert 0.0 <= gain <= 1.0 and (gain == 1.0) == (reply == truth)
    assert line_gain(before, truth, before) == float(before == truth)


@given(some_lines, some_lines)
def test_common_lines_is_the_longest_common_subsequence(first, second):
    table = [0] * (len(second) + 1)
    for line in first:
        above = table[:]
        for j, other in enumerate(second):
            table[j + 1] = above[j] + 1 if line == other else max(above[j + 1], table[j])
    assert common_lines(first, second) == table[-1]


def test_thousands_of_lines_take_milliseconds():
    before = [f"line {i}" for i in range(5000)]
    truth = [*before[:2000], "new", *before[2001:]]
    began = time.process_time()
    assert line_gain(truth[::-1], truth, before) == 0.0
    assert time.process_time() - began < 1.0
