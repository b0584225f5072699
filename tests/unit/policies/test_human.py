"""Playing by hand: how typed text becomes an action."""

import io

import pytest
from rich.console import Console

from terrella.commands.play import play_by_hand
from terrella.policies.human import choose
from terrella.worlds.counter import Counter


def keyboard(*lines):
    """A replacement of `input` that types these lines and then closes the input."""
    remaining = iter(lines)

    def ask(prompt):
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    return ask


def screen_of_play(*lines, seed=0):
    screen = io.StringIO()
    config = Counter.Config(max_steps=3)
    play_by_hand(config, seed=seed, console=Console(file=screen), ask=keyboard(*lines))
    return screen.getvalue()


def test_a_person_plays_to_the_end():
    screen = screen_of_play("up", "1", "d")
    assert screen.count("reward 0") >= 2 and "no success after 3 steps" in screen


def test_a_typo_is_asked_again_and_leaving_is_not_an_error():
    screen = screen_of_play("sideways", "q")
    assert "no action 'sideways'" in screen and "left" in screen
    assert "left" in screen_of_play()  # end of input


@pytest.mark.parametrize(
    ("typed", "action"),
    [
        ("Up", "Up"),
        ("u", "Up"),
        ("\x1b[A", "Up"),
        ("\x1b[D", None),
        ("2", "Down"),
        ("d", None),
        ("0", None),
        ("9", None),
        ("", None),
        ("²", None),
    ],
)
def test_names_numbers_prefixes_and_arrows_choose_an_action(typed, action):
    assert choose(typed, ("Up", "Down", "Dig")) == action


def test_free_text_worlds_take_any_text_but_the_empty_one():
    assert choose("1 + 2", ()) == "1 + 2" and choose("", ()) is None
