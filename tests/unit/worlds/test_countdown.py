"""Countdown: a strict parser, solvable instances, and an exact value of random play."""

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.instances import instance_id
from terrella.core.types import Split, State, Text
from terrella.policies.basic import Expert, Random
from terrella.worlds import find_world, world_config
from terrella.worlds.countdown import Countdown
from terrella.worlds.countdown.parser import MAX_CHARS, MAX_DEPTH, MAX_TOKENS, parse
from terrella.worlds.countdown.search import all_expressions, find_expression
from terrella.worlds.countdown.views import Round, TextView, answered


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(25 - 5) * 3", 60),
        ("25-5*3", 10),
        ("2 - 3 - 4", -5),
        ("8/(3-8/3)", 24),
        ("7 / 2", Fraction(7, 2)),
        (" ( ( 4 ) )\n", 4),
        ("12/4/3", 1),
        ("0 * 5", 0),
    ],
)
def test_arithmetic_is_exact_and_follows_the_usual_precedence(text, value):
    assert parse(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "()",
        "5 +",
        "* 5",
        "-5",
        "+5",
        "5 - -3",
        "3 * (-2)",
        "2 ** 3",
        "7 // 2",
        "7 % 2",
        "2 ^ 3",
        "5(3)",
        "5 3",
        "(5",
        "5)",
        ")5(",
        "1.5",
        "1e3",
        "0x1F",
        "1_000",
        "007",
        "12345",
        "9" * 400,
        "5 / 0",
        "5 / (3 - 3)",
        "\u0663+1",
        "\uff13+1",
        "\u00b2+1",
        "2 \u00d7 3",
        "6 \u00f7 2",
        "3 \u2212 1",
        "a",
        "25 - 5 = 20",
        "1 + 2 # three",
        "1 + 2\x00",
        "1\u00a0+ 2",
        "1,000",
        "__import__('os')",
        "(lambda: 5)()",
        "5 if 1 else 2",
        "[5]",
        "{5}",
        "True",
        "None",
        "'5'",
        "5;6",
        "5\\\n+6",
        "\ud800",
        "1 + 1" * 200,
    ],
)
def test_anything_else_is_unreadable_and_ends_the_episode(text):
    assert parse(text) is None
    world = Countdown.Config().build()
    world.reset(seed=0)
    _, reward, terminated, truncated, info = world.step(text)
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert world.state.verdict == "unreadable"
    assert world.view.read(world.view.show(world.state)) == world.state


def test_length_tokens_and_depth_are_bounded():
    assert parse("(" * MAX_DEPTH + "5" + ")" * MAX_DEPTH) is not None
    assert parse("(" * (MAX_DEPTH + 1) + "5" + ")" * (MAX_DEPTH + 1)) is None
    assert parse("+".join(["1"] * (MAX_TOKENS // 2))) is not None
    assert parse("+".join(["1"] * (MAX_TOKENS // 2 + 1))) is None
    assert parse(" " * MAX_CHARS + "1") is None
    assert parse("(" * 400_000) is None


def test_20000_random_strings_never_raise_and_normalise_stably():
    rng = random.Random(0)
    readable = 0
    alphabet = (
        "0123456789" * 3
        + "+-*/()" * 4
        + " \t\n.,eE_xab%^=#\\'\"[]{}\u00b2\u0663\u2212\u00d7\x00\ud800"
    )
    for _ in range(20_000):
        expression = parse("".join(rng.choices(alphabet, k=rng.randrange(12))))
        if expression is not None:
            readable += 1
            assert parse(expression.text) == expression
    assert readable > 100  # otherwise the fuzz would only test the tokenizer


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_an_answer_that_ends_the_round(text):
    state = answered(Round((3, 5, 25), 60), text)
    assert state.verdict in ("unreadable", "wrong numbers", "wrong value")
    assert set(state.answer) <= set("0123456789+-*/() ") or state.answer == "unreadable"
    assert TextView().read(TextView().show(state)) == state


@pytest.mark.parametrize(
    ("text", "verdict", "reward"),
    [
        ("(25 - 5) * 3", "right", 1.0),
        ("3*(25-5)", "right", 1.0),
        ("60", "wrong numbers", 0.0),
        ("25 + 5 * 3", "wrong value", 0.0),
        ("(25 - 5) * 3 * (3 / 3)", "wrong numbers", 0.0),
        ("25 + 25 + 5 + 5", "wrong numbers", 0.0),
        ("hello", "unreadable", 0.0),
    ],
)
def test_each_number_must_be_used_exactly_once(text, verdict, reward):
    (outcome,) = Countdown.Config().build().truth(Round((3, 5, 25), 60), text)
    assert (outcome.state.verdict, outcome.reward, outcome.terminated) == (verdict, reward, True)


def test_a_repeated_number_is_used_twice():
    state = Round((5, 5, 3), 28)
    assert answered(state, "5 * 5 + 3").verdict == "right"
    assert answered(state, "5 * 3 + 13").verdict == "wrong numbers"


def test_the_number_of_proposals_agrees_with_counting():
    # 6 ways to combine two numbers, 3 ways to choose the first pair: 6 * 6 * 3
    assert len(all_expressions((2, 7, 31))) == 108
    assert len(all_expressions((2, 7, 31, 89))) == 3240
    for text in all_expressions((4, 4, 6)):  # equal numbers: divisions by 4 - 4 are left out
        assert sorted(parse(text).numbers) == [4, 4, 6]
        assert parse(text).text == text


def test_the_search_finds_exactly_the_reachable_targets():
    reached = {parse(text).value for text in all_expressions((2, 7, 9, 9))}
    for target in range(1, 200):
        found = find_expression((2, 7, 9, 9), target)
        assert (found is not None) == (target in reached)
        assert found is None or answered(Round((2, 7, 9, 9), target), found).verdict == "right"


@pytest.mark.parametrize("spec", ["countdown", "countdown:three", "countdown:four"])
def test_the_expert_solves_every_instance(spec):
    world = world_config(spec).build()
    for seed in range(200):
        assert play(world, Expert.Config().build(), seed=seed).success
        assert 1 <= world.state.target <= 999
        assert world.config.min_numbers <= len(world.state.numbers) <= world.config.max_numbers


def test_the_exact_random_value_agrees_with_the_proposals_and_with_playing():
    world = Countdown.Config(max_numbers=3, highest=9).build()
    n = 3000
    world.reset(seed=1)
    start = world.state
    exact = world.solver.random_value(start, 1)
    right = [parse(text).value == start.target for text in world.proposals(start)]
    assert any(right)
    assert exact == pytest.approx(sum(right) / len(right))
    wins = sum(play(world, Random.Config().build(), seed=1, noise_seed=k).success for k in range(n))
    assert abs(wins / n - exact) < 4 * (exact * (1 - exact) / n) ** 0.5


def test_rounds_of_random_play_read_back():
    world = Countdown.Config().build()
    reader = TextView()
    for seed in range(40):
        for policy in (Random.Config().build(), Expert.Config().build()):
            episode = play(world, policy, seed=seed)
            assert reader.show(reader.read(episode.first)) == episode.first
            assert reader.read(episode.transitions[-1].next_observation) == world.state


def test_other_texts_are_not_read():
    reader = TextView()
    text = reader.show(answered(Round((3, 5, 25), 60), "(25 - 5) * 3")).text
    bad = [
        "",
        text + "\n",
        text.replace("Value: 60", "Value: 61"),
        text.replace("right", "wrong value"),
        text.replace("Target: 60", "Target: 060"),
        text.replace("3, 5", "3,5"),
        text.replace("3, 5", "٣, 5"),
        text.replace("Answer", "Reply"),
        "Numbers: 1, 2, 3, 4, 5\nTarget: 6\nAnswer: none\nValue: none\nVerdict: open",
        text.replace("(25 - 5) * 3", "(25-5)*3"),
        text.replace("(25 - 5) * 3", "hello"),
    ]
    assert [reader.read(Text(other)) for other in bad] == [None] * len(bad)
    assert reader.read(State.of({})) is None


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="Numbers: Targe\n0123, Answeropn", max_size=80))
def test_reading_never_raises(text):
    state = TextView().read(Text(text))
    assert state is None or TextView().show(state) == Text(text)


def test_numbers_in_another_order_are_the_same_instance():
    world = Countdown.Config().build()
    first, second = Round((3, 5, 25), 60), Round((25, 3, 5), 60)
    assert instance_id(world.key(first)) == instance_id(world.key(second))
    seen = {split: set() for split in Split}
    for split, keys in seen.items():
        for seed in range(150):
            world.reset(seed=seed, options={"split": split})
            keys.add((*sorted(world.state.numbers), world.state.target))
    assert all(not a & b for a, b in pairwise([*seen.values(), seen[Split.TRAIN]]))


def test_same_seed_same_episode_and_no_global_generator():
    world = Countdown.Config().build()
    before = random.getstate(), np.random.get_state()[1].tolist()
    episode = play(world, Random.Config().build(), seed=4)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    assert episode == play(world, Random.Config().build(), seed=4)
    assert episode.first == play(world, Random.Config().build(), seed=4, noise_seed=9).first


def test_gymnasium_accepts_it_and_discovery_finds_it():
    check_env(Countdown.Config().build(), skip_render_check=True)
    assert find_world("countdown") is Countdown


@pytest.mark.parametrize(
    "bad",
    [
        {"min_numbers": 1},
        {"max_numbers": 5},
        {"min_numbers": 4, "max_numbers": 3},
        {"highest": 0},
        {"max_target": 10_000},
    ],
)
def test_ranges_that_cannot_be_drawn_are_rejected(bad):
    with pytest.raises(ConfigError):
        Countdown.Config(**bad)
