"""Chat messages, on text."""

from terrella.codecs.answers import read_answer
from terrella.codecs.chat import chat_messages, prediction_messages
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
