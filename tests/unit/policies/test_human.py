import io

import pytest
from rich.console import Console

from terrella.policies.human import choose
from terrella.stages.play import play_by_hand
from terrella.worlds.counter import Counter


def at_the_keyboard(*lines):
    typed = iter(lines)
    prompts = []

    def ask(prompt):
        prompts.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    return ask, prompts


def played(*lines, seed=0):
    screen = io.StringIO()
    ask, _ = at_the_keyboard(*lines)
    play_by_hand(Counter.Config(max_steps=3).build().config, seed=seed, console=Console(file=screen), ask=ask)
    return screen.getvalue()


def test_a_person_plays_to_the_end():
    screen = played("up", "1", "d")
    assert screen.count("reward 0") >= 2 and "no success after 3 steps" in screen


def test_a_typo_is_asked_again_and_leaving_is_no_error():
    screen = played("sideways", "q")
    assert "no action 'sideways'" in screen and "left" in screen
    assert "left" in played()  # end of input


@pytest.mark.parametrize(
    ("typed", "meant"),
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
def test_names_numbers_and_beginnings(typed, meant):
    assert choose(typed, ("Up", "Down", "Dig")) == meant


def test_free_text_worlds_take_any_text_but_none():
    assert choose("1 + 2", ()) == "1 + 2" and choose("", ()) is None
