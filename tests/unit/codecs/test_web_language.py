"""The languages of a web agent: WebRL's, ours by id and by name, all parsed to one action."""

import pytest
from tests.attack.campaign import trials
from tests.support.fuzzed_replies import fuzzed_replies, read_back

from terrella.codecs.web_language import Action, parse_action, translate, write_action

PAGE = '[1] task "Say \\"no\\"."\n[4] button "No"\n[5] textbox ""\n  [6] option "a [4] b"'
ACTIONS = [
    Action("click", 7),
    Action("right_click", 7),
    Action("hover", 123456789),
    Action("type", 7, 'a "b" \\ do(action="Click", element="1")\nc'),
    Action("search", 4, ""),
    Action("select", 3, "6' ft), x"),
    Action("scroll", 0, "down"),
    Action("scroll", 9, "up"),
    Action("press", 0, "Enter"),
    Action("press", 0, "Control+a"),
    Action("back"),
    Action("forward"),
    Action("wait"),
    Action("stop"),
    Action("stop", 0, 'It costs $4, "about" (42)'),
]


@pytest.mark.parametrize("language", ["plain", "named", "webrl"])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.verb)
def test_what_is_written_is_read_back(action, language):
    assert parse_action(write_action(action, language, PAGE)) == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ('do(action="Click", element="7")', Action("click", 7)),
        ("# Element: the 'Login' button\ndo(action=\"Click\", element='7')", Action("click", 7)),
        ("do(action='Type', argument='do(1)', element=7)", Action("type", 7, "do(1)")),
        ('do("Click", None, "7")', Action("click", 7)),
        ('```\ndo(action="Search", argument="tea", element="2",)\n```', Action("search", 2, "tea")),
        ('do(action="Scroll Down")', Action("scroll", 0, "down")),
        ('do(action="Press Enter")\ndo(action="Wait")', Action("press", 0, "Enter")),
        ('exit(message="42")', Action("stop", 0, "42")),
        ('exit("N/A")', Action("stop", 0, "N/A")),
        ("exit()", Action("stop")),
        ("# done\ngo_backward()", Action("back")),
        ("go_forward()", Action("forward")),
        ('click button "No" [4]', Action("click", 4)),
        ('type textbox "" [5] kai ', Action("type", 5, "kai ")),
    ],
)
def test_published_forms_are_read(reply, action):
    assert parse_action(reply) == action


@pytest.mark.parametrize(
    "reply",
    [
        "do()",
        'do(action="Click")',
        'do(action="Fly", element="7")',
        'do(action="Click", element="7"',
        'do(action="Click" element="7")',
        'do(action="Click", element="7", element="8")',
        'do(action="Click", element=__import__("os"))',
        'do(action="Click", element="\u0667")',
        "go_backward(1)",
        "I would do(action=...)",
        'click button "No"',
        'click button "No" [4] now',
    ],
)
def test_other_replies_are_nothing(reply):
    assert parse_action(reply) is None


def test_elements_are_called_by_what_the_page_says():
    assert translate("click 4", "named", PAGE) == 'click button "No" [4]'
    assert translate("type 5 kai", "named", PAGE) == 'type textbox "" [5] kai'
    assert translate("select 6 a", "named", PAGE) == 'select option "a [4] b" [6] a'
    assert translate("click 99", "named", PAGE) == "click 99"
    assert translate("Up", "named", PAGE) == "Up"  # other worlds have actions of their own
    assert translate("stop", "webrl", PAGE) == "exit()"


def test_no_fuzzed_reply_crashes_and_what_is_read_can_be_written():
    replies = fuzzed_replies(ACTIONS, PAGE, trials(commit=10_000, nightly=100_000))
    assert sum(map(read_back, replies)) > 1000


def test_an_endless_reply_is_read_in_time():
    for piece in ("do(", 'do(action="', "\\", ",", " ", "a=", 'x"', "exit(" + " " * 50):
        assert parse_action((piece * 2000)[:2000]) is None
