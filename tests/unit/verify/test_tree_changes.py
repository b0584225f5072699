"""Trees and their changes, computed by hand: lines, matching, similarity, text, credit."""

from itertools import combinations, permutations

import pytest

from terrella.core.types import Tree
from terrella.verify.tree import Node, parse, parse_node, write, write_node
from terrella.verify.tree_diff import (
    Changes,
    TreeDiff,
    apply,
    credit_new,
    credit_updates,
    diff,
    likeness,
    read_changes,
    read_page,
    same_page,
    score,
    write_changes,
)
from terrella.verify.tree_match import NameWords, match

words_f1 = NameWords().f1

FORM = '[1] textbox "Name"\n[2] checkbox "New"\n[3] button "Ok"'


def value(reply, truth, before):
    return TreeDiff.Config().build().verify(Tree(reply), Tree(truth), Tree(before))


def test_a_line_is_read_as_it_is_written():
    line = '    [12] textbox "User \\"name\\"" value="kai" focused'
    node = parse_node(line)
    assert node == Node(2, 12, "textbox", 'User "name"', (("value", "kai"), ("focused", "true")))
    assert write_node(node) == line
    assert (node.get("value"), node.get("focused"), node.get("checked")) == ("kai", "true", "")
    assert (
        parse_node("row") == Node(0, 0, "row", "") and write_node(Node(0, 0, "row", "")) == 'row ""'
    )
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "not a tree node"),
        ("[1]button", "not a tree node"),
        (' button "x"', "not a tree node"),
        ('[1] button "x', "without its closing quote"),
        ('[1] button "x" ?', "not a property"),
        ('[1] button "x" value="1" value="2"', "given twice"),
        ('[1] button "x" checked checked', "given twice"),
        ('  [1] button "x"', "without a parent"),
        ('row ""\n    button "x"', "without a parent"),
        ('row ""\n  row ""\nrow ""\n    row ""', "without a parent"),
    ],
)
def test_a_text_that_is_not_a_tree_says_why(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_children_are_one_deeper_and_may_stop_anywhere():
    tree = 'row ""\n  row ""\n    row ""\n  row ""\nrow ""'
    assert [node.depth for node in parse(tree)] == [0, 1, 2, 1, 0] and write(parse(tree)) == tree


# --- similarity -----------------------------------------------------------------------------------


def node(name="", role="button", depth=0, **properties):
    return Node(depth, 0, role, name, tuple(sorted(properties.items())))


def test_words_are_alike_as_far_as_they_are_shared():
    assert (
        words_f1("a b c", "b c d e") == pytest.approx(2 * 2 / 7) and words_f1("A b", "a B") == 1.0
    )
    assert words_f1("", "") == 1.0 and words_f1("", " ") == 0.0 and words_f1("x", "y") == 0.0
    assert words_f1("a a b", "a b b") == pytest.approx(2 / 3)  # a word said twice counts twice


def test_nodes_are_alike_by_their_words_and_properties():
    assert likeness(node("a b"), node("a b")) == 1.0
    assert (
        likeness(node("a b", role="link"), node("a b")) == 0.0
        and likeness(node("a", depth=1), node("a")) == 0.0
    )
    # seven tenths for words, three for properties, and never more than 0.95 for what is not the
    # same
    assert likeness(node("a b"), node("a c")) == pytest.approx(0.95 * (0.7 * 0.5 + 0.3))
    assert likeness(node("a", value="1", checked="true"), node("a", value="1")) == pytest.approx(
        0.95 * (0.7 + 0.3 * 2 / 3)
    )
    assert likeness(node("a", value="1"), node("a")) == pytest.approx(0.95 * 0.7)
    assert likeness(node("a", value="1"), node("b", value="2")) == 0.0


def test_an_update_earns_as_much_of_the_way_as_it_goes():
    before = [node("a b c d"), node("x")]
    true = Changes(updated={0: node("a b y z"), 1: node("y")})
    # The start is 0.95 * (0.7 * 0.5 + 0.3), the reply 0.95 * (0.7 * 0.75 + 0.3).
    start, end = 0.95 * 0.65, 0.95 * 0.825
    half = Changes(updated={0: node("a b y d")})
    assert credit_updates(half, true, before) == pytest.approx((end - start) / (1 - start))
    assert credit_updates(Changes(updated=true.updated), true, before) == pytest.approx(2.0)
    away = Changes(updated={0: node("p q r s"), 1: node("y")})
    # A step away is not subtracted here: `score` counts it as a wrong change.
    assert credit_updates(away, true, before) == pytest.approx(1.0)


def test_an_update_to_what_is_there_already_earns_nothing():
    same = Changes(updated={0: node("a")})
    assert credit_updates(same, same, [node("a")]) == 0.0


def test_new_nodes_earn_in_the_order_of_the_page_and_each_goal_once():
    true = Changes(new=((0, node("a")), (0, node("b c d e")), (1, node("f"))))
    assert credit_new(true, true) == 3.0
    near = Changes(new=((0, node("a")), (0, node("b c d x"))))
    assert credit_new(near, true) == pytest.approx(1 + 0.95 * 0.95 * (0.7 * 0.75 + 0.3))
    # too far from anything (0.95 * 0.95 * 0.475 < 0.5): nothing
    assert credit_new(Changes(new=((0, node("b x y z")),)), true) == 0.0
    twice = Changes(new=((0, node("a")), (0, node("a"))))
    assert credit_new(twice, Changes(new=((0, node("a")),))) == 1.0
    backwards = Changes(new=((1, node("f")), (0, node("b c d e")), (0, node("a"))))
    assert credit_new(backwards, true) == 1.0
    assert credit_new(Changes(), true) == 0.0 and credit_new(true, Changes()) == 0.0


def test_an_equal_node_is_not_given_away_to_one_that_is_only_similar():
    true = Changes(new=((0, node("a b c d")),))
    both = Changes(new=((0, node("a b c x")), (0, node("a b c d"))))
    assert credit_new(both, true) == 1.0


def test_the_most_similar_goal_is_chosen_and_of_equals_the_first():
    true = Changes(new=((0, node("a b c x")), (0, node("a b c d e")), (0, node("q"))))
    only = Changes(new=((0, node("a b c d")),))
    assert credit_new(only, true) == pytest.approx(0.95 * 0.95 * (0.7 * 8 / 9 + 0.3))


def test_the_value_is_right_minus_wrong_scaled_by_the_predicted_deletions():
    before = [node(name) for name in "abcd"]
    true = Changes(frozenset({2, 3}), {0: node("A"), 1: node("B")})
    # words are compared without case: the old name is already 0.95 alike, so that any update earns
    # 0 or 1
    assert score(Changes(), true, before) == (0.0, 0.0)
    assert score(true, true, before) == pytest.approx((0.95, 1.0))
    one = Changes(frozenset({2, 3}), {0: node("A")})
    assert score(one, true, before) == pytest.approx((0.95 / 2, 2 * 3 / 7))
    undone = Changes(frozenset({2}), {0: node("A"), 1: node("B")})
    assert score(undone, true, before) == pytest.approx((0.95 / 2, 2 * 3 / 7))
    extra = Changes(frozenset({1, 2, 3}), {0: node("A")})
    assert score(extra, true, before) == pytest.approx((0.0, 2 * 3 / 8))


def test_where_nodes_only_vanish_dropping_what_stays_voids_the_reply():
    before = [node(name) for name in "abcd"]
    true = Changes(frozenset({0, 1}))
    assert score(Changes(frozenset({0})), true, before) == pytest.approx((0.95 / 2, 2 / 3))
    assert score(Changes(frozenset({0, 1})), true, before) == pytest.approx((0.95, 1.0))
    assert score(Changes(frozenset({0, 2})), true, before) == pytest.approx((0.0, 0.5))
    assert score(Changes(), Changes(), before) == (0.0, 1.0)
    assert score(Changes(frozenset({0})), Changes(), before) == (0.0, 0.0)


def test_more_new_nodes_than_there_are_earn_nothing_and_as_many_do():
    before, true = [node("a")], Changes(new=((0, node("x")), (0, node("y"))))
    assert score(Changes(new=((0, node("x")), (0, node("z")))), true, before) == pytest.approx(
        (0.0, 0.5)
    )
    assert score(Changes(new=((0, node("x")),)), true, before) == pytest.approx((0.95 / 2, 2 / 3))
    three = Changes(new=((0, node("x")), (0, node("y")), (0, node("z"))))
    assert score(three, true, before) == pytest.approx((0.0, 4 / 5))


# --- matching -------------------------------------------------------------------------------------


def pairs_of(first, second):
    return match(parse(first), parse(second))


def test_siblings_are_matched_by_name_then_by_role_and_likeness():
    old = 'button "Save the file"\nbutton "Close"\nlink "Help"'
    new = 'button "Close"\nlink "Help me"\nbutton "Save a file"'
    # Save moved behind the others: it is deleted and new, the two others keep their order
    assert pairs_of(old, new) == [(1, 0), (2, 1)]
    crossed = pairs_of(
        'text "z"\nbutton "a b"\nbutton "c d"', 'text "z"\nbutton "c x"\nbutton "a x"'
    )
    # The two have changed places, so only one of them can stay.
    assert crossed in ([(0, 0), (2, 1)], [(0, 0), (1, 2)])
    assert pairs_of('text "a b"\ntext "c d"', 'text "c x"') == [(1, 0)]
    by_rank = pairs_of('text "a"\ntext "a"', 'text "a"\ntext "a"')
    assert by_rank == [(0, 0), (1, 1)]
    none_similar = pairs_of('text "p"\ntext "q"', 'text "r"\ntext "s"')
    assert none_similar == [(0, 0), (1, 1)]
    assert pairs_of('text "a"', 'link "a"') == [] and pairs_of("", 'link "a"') == []


@pytest.mark.parametrize("order", list(permutations("abcde")), ids="".join)
def test_as_many_siblings_as_can_keep_their_places(order):
    """The longest increasing subsequence, found here by trying all of them."""
    pages = ["\n".join(f'text "{name}"' for name in names) for names in ("abcde", order)]
    pairs = pairs_of(*pages)
    assert pairs == sorted(pairs) and all("abcde"[a] == order[b] for a, b in pairs)
    subsequences = (names for n in range(1, 6) for names in combinations(order, n))
    assert len(pairs) == max(len(names) for names in subsequences if list(names) == sorted(names))


def test_children_are_matched_under_matched_parents_only():
    old = 'row "1"\n  text "a"\nrow "2"\n  text "b"'
    new = 'row "1"\n  text "b"\nrow "2"\n  text "a"'
    assert pairs_of(old, new) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    changes = diff(parse(old), parse(new))
    assert changes.updated == {
        1: node("b", role="text", depth=1),
        3: node("a", role="text", depth=1),
    }


# --- changes as text ------------------------------------------------------------------------------

PAGE = '[1] row "r"\n  [2] text "a" value="1" checked\n  text "b"\n[4] text "c"\n[4] text "d"'


def test_changes_are_written_in_the_order_of_the_page():
    old = parse(PAGE)
    after = parse(
        '[1] row "R"\n  [2] text "a" checked focused\n  text "b"\n  text "new"\n'
        '[4] text "c" value="2"'
    )
    written = '~[1] row "R"\n^[2] focused -value\n+@2   text "new"\n^@3 value="2"\n-@4'
    changes = diff(old, after)
    assert write_changes(changes, old) == written and len(changes) == 5
    assert same_page(apply(read_changes(written, old), old), after)
    assert write_changes(Changes(), old) == "=" and read_changes(" =\n", old) == Changes()


def test_a_node_may_come_before_all_others_and_gets_the_next_free_id():
    old = parse(FORM)
    page = apply(read_changes('+[0] heading "Hi"\n+[0] text "you"\n+[3] text "end"', old), old)
    assert [(item.id, item.name) for item in page] == [
        (4, "Hi"),
        (5, "you"),
        (1, "Name"),
        (2, "New"),
        (3, "Ok"),
        (6, "end"),
    ]
    assert apply(Changes(new=((-1, node("x")),)), [])[0].id == 1
    changed = apply(read_changes('~[2] radio "New"\n-[1]', old), old)
    assert [(item.id, item.role) for item in changed] == [(2, "radio"), (3, "button")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-[9]", "no such node"),
        ("-[0]", "no such node"),
        ("-@3", "no such node"),
        ("~[9] button", "no such node"),
        ("-[1] button", "not a change"),
        ("~[1]", "not a change"),
        ("+[1]", "not a change"),
        ("-[1]\n-[1]", "two changes of one node"),
        ('~[1] button "x"\n-[1]', "two changes of one node"),
        ("^[1] ?", "not a property"),
        ("-[1]\n\n-[2]", "not a change"),
    ],
)
def test_a_text_that_is_not_a_change_of_this_page_says_why(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_changes(text, parse(FORM))


def test_lines_count_from_the_first_and_a_change_may_name_the_last():
    assert read_changes("-@0\n-@2", parse(FORM)).deleted == {0, 2}
    assert read_changes("-[1]\n-[3]", parse(FORM)).deleted == {0, 2}
    twins = parse('[4] text "c"\n[4] text "d"')
    assert read_changes("-[4]", twins).deleted == {0}  # the first of two that share an id


def test_properties_can_be_set_changed_and_lost_at_once():
    old = parse(PAGE)
    changed = read_changes('^[2] -checked value="2" focused -absent', old).updated[1]
    assert changed == node("a", role="text", depth=1, value="2", focused="true")


def test_a_page_whose_nodes_have_lost_their_parent_is_refused():
    with pytest.raises(ValueError, match="without a parent"):
        read_page("-[1]", parse('[1] row "r"\n  [2] text "a"'))
    assert value("-[1]", FORM, '[1] row "r"\n  [2] text "a"').value == 0.0


def test_new_nodes_count_in_proportion_to_the_predicted_deletions():
    truth = '[1] heading "Done"\n[2] link "Back"'
    beside = value(f'{FORM}\n[4] heading "Done"\n[5] link "Back"', truth, FORM)
    # Both come after a line that should be gone, in another place: 0.95 each
    assert beside.value == 0.0 and beside.parts["f1"] == pytest.approx(2 * 1.9 / 7)
    third = value('+[3] heading "Done"\n+[3] link "Back"\n-[1]', truth, FORM)
    assert third.value == pytest.approx(0.95 * (1.9 - 0.1) / 2 / 3)
    assert third.parts["f1"] == pytest.approx(2 * (1.9 + 1) / 8)
