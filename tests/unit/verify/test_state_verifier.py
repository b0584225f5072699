"""State differences: applicable, strict about types, and rewarded only for right changes."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from terrella.core.errors import ConfigError
from terrella.core.types import State, Status, Text, canonical_json
from terrella.verify.battery import run_battery
from terrella.verify.registry import _STATE_EXAMPLES
from terrella.verify.state import (
    MAX_DEPTH,
    Diff,
    StateDiff,
    apply,
    change_gain,
    diff,
    leaves,
    parse_state,
)

verifier = StateDiff.Config().build()
near = StateDiff.Config(tolerance=0.01).build()

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
keys = st.sampled_from(["", "0", "1", "a", "ключ", "\ud800", "a.b", "[]"]) | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
KINDS = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    0.0,
    -0.0,
    "1",
    "",
    "true",
    {},
    [],
    {"0": 1},
    [1],
    [[]],
    [{}],
    {"": []},
]


@given(values, values)
def test_a_difference_can_be_applied(before, after):
    assert canonical_json(apply(diff(before, after), before)) == canonical_json(after)


@given(values)
def test_a_value_does_not_differ_from_itself(value):
    assert diff(value, value) == Diff() and len(diff(value, value)) == 0
    assert canonical_json(apply(Diff(), value)) == canonical_json(value)


@pytest.mark.parametrize("before", KINDS, ids=repr)
@pytest.mark.parametrize("after", KINDS, ids=repr)
def test_all_kinds_of_values_are_told_apart(before, after):
    for wrap in (lambda v: v, lambda v: {"x": v}, lambda v: [v], lambda v: {"x": [v, 2]}):
        old, new = wrap(before), wrap(after)
        change = diff(old, new)
        assert (len(change) == 0) == (canonical_json(old) == canonical_json(new))
        assert canonical_json(apply(change, old)) == canonical_json(new)


@given(values, values)
@example({"a": [1, 2, 3]}, {"a": []})
@example([], [[[]]])
def test_the_truth_scores_one_and_no_change_scores_nothing(before, after):
    old, new = State.of(before), State.of(after)
    assert verifier.verify(new, new, old).value == 1.0
    assert verifier.verify(old, new, old).value == float(old == new)


@given(values, values, values)
def test_the_gain_is_a_share_and_full_only_for_the_true_changes(before, truth, reply):
    gain = change_gain(diff(before, reply), diff(before, truth))
    assert 0.0 <= gain <= 1.0
    assert (gain == 1.0) == (canonical_json(reply) == canonical_json(truth))


def test_a_property_is_a_scalar_or_something_empty():
    properties = {("a", 0): "1", ("a", 1): "{}", ("b", "c"): '"x"'}
    assert leaves({"a": [1, {}], "b": {"c": "x"}}) == properties
    assert diff({"n": 1, "old": 2}, {"n": 3, "new": []}) == Diff(
        created={("new",): "[]"}, modified={("n",): "3"}, removed=frozenset({("old",)})
    )


def score(before, truth, reply):
    return verifier.verify(State.of(reply), State.of(truth), State.of(before)).value


HALF_RIGHT = {
    "one of two modifications": ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 2, "b": 1}, 0.5),
    "one of two creations": ({}, {"a": 1, "b": 2}, {"a": 1}, 0.5),
    "one of two removals": ({"a": 1, "b": 1, "c": 1}, {"c": 1}, {"b": 1, "c": 1}, 0.5),
    "the value, not the removal": ({"a": 1, "b": 1}, {"a": 2}, {"a": 2, "b": 1}, 0.5),
    "two right, one wrong": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2, "c": 2},
        {"a": 2, "b": 2, "c": 9},
        1 / 3,
    ),
    "a nested value": (
        {"o": [{"x": 1}, {"x": 1}]},
        {"o": [{"x": 2}, {"x": 2}]},
        {"o": [{"x": 2}, {"x": 1}]},
        0.5,
    ),
}


@pytest.mark.parametrize(("before", "truth", "half", "worth"), HALF_RIGHT.values(), ids=HALF_RIGHT)
def test_half_right_beats_no_change_and_is_beaten_by_the_truth(before, truth, half, worth):
    assert score(before, truth, before) < score(before, truth, half) < score(before, truth, truth)
    assert score(before, truth, half) == pytest.approx(worth)


WORTHLESS = {
    "the empty object where much goes": ({"a": 1, "b": 2}, {"c": 3}, {}),
    "the empty object where most goes": ({"a": 1, "b": 2, "c": 3}, {"c": 3}, {}),
    "null": ({"a": 1, "b": 2}, {"c": 3}, None),
    "dropping all but the constant": ({"a": 1, "b": 2, "x": 0}, {"c": 1, "x": 0}, {"x": 0}),
    "an invented property beside the truth": (
        {"a": 1},
        {"a": 2, "b": 3},
        {"a": 2, "b": 3, "note": "?"},
    ),
    "old and new value in a list": ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": [1, 2], "b": 2}),
    "as many wrong as right": ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 2, "b": 3}),
    "a longer list": ([1], [1, 2], [1, 2, 3]),
    "a change where nothing changes": ({"a": 1}, {"a": 1}, {"a": 2}),
    "1.0 for 1": ({"a": 0}, {"a": 1}, {"a": 1.0}),
    "true for 1": ({"a": 0}, {"a": 1}, {"a": True}),
    "the type of the root only": ({"a": 1}, [1, 2], []),
}


@pytest.mark.parametrize(("before", "truth", "reply"), WORTHLESS.values(), ids=WORTHLESS)
def test_no_credit_for(before, truth, reply):
    assert score(before, truth, reply) == 0.0


def test_precision_recall_and_f1_are_parts_of_the_verdict():
    before, truth, reply = (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2, "c": 1},
        {"a": 2, "b": 1, "c": 5},
    )
    verdict = verifier.verify(State.of(reply), State.of(truth), State.of(before))
    assert verdict.value == 0.0
    assert verdict.parts == {"exact": 0.0, "precision": 0.5, "recall": 0.5, "f1": 0.5}


PARTS = {
    "all right": ({"a": 1}, {"a": 2}, {"a": 2}, (1.0, 1.0, 1.0, 1.0)),
    "one of two changes": (
        {"a": 1, "b": 1},
        {"a": 2, "b": 2},
        {"a": 2, "b": 1},
        (0.0, 1.0, 1 / 2, 2 / 3),
    ),
    "one of two, and one that is none": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2, "c": 1},
        {"a": 2, "b": 1, "c": 3},
        (0.0, 1 / 2, 1 / 2, 1 / 2),
    ),
    "a removal and a value of three": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "c": 2},
        {"a": 2, "c": 1},
        (0.0, 1.0, 2 / 3, 4 / 5),
    ),
    "the value, and another removal": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "c": 1},
        {"a": 2, "b": 1},
        (0.0, 1 / 2, 1 / 2, 1 / 2),
    ),
    "nothing of something": ({"a": 1}, {"a": 2}, {"a": 1}, (0.0, 0.0, 0.0, 0.0)),
    "something of nothing": ({"a": 1}, {"a": 1}, {"a": 2}, (0.0, 0.0, 0.0, 0.0)),
    "nothing of nothing": ({"a": 1}, {"a": 1}, {"a": 1}, (1.0, 0.0, 0.0, 1.0)),
}


@pytest.mark.parametrize(("before", "truth", "reply", "parts"), PARTS.values(), ids=PARTS)
def test_parts_are_fractions_of_predicted_and_of_true_changes(before, truth, reply, parts):
    verdict = verifier.verify(State.of(reply), State.of(truth), State.of(before))
    assert tuple(
        verdict.parts[name] for name in ("exact", "precision", "recall", "f1")
    ) == pytest.approx(parts)


WORTH = {
    "the values without the removal": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2},
        {"a": 2, "b": 2, "c": 1},
        2 / 3,
    ),
    "one value and the removal": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2},
        {"a": 2, "b": 1},
        1 / 2,
    ),
    "one value without the removal": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2},
        {"a": 2, "b": 1, "c": 1},
        1 / 3,
    ),
    "two values, and a removal too many": (
        {"a": 1, "b": 1, "c": 1},
        {"a": 2, "b": 2, "c": 1},
        {"a": 2, "b": 2},
        1 / 2,
    ),
    "one of three removals": (
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {"d": 1},
        {"b": 1, "c": 1, "d": 1},
        1 / 3,
    ),
    "a removal, and a value that is none": (
        {"a": 1, "b": 1, "d": 1},
        {"d": 1},
        {"b": 1, "d": 2},
        0.0,
    ),
    "a change of what should go": ({"a": 1, "b": 1}, {"b": 1}, {"a": 2, "b": 1}, 0.0),
}


@pytest.mark.parametrize(("before", "truth", "reply", "worth"), WORTH.values(), ids=WORTH)
def test_values_earn_and_removals_scale_them(before, truth, reply, worth):
    assert score(before, truth, reply) == pytest.approx(worth)


def test_a_difference_counts_all_three_kinds_of_changes():
    change = diff({"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 2, "e": 1, "f": 1})
    assert len(change) == 6 and change.asserted() == {(("a",), "2"), (("e",), "1"), (("f",), "1")}


def test_states_as_deep_as_allowed_are_read():
    deep = "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH
    assert MAX_DEPTH == 64 and verifier.verify(Text(deep), Text(deep), Text("[]")).value == 1.0


BAD_JSON = {
    "two documents": '{"n":2}{"n":2}',
    "a comment": '{"n":2} // sure',
    "a key given twice": '{"n":1,"n":2}',
    "a key given twice, deep": '{"n":2,"o":[{"a":1,"a":1}]}',
    "NaN": '{"n":NaN}',
    "infinity": '{"n":-Infinity}',
    "an infinite number": '{"n":1e999}',
    "an endless integer": '{"n":' + "9" * 5000 + "}",
    "full-width digits": '{"n":１２}',  # noqa: RUF001
    "a zero-width space": '{\u200b"n":2}',
    "a byte order mark": '\ufeff{"n":2}',
    "trailing comma": '{"n":2,}',
    "single quotes": "{'n':2}",
    "a control character": '{"n":"\x01"}',
    "prose": "The state is now n=2.",
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 900 + "1" + "}" * 900,
    "just too deep": "[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1),
}


@pytest.mark.parametrize("reply", BAD_JSON.values(), ids=BAD_JSON)
def test_a_reply_that_is_not_strict_json_is_unparsable_not_an_error(reply):
    verdict = verifier.verify(Text(reply), State.of({"n": 2}), State.of({"n": 1}))
    assert (verdict.value, verdict.status) == (0.0, Status.UNPARSABLE) and verdict.evidence


def test_spelling_is_free_where_json_is():
    reply = Text(' {\n  "\\u006e" : 2.50 , "m":[ ]}\n')
    truth, before = State.of({"m": [], "n": 2.5}), State.of({"m": [], "n": 1})
    assert verifier.verify(reply, truth, before).value == 1.0


@given(st.text() | st.from_regex(r"[\[\]{}:,\"0-9eE+.nulltrefas \-]{0,40}", fullmatch=True))
def test_parsing_never_raises_anything_but_value_error(text):
    try:
        value = parse_state(text)
    except ValueError:
        return
    assert canonical_json(value) == canonical_json(json.loads(text))


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "[1e400]", "NaN", "Infinity", '{"a":1,"a":1}', "[" * 100_000]
)
def test_strict_parsing_refuses_what_python_would_accept(text):
    with pytest.raises(ValueError):
        parse_state(text)


def test_a_tolerance_is_for_rounded_numbers_that_changed():
    before, truth = State.of([0.5, 1.0, 3]), State.of([0.52, 1.0, 4])

    def value(*numbers, judge=near):
        return judge.verify(State.of(list(numbers)), truth, before).value

    assert value(0.52, 1.0, 4) == value(0.53, 1.0, 4) == value(0.51, 0.99, 4) == 1.0
    assert value(0.54, 1.0, 4) < 1 and value(0.52, 1.0, 3) < 1 and value(0.52, 1, 4) < 1
    assert value(0.53, 1.0, 4, judge=verifier) < 1
    assert near.verify(State.of([0.53, 1.0, 4]), truth, before).parts["exact"] == 0.0
    small = State.of([0.51])  # a change within the tolerance is not earned by copying
    assert near.verify(State.of([0.5]), small, State.of([0.5])).value == 0.0
    with pytest.raises(ConfigError, match="tolerance"):
        StateDiff.Config(tolerance=-1.0)


def test_no_attack_beats_no_change_within_a_tolerance():
    assert run_battery(near, _STATE_EXAMPLES).passed
