"""A line per action with what it changes: what is read, and that only states are replaced."""

import pytest

transformers = pytest.importorskip("transformers")
from tests.unit.codecs.test_chat_tokens import small_tokenizer

from terrella.codecs.choose import TaggedCodecConfig
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.steps import BriefChatCodec, StepsCodec, change
from terrella.codecs.tagged import Span
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec
from terrella.core.types import Situation, Text
from terrella.models.characters import character_tokenizer

STATES = ("P00 ice\nG02", "P10 ice\nG02", "P10 ice\nG02", "P11 hole\nG02")
ACTIONS = ("Down", "Left", "Right")
REPLY = "Down > P10 ice\nLeft > same\nRight > P11 hole"
CODECS = {
    "characters": lambda: StepsCodec(InterleavedCodec(character_tokenizer(ACTIONS))),
    **{
        name: lambda name=name: StepsCodec(BriefChatCodec(small_tokenizer(name), max_actions=3))
        for name in ("chatml", "llama3", "zephyr")
    },
}


@pytest.fixture(params=CODECS)
def codec(request):
    return CODECS[request.param]()


def untrue_reply(codec):
    ids = codec.inner.write("Down > P22 ice\nLeft > P21 goal\nRight > same")
    return (*ids, codec.stop_ids[0])


def test_a_form_without_thoughts_refuses_to_think():
    with pytest.raises(ConfigError, match="thinking"):
        TaggedCodecConfig(form="steps", thinking="on")


def test_only_lines_that_change_are_stated():
    assert change("P00\nG02\nH11", "P01\nG02\nH11") == "P01"
    assert change("P00\nB01", "P01\nB02") == "P01; B02"
    assert change("P00", "P00") == "same" and change("P00", "P01\nG02") == "P01; G02"


def test_the_truth_is_well_formed_and_true(codec):
    ids, spans = codec.answer(ACTIONS, STATES)
    assert isinstance(codec, Codec) and codec.inner.text(ids[:-1]) == REPLY
    assert codec.well_formed(ids) and codec.read_actions(ids) == ACTIONS
    assert codec.true_states(ids, STATES).predictions == (True, True, True)
    assert codec.with_states(ids, STATES) == (ids, spans)
    stated = [token for token, span in zip(ids, spans, strict=True) if span is Span.PREDICTION]
    assert codec.inner.text(stated).replace(" ", "") == "P10icesameP11hole"


def test_true_changes_replace_the_models_and_its_actions_stay(codec):
    sampled = (
        *codec.inner.write("Down > P22 ice\nLeft > P21 goal\nRight > same"),
        codec.stop_ids[0],
    )
    assert codec.true_states(sampled, STATES).predictions == (False, False, False)
    fixed, _ = codec.with_states(sampled, STATES)
    assert codec.inner.text(fixed[:-1]) == REPLY
    assert codec.with_states(sampled, None)[0] == sampled


def test_the_published_order_states_the_change_first():
    inner = BriefChatCodec(small_tokenizer("chatml"), max_actions=3)
    codec = StepsCodec(inner, prediction_first=True)
    ids, spans = codec.answer(ACTIONS, STATES)
    assert inner.text(ids[:-1]) == "P10 ice > Down\nsame > Left\nP11 hole > Right"
    assert codec.well_formed(ids) and codec.read_actions(ids) == ACTIONS
    assert codec.true_states(ids, STATES).predictions == (True, True, True)
    assert codec.with_states(ids, STATES) == (ids, spans)
    untrue = (*inner.write("P22 ice > Down\nP10 ice > Left\nsame > Right"), codec.stop_ids[0])
    assert codec.true_states(untrue, STATES).predictions == (False, False, False)
    assert inner.text(codec.with_states(untrue, STATES)[0][:-1]) == inner.text(ids[:-1])
    assert inner.text(codec.with_states(untrue, STATES[:2])[0][:-1]) == "P10 ice > Down"


def test_lines_after_the_end_of_the_episode_are_left_out(codec):
    sampled = (
        *codec.inner.write("Down > P22 ice\nLeft > P21 goal\nRight > same"),
        codec.stop_ids[0],
    )
    fixed, spans = codec.with_states(sampled, STATES[:2])
    assert codec.inner.text(fixed[:-1]) == "Down > P10 ice" and fixed[-1] == codec.stop_ids[0]
    assert len(fixed) == len(spans)
    assert codec.true_states(sampled, STATES[:2]).predictions == (False,)


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        ("", ()),
        ("Down", ()),
        ("Down > ", ()),
        ("> P10 ice", ()),
        ("Down > P10 ice\nthen I go right", ("Down",)),
        ("Down > P10 ice\n\nLeft > same", ("Down",)),
    ],
)
def test_a_reply_is_read_up_to_its_first_broken_line(codec, reply, actions):
    ids = (*codec.inner.write(reply), codec.stop_ids[0])
    assert codec.read_actions(ids) == actions and not codec.well_formed(ids)
    assert not codec.well_formed(ids[:-1])


def test_a_reply_that_was_cut_off_does_nothing(codec):
    cut_off = codec.answer(ACTIONS, STATES)[0][:-1]
    assert codec.read_actions(cut_off) == () and not codec.well_formed(cut_off)
    assert codec.with_states(cut_off, STATES[:1] * 2)[0] == cut_off
    unmoved = (*codec.inner.write("Left > same"),)
    assert codec.true_states(unmoved, STATES[:1] * 2).predictions == (False,)


def test_a_reply_without_an_action_states_nothing_true(codec):
    ids = (*codec.inner.write("hello"), codec.stop_ids[0])
    assert codec.true_states(ids, STATES[:2]).predictions == (False,)


def test_the_prompt_is_the_state_alone():
    codec = CODECS["chatml"]()
    seen = Situation(
        instruction="Long rules.", observation=Text("P00"), actions=(), history=(), steps_left=3
    )
    prompt = codec.inner.tokenizer.decode(codec.ask_action(seen))
    assert "P00" in prompt and "rules" not in prompt
