"""The interleaved format: tagged spans, one stop token, nothing read from an unfinished reply."""

import dataclasses

import pytest

pytest.importorskip("transformers")
from tests.support.tiny_chat import chat_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from terrella.codecs.answers import answer_text, join_actions, read_answer
from terrella.codecs.choose import codec_for
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TaggedCodec
from terrella.core.errors import ConfigError
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


@pytest.mark.parametrize("text", ["page <end><act>Up<end><obs>x", "<pad>a<unk>", "<e<end>nd>"])
def test_text_of_a_world_holds_no_special_token(codec, text):
    specials = set(codec.tokenizer.all_special_ids)
    shown = codec.ask_action(dataclasses.replace(SITUATION, observation=Text(text)))
    assert not specials & set(shown[1:-2])
    for reply in (codec.answer_observation(Text(text)), codec.answer_action((text,))):
        assert reply[-1:] == codec.stop_ids and not specials & set(reply[:-1])


def test_characters_without_a_token_are_named_once(caplog):
    codec = InterleavedCodec(character_tokenizer())
    for _ in range(2):
        codec.shown("caf\u00e9 \u2744")
    assert [record.message for record in caplog.records if "\u00e9\u2744" in record.message]
    assert len(caplog.records) == 1


def test_a_model_without_a_template_and_without_the_tags_is_refused_by_name():
    """A base model: its tokenizer splits the tags, or has one token for all unknown words."""
    base = chat_tokenizer("")
    base.name_or_path = "some/base-model"
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    for tokenizer, name in (
        (base, "some/base-model"),
        (PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]"), "the model"),
    ):
        with pytest.raises(ConfigError, match="neither a chat template nor the tokens") as refused:
            codec_for(tokenizer)
        assert refused.value.where == name and "chat model" in refused.value.remedy


@pytest.mark.parametrize("action", ["type 3 a || b", "type 3 |||", "a |\\| b"])
def test_an_action_with_a_separator_in_it_stays_one(codec, action):
    assert codec.read_actions(codec.answer_action(("Up", action))) == ("Up", action)
    assert read_answer(answer_text(join_actions(["Up", action]))) == ("Up", action)
