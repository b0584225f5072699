"""Replies taken apart: which answer counts, in which forms, beside which thoughts."""

import time

import pytest

from terrella.codecs.answers import (
    MAX_REPLY_CHARS,
    Reply,
    answer_text,
    read_answer,
    read_prediction,
    split_reply,
)

UP = "<answer> Up </answer>"


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("b", False, Reply(None, "b", False)),
        ("<think> a </think>b", False, Reply("a", "b", False)),
        ("a </think>b", True, Reply("a", "b", False)),
        ("<think>\na </think>b", True, Reply("a", "b", False)),
        # The template's opening tag is not always part of the reply that a server returns.
        ("a </think>b", False, Reply("a", "b", False)),
        ("I close with </think> hm </think>b", True, Reply("I close with  hm", "b", False)),
        ("<think>a</think> x <think>c</think>b", False, Reply("a x c", "b", False)),
        ("<think> a", False, Reply("a", "", True)),
        ("a", True, Reply("a", "", True)),
        ("", True, Reply("", "", True)),
        ("<think>a</think> b <think>", False, Reply("a b", "", True)),
        ("<think></think>b", False, Reply("", "b", False)),
    ],
)
def test_a_reply_is_a_thought_and_a_rest(text, opened, expected):
    assert split_reply(text, opened=opened) == expected


ANSWERS = {
    UP: ("Up",),
    "<answer>Up || Left</answer>": ("Up", "Left"),
    f"<answer>Down</answer> no: {UP}": ("Up",),
    f"{UP} or <answer> Do": ("Up",),  # the last complete one
    f"{UP}</answer>": ("Up",),
    "<answer> <answer>Up</answer>": ("Up",),
    f"<think> I write <answer>Down</answer>, or </think>{UP}": ("Up",),
    f"<think> I begin with <answer> </think>{UP}": ("Up",),
    "<think> <answer>Down</answer>": (),  # an unfinished thought
    f"{UP}<think> so be it </think>": (),  # an answer before the thought
    f"<think> a </think>{UP}<think> hm": (),
    "The final answer is: Up || Left": ("Up", "Left"),
    "The final answer is: Down? No.\nThe final answer is:\n**Up**.": ("Up",),
    "**Final answer:** Up.": ("Up",),
    f"The final answer is: Down {UP}": ("Up",),  # our tags come first
    '{"answer": "Up"}': ("Up",),
    'So:\n```json\n{"answer": ["Up", "Left"]}\n```': ("Up", "Left"),
    '{"answer": 3}': (),
    '{"answer": "Up", "why": 1}': (),
    '{"answer": "\\ud800"}': (),
    '{"answer": "\\ud83d\\ude00"}': ("😀",),
    "Up": (),
    "<answer></answer>": (),
    "<answer> Up": (),
    "</answer> Up <answer>": (),
    "": (),
}


@pytest.mark.parametrize(("reply", "actions"), ANSWERS.items())
def test_actions_are_those_of_the_last_complete_answer_outside_thought(reply, actions):
    assert read_answer(reply) == actions


def test_a_thought_that_the_prompt_opened_holds_no_answer():
    assert read_answer(UP, opened=True) == ()
    assert read_answer(f"{UP} so </think> {UP.replace('Up', 'Left')}", opened=True) == ("Left",)
    assert read_prediction(UP, opened=True) is None


TEXTS = ["", "a", " a ", "\na\n", "#_\n_#"]
TEXTS += ["x </answer> y", "x <answer> y", "<think>", "</think>", "<\\answer>", "<\\\\/think> <"]


@pytest.mark.parametrize("text", TEXTS)
def test_every_prediction_is_read_back_with_any_white_space_around_it(text):
    assert read_prediction(answer_text(text)) == text
    assert read_prediction("well: " + answer_text(text, blank="\n") + " done") == text
    assert read_prediction(f"<think>{UP}</think>" + answer_text(text)) == text
    if text.strip():
        assert read_answer(answer_text(text)) == (text.strip(),)


@pytest.mark.parametrize("reply", ["", "<answer> a", "a </answer>", "</answer> a <answer>", "{}{}"])
def test_a_reply_without_both_tags_has_no_prediction(reply):
    assert read_prediction(reply) is None


STATE = '{"modified": [{"a": "}"}], "removed": []}'


@pytest.mark.parametrize(
    "reply",
    [
        STATE,
        f"<answer>\n{STATE}\n</answer>",
        f"<answer>\n```json\n{STATE}\n```\n</answer>",
        f"<answer>It is\n```\n{STATE}\n```\nnow.</answer>",
        f"<think>{{</think>It is\n{STATE}\nI think.",
        f"```json\n{{}}\n```\nno,\n```json\n{STATE}\n```",
        f"The final answer is: {STATE}",
        f"The final answer is: {{}}.\nThe final game state is:\n```json\n{STATE}\n```\nDone.",
    ],
)
def test_json_predictions_are_read_from_every_published_form(reply):
    read = read_prediction(reply, as_json=True)
    assert read is not None and read.strip() == STATE


def test_a_json_answer_may_be_a_text_or_a_value():
    assert read_prediction('{"answer": " #_ "}') == " #_ "
    assert read_prediction('{"answer": {"a": 1}}', as_json=True) == '{"a": 1}'
    assert read_prediction('{"a": 1}') is None  # where the prediction is no JSON


def test_a_code_block_in_a_tag_belongs_to_a_prediction_that_is_no_json():
    assert read_prediction("<answer>\n```\n#_\n```\n</answer>") == "```\n#_\n```"


def test_text_after_the_sentence_is_the_prediction():
    assert read_prediction("The final answer is:\n#_\n_#\n") == "#_\n_#"
    assert read_prediction("The final answer is: {not json}", as_json=True) == "{not json}"


@pytest.mark.parametrize(
    "piece",
    [
        *("<answer>", "</answer>", "<answer></answer>", "<think>", "</think>", "<\\\\\\\\"),
        *("{", "[", '{"a":', '{"answer": "', "```json\n", "```\n{"),
        *("final answer", "final answer is: "),
    ],
)
def test_hostile_replies_are_read_in_bounded_time(piece):
    reply = piece * (2_000_000 // len(piece))
    began = time.process_time()
    for as_json in (False, True):
        read_prediction(reply, as_json=as_json)
        read_prediction(reply + "</think>" + reply, as_json=as_json, opened=True)
    read_answer(reply)
    assert time.process_time() - began < 1.0


def test_only_the_end_of_a_very_long_reply_is_read():
    assert read_answer(UP + " " * MAX_REPLY_CHARS) == ()
    assert read_answer("<think>" + UP + "a" * MAX_REPLY_CHARS + UP) == ()  # still a thought
    assert read_answer("a" * MAX_REPLY_CHARS + UP) == ("Up",)
