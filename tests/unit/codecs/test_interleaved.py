"""The interleaved format: tagged spans, one stop token, nothing read from an unfinished reply."""

import pytest

pytest.importorskip("transformers")
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TaggedCodec
from terrella.core.protocols import Codec
from terrella.core.types import Situation, State, Text, Tree
from terrella.models.characters import character_tokenizer

SITUATION = Situation(
    instruction="", observation=Text("#P"), actions=("Up",), history=(), steps_left=3
)


@pytest.fixture(scope="module")
def codec():
    return InterleavedCodec(character_tokenizer(vocabulary=("Up",)))


def test_prompts_end_with_an_open_span(codec):
    assert isinstance(codec, Codec)
    text = codec.tokenizer.decode
    assert text(codec.ask_action(SITUATION)) == "<obs>#P<end><act>"
    assert text(codec.ask_observation(SITUATION, "Up")) == "<obs>#P<end><act>Up<end><obs>"


def test_a_cut_off_reply_is_ended_by_the_world(codec):
    assert codec.world_turn(SITUATION) == codec.ask_action(SITUATION)
    assert codec.world_turn(SITUATION, cut_off=True) == (
        *codec.stop_ids,
        *codec.ask_action(SITUATION),
    )


def test_replies_are_read_back_and_unfinished_ones_are_not(codec):
    actions = codec.answer_action(("Up", "Up"))
    assert codec.read_actions(actions) == ("Up", "Up") and codec.read_actions(actions[:-1]) == ()
    for observation in (Text("#_P"), State.of({"a": 1})):
        reply = codec.answer_observation(observation)
        assert codec.read_observation(reply, like=observation) == observation
        assert codec.read_observation(reply[:-1], like=observation) is None


def test_a_prediction_has_the_kind_of_the_observation_before_it(codec):
    for observation in (Text("#_P"), State.of({"a": 1}), Tree('[1] button "OK"')):
        reply = codec.answer_observation(observation)
        for reader in (codec, TaggedCodec(codec, form="worldmodel")):
            assert reader.read_observation(reply, like=observation) == observation
        situation = Situation(
            instruction="", observation=observation, actions=(), history=(), steps_left=1
        )
        assert codec.read_rollout(situation, [reply]) == [observation]
