"""Chat messages and the parser of replies, on text."""

import pytest

from terrella.codecs.chat import (
    answer_text,
    chat_messages,
    prediction_messages,
    read_answer,
    read_prediction,
)
from terrella.core.types import Situation, Text, Transition


def situation(history=()):
    return Situation(
        instruction="Rules.", observation=Text("b"), actions=("Up",), history=history, steps_left=3
    )


def test_a_conversation_has_a_turn_per_observation_and_per_action():
    step = Transition(observation=Text("a"), action="Up", next_observation=Text("b"), reward=0.0)
    roles = [message["role"] for message in chat_messages(situation((step,)))]
    assert roles == ["system", "user", "assistant", "user"]
    first, reply, last = (message["content"] for message in chat_messages(situation((step,)))[1:])
    assert "You have 4 actions left" in first and "You have 3 actions left" in last
    assert read_answer(reply) == ("Up",)


def test_a_prediction_prompt_has_the_state_and_the_action():
    system, user = prediction_messages(situation(), "Up")
    assert system["content"].startswith("Rules.") and user["content"] == "State:\nb\nAction: Up"


@pytest.mark.parametrize("text", ["", "a", " a ", "\na\n", "x </answer> y", "#_\n_#"])
def test_a_prediction_is_read_back_with_any_white_space_around_it(text):
    assert read_prediction(answer_text(text)) == text
    assert read_prediction("well: " + answer_text(text, blank="\n") + " done") == text


@pytest.mark.parametrize("reply", ["", "<answer> a", "a </answer>", "</answer> a <answer>"])
def test_a_reply_without_both_tags_has_no_prediction(reply):
    assert read_prediction(reply) is None
