"""Tags in a reply: what is read, and that replacing states changes only their tokens."""

import pytest

transformers = pytest.importorskip("transformers")
from tests.unit.codecs.test_chat_tokens import small_tokenizer

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TAG_TOKENS, Span, TaggedCodec, find_tag, tagged_reply_form
from terrella.core.protocols import Codec
from terrella.core.types import Situation, Text
from terrella.models.characters import character_tokenizer

CODECS = {
    "characters": lambda form: TaggedCodec(
        InterleavedCodec(character_tokenizer(("Up", *TAG_TOKENS))), form=form
    ),
    **{
        name: lambda form, name=name: TaggedCodec(
            ChatCodec(small_tokenizer(name), max_actions=3, form=tagged_reply_form(form)),
            form=form,
            blank="\n",
        )
        for name in ("chatml", "llama3", "zephyr")
    },
}
# The second state has the group references of a regular expression.
STATES = ("P_\n√G", "1 \\1 \\g<0>\n_P")


def text_tokens(ids, spans):
    return [token for token, span in zip(ids, spans, strict=True) if span is Span.TEXT]


@pytest.fixture(params=CODECS)
def make(request):
    return CODECS[request.param]


@pytest.mark.parametrize("form", ["worldmodel", "worldmodel_forward"])
def test_replacing_states_changes_exactly_their_spans(make, form):
    codec = make(form)
    ids, spans = codec.answer(("Up", "Up"), ("P_\n_G", "__\nPG"))
    changed, kinds = codec.with_states(ids, STATES)
    assert isinstance(codec, Codec) and codec.read_states(changed) == STATES
    assert codec.read_actions(changed) == ("Up", "Up") == codec.read_actions(ids)
    assert text_tokens(ids, spans) == text_tokens(changed, kinds)
    again, same = codec.with_states(ids, ("P_\n_G", "__\nPG"))
    assert (again, same) == (ids, spans)


@pytest.mark.parametrize("form", ["worldmodel", "worldmodel_forward"])
def test_sampled_tokens_outside_the_tags_stay_as_sampled(make, form):
    """A reply that was tokenized differently (one character at a time) keeps its other ids."""
    codec = make(form)
    text = codec.inner.text(codec.answer(("Up",), ("P_\n_G", "__\nPG"))[0][:-1])
    text = text.replace("<answer>", "hm, I go √ then <answer>")
    sampled = [token for character in text for token in codec.inner.write(character)]
    changed, kinds = codec.with_states(sampled, STATES)
    unchanged, sampled_kinds = codec.with_states(sampled, None)
    assert list(unchanged) == sampled
    assert text_tokens(changed, kinds) == text_tokens(sampled, sampled_kinds)
    assert codec.read_states(changed) == STATES


def test_a_token_across_the_edge_of_a_tag_is_tokenized_again_as_two():
    class Greedy(InterleavedCodec):
        """Merges `>P` into one token, as a byte-pair tokenizer would."""

    codec = TaggedCodec(Greedy(character_tokenizer((">P", "Up"))), form="worldmodel")
    reply = codec.inner.write(
        "<observation>P_</observation><prediction>P_</prediction><answer>Up</answer>"
    )
    assert ">P" in [codec.inner.text([token]) for token in reply]
    changed, kinds = codec.with_states(reply, ("GG", "G"))
    assert (
        codec.inner.text(changed)
        == "<observation>GG</observation><prediction>G</prediction><answer>Up</answer>"
    )
    states = [
        codec.inner.text([token])
        for token, kind in zip(changed, kinds, strict=True)
        if kind is not Span.TEXT
    ]
    assert "".join(states) == "GGG"


def test_a_reply_without_tags_passes_unchanged_and_is_not_well_formed(make):
    codec = make("worldmodel")
    reply = (*codec.inner.write("I do not know <answer>Up</answer>"), codec.stop_ids[0])
    assert codec.with_states(reply, STATES)[0] == reply and not codec.well_formed(reply)
    assert codec.read_states(reply) == (None, None) and codec.read_actions(reply) == ("Up",)
    whole, _ = codec.answer(("Up",), ("P", "G"))
    assert codec.well_formed(whole) and not codec.well_formed(whole[:-1])


def test_the_order_of_the_tags_is_part_of_the_form(make):
    ids, _ = make("worldmodel").answer(("Up",), ("P", "G"))
    assert not make("worldmodel_forward").well_formed(ids)


def test_the_form_is_in_the_prompt_of_a_chat_model():
    codec = CODECS["chatml"]("worldmodel_forward")
    situation = Situation(
        instruction="Go.", observation=Text("P_"), actions=("Up",), history=(), steps_left=3
    )
    prompt = codec.inner.tokenizer.decode(list(codec.ask_action(situation)))
    assert prompt.index("<observation>") < prompt.index("<answer>") < prompt.index("<prediction>")


@pytest.mark.parametrize(
    ("text", "content"),
    [("<a>x</a><a>y</a>", "x"), ("</a><a>x</a>", "x"), ("<a>x", None), ("", None)],
)
def test_the_first_complete_tag_counts(text, content):
    position = find_tag(text, "a")
    assert (text[position.start : position.end] if position else None) == content


def test_thoughts_are_asked_for_unless_they_are_off():
    assert "<think>" in tagged_reply_form("worldmodel")
    assert tagged_reply_form("worldmodel", thinks=False) == (
        "<observation> the current state </observation>"
        "<prediction> the state after your actions </prediction><answer> your actions </answer>"
    )
    assert tagged_reply_form("plain", thinks=False) == "<answer> your actions </answer>"
