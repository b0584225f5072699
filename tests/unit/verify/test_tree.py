"""Page trees: the parser, an applicable difference that ignores ids, and the exploit battery."""

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.types import Tree
from terrella.verify.battery import Example, run_battery
from terrella.verify.registry import find
from terrella.verify.tree import Node, parse, write
from terrella.verify.tree_diff import (
    TreeDiff,
    apply,
    bare,
    diff,
    read_changes,
    read_page,
    same_page,
    write_changes,
)

PAIRS = Path(__file__).with_name("page_pairs.json.xz")
"""Pages of MiniWoB++ before and after an action, recorded in Chromium."""
FORM = '[1] textbox "Name"\n[2] checkbox "New"\n[3] button "Ok"'
verifier = TreeDiff.Config().build()


def value(reply, truth, before):
    return verifier.verify(Tree(reply), Tree(truth), Tree(before))


def pairs():
    return json.loads(lzma.open(PAIRS).read())


def test_thousands_of_real_pairs_can_be_rebuilt_from_their_difference():
    recorded = pairs()
    assert len(recorded) >= 2000 and sum(before != after for before, after in recorded) >= 500
    for before, after in recorded:
        old, new = parse(before), parse(after)
        assert write(old) == before
        changes = diff(old, new)
        assert same_page(apply(changes, old), new)
        assert same_page(read_page(write_changes(changes, old), old), new)


def test_no_attack_wins_on_real_pairs():
    changed = [(before, after) for before, after in pairs() if before != after][::40]
    others = tuple(Tree(after) for _, after in changed[:3])
    report = run_battery(
        verifier, [Example(before=Tree(b), truth=Tree(a), others=others) for b, a in changed]
    )
    assert report.passed, report.summary()


NAMES = st.text(alphabet='ab"\\ \n[1]é', max_size=6)
NODES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 9),
        st.sampled_from(["button", "text", "row"]),
        NAMES,
        st.dictionaries(st.sampled_from(["value", "checked"]), NAMES, max_size=2),
    ),
    max_size=12,
)


def grown(rows):
    """Turn any list of rows into a tree, by limiting the depth of each node."""
    nodes, deepest = [], 0
    for depth, number, role, name, properties in rows:
        nodes.append(Node(min(depth, deepest), number, role, name, tuple(properties.items())))
        deepest = nodes[-1].depth + 1
    return nodes


@settings(max_examples=150, deadline=None)
@given(NODES, NODES)
def test_any_two_trees_can_be_rebuilt_from_their_difference(first, second):
    old, new = grown(first), grown(second)
    assert parse(write(old)) == old
    changes = diff(old, new)
    assert same_page(apply(changes, old), new)
    again = read_changes(write_changes(changes, old), old)
    assert same_page(apply(again, old), new)
    assert len(diff(old, old)) == 0


def test_renumbering_is_not_a_change():
    renumbered = FORM.replace("[1]", "[41]").replace("[2]", "[7]").replace("[3]", "[1]")
    assert len(diff(parse(FORM), parse(renumbered))) == 0
    assert value(renumbered, FORM, FORM).value == 1.0


def test_a_deleted_node_is_the_one_that_is_gone():
    """With C removed and B renumbered, published code reported B and C deleted and B updated."""
    changes = diff(
        parse('[1] text "A"\n[2] text "B"\n[3] text "C"'), parse('[1] text "A"\n[5] text "B"')
    )
    assert changes.deleted == {2} and not changes.updated and not changes.new


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (FORM.replace('"Name"', '"Name" value="kai"'), 1.0),
        ('~[1] textbox "Name" value="kai"', 1.0),
        ('^[1] value="kai"', 1.0),
        (FORM, 0.0),
        ("=", 0.0),
        ("New items:\nNone\nDeleted items:\nNone\nUpdated items:\nNone", 0.0),
        ("None", 0.0),
        ('~[2] checkbox "New" checked', 0.0),
        ('~[1] textbox "Name" value="kai"\n~[2] checkbox "New" checked', 0.0),
        ('~[9] textbox "Name" value="kai"', 0.0),
        ('the answer is:\n~[1] textbox "Name" value="kai"', 0.0),
    ],
)
def test_only_the_true_change_earns(reply, expected):
    truth = FORM.replace('"Name"', '"Name" value="kai"')
    assert value(reply, truth, FORM).value == expected


def test_partial_credit_for_text_and_none_for_hedging():
    truth = f'{FORM}\n[4] alert "Please enter your name first"'
    near = value(f'{FORM}\n[4] alert "Please enter a name first"', truth, FORM)
    assert 0.3 < near.value < 1.0 and 0.3 < near.parts["f1"] < 1.0 and near.parts["exact"] == 0.0
    both = f'{FORM}\n[4] alert "Please enter your name first"\n[5] alert "Thank you"'
    assert value(both, truth, FORM).value == 0.0


def test_where_nothing_changes_only_no_change_earns():
    assert value(FORM, FORM, FORM).parts == {"exact": 1.0, "f1": 1.0}
    assert value(FORM, FORM, FORM).value == 1.0 and value("=", FORM, FORM).value == 1.0
    assert value(f'{FORM}\n[4] text "x"', FORM, FORM).value == 0.0


def test_the_verifier_is_registered():
    assert find("tree_diff") == TreeDiff.Config() and bare(Node(0, 3, "a", "b")).id == 0
