"""The published form of page changes: read back as written, verified without its loopholes."""

import random

import pytest

from terrella.core.types import Tree
from terrella.verify.battery import run_battery
from terrella.verify.page_sections import (
    PageSections,
    listed,
    read_imagined,
    read_sections,
    write_sections,
)
from terrella.verify.registry import _TREE_EXAMPLES
from terrella.verify.tree import Node, parse, write

PAGE = (
    '[1] task "It\'s time."\ntext "Count: 0"\n[2] textbox "Name"\n[3] button "Ok"\n  [4] link "x"'
)
AFTER = (
    '[1] task "It\'s time."\ntext "Count: 1"\n[2] textbox "Name" focused value="kai"\n'
    '[3] button "Ok"\n[9] alert "Saved\\nnow"'
)
LISTS = """New items:
text 'Count: 1'
alert 'Saved\\nnow'
Deleted items:
text 'Count: 0'
[4] link 'x'
Updated items:
[2] textbox 'Name' focused: 'true' value: 'kai'"""
VERIFIER = PageSections.Config().build()


def verdict(reply, truth=AFTER, before=PAGE):
    return VERIFIER.verify(Tree(reply), Tree(truth), Tree(before))


def test_the_three_lists_say_what_changed_and_are_read_back():
    old = parse(PAGE)
    assert write_sections(old, parse(AFTER)) == LISTS
    assert read_sections(LISTS, old) == listed(old, parse(AFTER))
    assert write_sections(old, old).count("None") == 3


def test_the_truth_earns_everything_in_either_form_and_no_change_earns_nothing():
    assert verdict(LISTS).value == verdict(AFTER).value == 1.0
    nothing = write_sections(parse(PAGE), parse(PAGE))
    assert verdict(nothing).value == 0.0 and verdict(nothing).parts["f1"] == 0.0
    assert verdict(nothing, truth=PAGE).value == 1.0


def random_page(rng):
    """A page on which texts and ids repeat, as on real ones."""
    return [
        Node(
            0,
            rng.choice([0, 3, index + 1]),
            rng.choice(["text", "link"]),
            rng.choice(["0", "it's", ""]),
            (("value", rng.choice(["true", "x y"])),) if rng.random() < 0.3 else (),
        )
        for index in range(rng.randint(1, 7))
    ]


def test_the_lists_of_any_step_earn_everything_where_elements_repeat():
    rng = random.Random(0)
    for _ in range(500):
        old, new = random_page(rng), random_page(rng)
        lists = write_sections(old, new)
        assert verdict(lists, write(new), write(old)).value == 1.0, lists
    two = '[3] link "a"\n[3] link "b"'  # both may be written with the id that they share
    gone = "New items:\nNone\nDeleted items:\n[3] link 'b'\nUpdated items:\nNone"
    assert verdict(gone, two.partition("\n")[0], two).value == 1.0
    assert verdict(gone, two.partition("\n")[2], two).value == 0.0


def test_the_published_loopholes_are_closed():
    """`None` is no item, a line counts once, and lists inside a list are refused."""
    half = LISTS.replace("alert 'Saved\\nnow'\n", "")
    assert 0 < verdict(half).value < 1
    repeated = half.replace("text 'Count: 1'\n", "text 'Count: 1'\n" * 3)
    assert verdict(repeated).value == 0.0
    assert verdict(repeated).parts["f1"] < verdict(half).parts["f1"]
    for wrong in (
        LISTS + "\nNew items:\nNone",
        LISTS.replace("Deleted items:\n", ""),
        LISTS.replace("text 'Count: 1'", "None\ntext 'Count: 1'"),
        LISTS.replace("[4] link", "[7] link"),
        "I think " + LISTS,
    ):
        assert verdict(wrong).value == 0.0, wrong
        assert verdict(wrong).status.value == "unparsable", wrong


def test_no_attack_beats_no_change():
    report = run_battery(VERIFIER, _TREE_EXAMPLES)
    assert report.passed, report.summary()


def test_an_imagined_page_has_the_changes_and_can_be_asked_about_again():
    page = write(read_imagined(LISTS, parse(PAGE)))
    assert '[2] textbox "Name" focused value="kai"' in page and '"Count: 1"' in page
    assert "[4]" not in page and parse(page)
    assert read_imagined('^[2] value="x"', parse(PAGE))[2].get("value") == "x"
    with pytest.raises(ValueError, match="a list is missing"):
        read_imagined("New items:\nNone", parse(PAGE))
