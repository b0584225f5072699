"""MetaMathQA: exact and safe comparison, rephrasings in one split, no answers in any view."""

import json
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.config import dump, rebuild
from terrella.core.episode import play
from terrella.core.errors import WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Split, State, Text
from terrella.policies.basic import Expert, Random
from terrella.worlds import find_world, world_config
from terrella.worlds.countdown.parser import parse
from terrella.worlds.metamathqa import MetaMathQA
from terrella.worlds.metamathqa.answers import read_number, same_answer
from terrella.worlds.metamathqa.table import SAMPLE
from terrella.worlds.metamathqa.views import AnswerAttempt


def row(query="How many?", response="Thus. The answer is: 5", original="How many?"):
    return {
        "query": query,
        "response": response,
        "original_question": original,
        "type": "GSM_Rephrased",
    }


def write(path, rows, lines=True):
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8")
    return path


def many(answer=lambda n: n):
    """Rows for sixty questions with three wordings each; `answer` gives the true answer."""
    return [
        row(f"Wording {k} of {n}?", f"So it is. The answer is: {answer(n)}", f"Original {n}?")
        for n in range(60)
        for k in range(3)
    ]


@pytest.mark.parametrize(
    ("reply", "truth"),
    [
        ("5", "5"),
        ("$5", "5"),
        ("5.0", "5"),
        ("+5", "5"),
        ("5.", "5"),
        ("1,000", "1000"),
        ("1,234,567.50", "1234567.5"),
        ("3/4", "0.75"),
        ("\\frac{3}{4}", "0.75"),
        ("$\\dfrac{3}{4}$", "3/4"),
        ("\\frac34", "3/4"),
        ("6 / 8", "3/4"),
        ("-\\frac{1}{2}", "-.5"),
        ("\\frac{-1}{2}", "-0.5"),
        ("50%", "50"),
        ("50\\%", "50"),
        ("\\boxed{7}", "7"),
        ("We add. The answer is: 7", "7"),
        ("the answer is 7.", "7"),
        ("x + 1", "X+1"),
        ("\\text{East}", "east"),
    ],
)
def test_the_same_answer_in_another_form_is_right(reply, truth):
    assert same_answer(reply, truth)
    assert same_answer(
        truth,
        reply.removeprefix("We add. ")
        .removeprefix("The answer is: ")
        .removeprefix("the answer is "),
    )


@pytest.mark.parametrize(
    ("reply", "truth"),
    [
        ("", "5"),
        ("6", "5"),
        ("-5", "5"),
        ("5 6", "5"),
        ("5 or 6", "5"),
        ("5, 6", "56"),
        ("1 2", "12"),
        ("12,34", "1234"),
        ("The answer is: 5. The answer is: 6", "5"),
        ("50%", "0.5"),
        ("1/3", "0.33"),
        ("5e0", "5"),
        ("0x5", "5"),
        ("\u0665", "5"),
        ("5/1/1", "5"),
        ("10/2+0", "5"),
        ("1/0", "0"),
        (".", "0"),
        ("-", "0"),
        ("$", "5"),
        ("five", "5"),
        ("4 + 1", "5"),
        ("5" * 5000, "5"),
        ("0" * 5000 + "5", "5"),
        ("__import__('os')", "5"),
        ("\ud800", "5"),
    ],
)
def test_other_answers_are_wrong(reply, truth):
    assert not same_answer(reply, truth)


def test_20000_random_replies_never_raise():
    rng = random.Random(0)
    numbers = 0
    alphabet = (
        "0123456789" * 3 + "+-/.,$% " * 3 + "\\{}frac()eE_xtboed\u00b2\u0663\u2212\n\x00\ud800"
    )
    for _ in range(20_000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(10)))
        same_answer(text, "5")
        same_answer("5", text)
        numbers += isinstance(read_number(text), Fraction)
    assert numbers > 100


def test_the_built_in_sample_is_correct_and_is_named_in_info():
    for line in SAMPLE.read_text(encoding="utf-8").splitlines():
        working, _, answer = json.loads(line)["response"].partition(". The answer is: ")
        left, _, right = working.partition(" = ")
        assert parse(left).value == read_number(right) == read_number(answer), line
    world = MetaMathQA.Config().build()
    assert world.reset(seed=0)[1]["source"] == "made sample"
    assert world.table.skipped == 0


def test_the_built_in_sample_fills_every_split_and_keeps_rephrasings_together():
    world = MetaMathQA.Config().build()
    originals = {world.table.original_of(question) for question in world.table.questions}
    assert len(originals) >= 40
    assert len(world.table.questions) > len(originals)
    assert {split_of(instance_id(original)) for original in originals} == set(Split)
    for split in Split:
        world.reset(seed=0, options={"split": split})


@pytest.mark.parametrize("lines", [True, False])
def test_a_local_file_is_read_and_split_by_original_question(tmp_path, lines):
    world = MetaMathQA.Config(path=write(tmp_path / "data.json", many(), lines)).build()
    assert len(world.table.questions) == 180
    seen = {split: set() for split in Split}
    instances = {}
    for split, originals in seen.items():
        for seed in range(120):
            info = world.reset(seed=seed, options={"split": split})[1]
            original = world.table.original_of(world.state.question)
            originals.add(original)
            assert instances.setdefault(original, info["instance"]) == info["instance"]
    assert all(originals for originals in seen.values())
    assert all(not a & b for a, b in pairwise([*seen.values(), seen[Split.TRAIN]]))
    assert info["source"].endswith("data.json")


def test_what_a_model_sees_does_not_depend_on_the_answers(tmp_path):
    worlds = []
    for shift in (0, 500):
        rows = many(lambda n, shift=shift: 1000 + shift + n)
        path = write(tmp_path / f"{shift}.jsonl", rows)
        worlds.append(MetaMathQA.Config(path=path).build())
    for seed in range(20):
        seen = []
        for world in worlds:
            first = world.reset(seed=seed)[0]
            seen.append([first, world.step("1")[0], world.step("2")[0], world.instruction])
            assert world.table.answer_of(world.state.question) not in str(seen[-1])
        assert seen[0] == seen[1]


def test_each_wrong_try_halves_the_reward_and_the_last_one_ends_it():
    world = MetaMathQA.Config().build()
    for wrong in range(5):
        world.reset(seed=0)
        assert [world.step("no idea")[1] for _ in range(wrong)] == [0.0] * wrong
        _, reward, terminated, _, info = world.step(world.expert(world.state, 1, None))
        assert (reward, terminated, info["success"]) == (0.5**wrong, True, True)
    world.reset(seed=0)
    ends = [world.step("no idea")[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(True, False)]


def test_one_try_ends_by_the_rules_not_by_truncation():
    world = MetaMathQA.Config(max_steps=1).build()
    world.reset(seed=0)
    assert world.step("no idea")[2:4] == (True, False)


def test_the_expert_is_right_and_the_exact_random_value_agrees_with_playing():
    world = MetaMathQA.Config().build()
    n = 2000
    assert all(play(world, Expert.Config().build(), seed=seed).success for seed in range(200))
    world.reset(seed=0)
    exact = world.solver.random_value(world.state, 5)
    assert exact == pytest.approx(1 - 0.99**5)
    wins = sum(play(world, Random.Config().build(), seed=0, noise_seed=k).success for k in range(n))
    assert abs(wins / n - exact) < 4 * (exact * (1 - exact) / n) ** 0.5


def test_same_seed_same_episode_and_noise_does_not_change_the_question():
    world = MetaMathQA.Config().build()
    episode = play(world, Random.Config().build(), seed=4)
    assert episode == play(world, Random.Config().build(), seed=4)
    assert episode.first == play(world, Random.Config().build(), seed=4, noise_seed=9).first


def test_every_attempt_reads_back_and_nothing_else_does():
    world = MetaMathQA.Config().build()
    view, question = world.view, world.table.questions[0]
    attempts = [
        AnswerAttempt(q, k, solved)
        for q in world.table.questions
        for k in range(5)
        for solved in (False, True)
    ]
    for attempt in (*attempts, AnswerAttempt(question, 5, False)):
        assert view.read(view.show(attempt)) == attempt
    bad = [
        view.show(AnswerAttempt("Not a question of the table?")),
        view.show(AnswerAttempt(question, 6)),
        Text("{}"),
        State("{"),
        view.show(AnswerAttempt(question, -1)),
        view.show(AnswerAttempt(question, 5, True)),
        State("[" * 100_000),
        State.of(None),
        State.of({"question": question, "solved": 0, "wrong_tries": 0}),
    ]
    assert [view.read(observation) for observation in bad] == [None] * len(bad)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_can_be_answered_and_read(text):
    world = MetaMathQA.Config().build()
    assert world.view.read(State(text)) is None
    world.reset(seed=1)
    assert world.step(text)[1] in (0.0, 1.0)


def test_a_missing_file_fails_when_the_world_is_built_and_says_where_to_get_it(tmp_path):
    with pytest.raises(WorldError, match=r"(?s)nowhere\.json.*MetaMathQA-395K\.json.*--set path="):
        MetaMathQA.Config(path=tmp_path / "nowhere.json").build()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no row"),
        (b"[]", "has no row"),
        (b"{oops", "cannot be read after row 0"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"query": "a"}', "row 1: query, response and original_question must be texts"),
        (b"[1, 2]", "row 1: query, response and original_question must be texts"),
        (b"[" * 100_000, "cannot be read"),
        (json.dumps(row(query="\ud800")).encode(), "cannot be read"),
        (json.dumps(row(response="5")).encode(), "has no row"),
    ],
)
def test_a_broken_file_fails_with_its_name(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(WorldError, match=message) as caught:
        MetaMathQA.Config(path=path).build()
    assert "broken.json" in str(caught.value)


def test_repeated_questions_and_rows_without_an_answer_are_left_out_and_counted(tmp_path):
    rows = [
        row(),
        row(response="Otherwise. The answer is: 5"),
        row("Why?", "Because."),
        row("What?", "The answer is: $"),
    ]
    table = MetaMathQA.Config(path=write(tmp_path / "data.jsonl", rows)).build().table
    assert (table.questions, table.skipped) == (("How many?",), 3)


def test_a_file_that_changed_is_read_again(tmp_path):
    path = write(tmp_path / "data.jsonl", [row()])
    assert MetaMathQA.Config(path=path).build().table.answer_of("How many?") == "5"
    write(path, [row(response="No. The answer is: 66")])
    assert MetaMathQA.Config(path=path).build().table.answer_of("How many?") == "66"


def test_the_config_survives_disk_and_the_command_line(tmp_path):
    config = world_config("metamathqa", [f"path={tmp_path / 'data.jsonl'}"])
    assert rebuild(json.loads(json.dumps(dump(config)))) == config
    assert world_config("metamathqa", ["path=none"]).path is None


def test_gymnasium_accepts_it_and_discovery_finds_it():
    check_env(MetaMathQA.Config().build(), skip_render_check=True)
    assert find_world("metamathqa") is MetaMathQA
