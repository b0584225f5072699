"""The action grammar and the candidate actions of a page."""

import pytest

from terrella.browser.actions import candidates, quoted_texts
from terrella.codecs.web_language import Action, parse_action
from terrella.verify.tree import parse


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click 7", Action("click", 7)),
        ("click 7 \n", Action("click", 7)),
        ("type 7 two words ", Action("type", 7, "two words ")),
        ('type 7 do(action="Click")', Action("type", 7, 'do(action="Click")')),
        ("type 7 ", Action("type", 7, "")),
        ("select 3 6 ft", Action("select", 3, "6 ft")),
        ("scroll down", Action("scroll", 0, "down")),
        ("scroll 4 up", Action("scroll", 4, "up")),
        ("press Control+a", Action("press", 0, "Control+a")),
        ("goto http://shop.test/", Action("goto", 0, "http://shop.test/")),
        ("back", Action("back")),
        ("stop", Action("stop")),
        ("stop it costs 4", Action("stop", 0, "it costs 4")),
    ],
)
def test_every_form_is_parsed(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    ["", "click", "click x", "click 7 now", "type 7", "scroll left", "Click 7", "click 7\nback"],
)
def test_text_outside_the_grammar_is_none(text):
    assert parse_action(text) is None


def test_overlong_text_is_not_parsed():
    assert parse_action("type 7 " + "a" * 5000) is None


def test_candidates_are_the_actions_that_a_page_offers():
    page = parse(
        '[1] task "Enter \\"kai\\" and 42."\n'
        '[2] textbox ""\n'
        '[3] combobox "" value="b"\n'
        '  [4] option "a"\n'
        '  [5] option "b"\n'
        'text "no element"\n'
        '[6] button "Ok"'
    )
    actions = candidates(page, quoted_texts(page[0].name))
    assert actions == (
        "type 2 kai",
        "type 2 42",
        "click 2",
        "select 3 a",
        "select 3 b",
        "click 6",
        "scroll down",
        "scroll up",
        "stop",
    )
    assert all(parse_action(text) for text in actions)
