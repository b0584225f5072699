"""The interleaved format: marked spans, one stop token, nothing read from an unfinished reply."""

import pytest

pytest.importorskip("transformers")
from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.protocols import Codec
from terrella.core.types import Situation, State, Text
from terrella.models.characters import character_tokenizer

SITUATION = Situation(instruction="", observation=Text("#P"), actions=("Up",), history=(), steps_left=3)


@pytest.fixture(scope="module")
def codec():
    return InterleavedCodec(character_tokenizer(words=("Up",)))


def test_questions_are_open_spans(codec):
    assert isinstance(codec, Codec)
    text = codec.tokenizer.decode
    assert text(codec.ask_action(SITUATION)) == "<obs>#P<end><act>"
    assert text(codec.ask_observation(SITUATION, "Up")) == "<obs>#P<end><act>Up<end><obs>"


def test_a_cut_off_reply_is_ended_by_the_world(codec):
    assert codec.world_turn(SITUATION) == codec.ask_action(SITUATION)
    assert codec.world_turn(SITUATION, cut_off=True) == (*codec.stop_ids, *codec.ask_action(SITUATION))


def test_answers_are_read_back_and_unfinished_ones_are_not(codec):
    actions = codec.answer_action(("Up", "Up"))
    assert codec.read_actions(actions) == ("Up", "Up") and codec.read_actions(actions[:-1]) == ()
    for observation in (Text("#_P"), State.of({"a": 1})):
        answer = codec.answer_observation(observation)
        assert codec.read_observation(answer, like=observation) == observation
        assert codec.read_observation(answer[:-1], like=observation) is None
