"""Chat models that think: what the prompt asks for, and what canonical replies hold."""

import dataclasses

import pytest

pytest.importorskip("transformers")
from tests.support.chat_templates import TEMPLATES, THINKERS, chat_tokenizer

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.choose import CodecConfig, TaggedCodecConfig, sft_targets
from terrella.codecs.tagged import TaggedCodec
from terrella.core.errors import ConfigError
from terrella.core.types import Situation, State, Text
from terrella.pipelines.spa.tagged_examples import counts
from terrella.pipelines.warmup import warmup_examples
from terrella.worlds.counter import Counter

HERE = Situation(
    instruction="Go.", observation=Text("P_"), actions=("Up",), history=(), steps_left=3
)
TRUTH = Text(" _P\n")


def decoded(codec, ids):
    return codec.tokenizer.decode(list(ids))


def rows(codec, *, thought=None):
    """The text of an agent's and of a world model's SFT row, prompt and reply."""
    acting = codec.ask_action(HERE) + codec.answer_action(["Up"], thought=thought)
    predicting = codec.ask_observation(HERE, "Up") + codec.answer_observation(
        TRUTH, thought=thought
    )
    return decoded(codec, acting), decoded(codec, predicting)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_asks_for_thoughts_where_the_model_thinks(name):
    codec = ChatCodec(chat_tokenizer(name))
    prompts = [codec.ask_action(HERE), codec.ask_observation(HERE, "Up")]
    for prompt in prompts:
        assert ("your thoughts" in decoded(codec, prompt)) == (name in THINKERS)


@pytest.mark.parametrize("thinking", ["auto", "on", "off"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_canonical_replies_are_read_back(name, thinking):
    codec = CodecConfig(thinking=thinking, max_actions=2).make(chat_tokenizer(name))
    for thought in (None, "I see <answer> Down </answer>.") if codec.thinks else (None,):
        actions = codec.answer_action(["Up", "Left"], thought=thought)
        assert codec.read_actions(actions) == ("Up", "Left")
        for truth in (TRUTH, Text("</think> <answer>"), State.of({"answer": "x"})):
            reply = codec.answer_observation(truth, thought=thought)
            assert codec.read_observation(reply, like=truth) == truth
            assert reply[-1] == codec.stop_ids[0]


@pytest.mark.parametrize("name", THINKERS)
def test_rows_keep_the_thought_where_the_model_writes_it(name):
    for row in rows(ChatCodec(chat_tokenizer(name)), thought="Up is free."):
        assert row.count("<think>\nUp is free.\n</think>\n\n<answer>") == 1
        assert row.count("<think>") == 2  # the prompt names the form, the reply has one thought


@pytest.mark.parametrize("name", THINKERS)
def test_rows_without_a_thought_do_not_train_thinking_away(name):
    codec = ChatCodec(chat_tokenizer(name))
    for row in rows(codec):
        assert row.count("<think>\n\n</think>\n\n<answer>") == 1
    for reply in (codec.answer_action(["Up"]), codec.answer_observation(TRUTH)):
        pairs = zip(reply, codec.targets(reply), strict=True)
        kept = [token for token, is_target in pairs if is_target]
        assert len(kept) < len(reply) and decoded(codec, kept).startswith("<answer>")
    thoughtful = codec.answer_action(["Up"], thought="Hm.")
    assert all(codec.targets(thoughtful)) and len(codec.targets(thoughtful)) == len(thoughtful)


@pytest.mark.parametrize("name", THINKERS)
def test_without_thinking_the_prompt_closes_the_thought(name):
    """SFT rows and sampling agree: the model begins with the answer in both."""
    codec = ChatCodec(chat_tokenizer(name), thinking="off")
    for prompt in (codec.ask_action(HERE), codec.ask_observation(HERE, "Up")):
        assert decoded(codec, prompt).endswith("<think>\n\n</think>\n\n")
    assert decoded(codec, codec.world_turn(HERE)).endswith("<think>\n\n</think>\n\n")
    reply = codec.answer_action(["Up"])
    assert decoded(codec, reply).startswith("<answer>") and all(codec.targets(reply))
    assert codec.read_actions(reply) == ("Up",)


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - set(THINKERS)))
def test_a_model_without_thoughts_is_asked_and_fitted_as_before_with_off(name):
    tokenizer = chat_tokenizer(name)
    assert rows(ChatCodec(tokenizer, thinking="off")) == rows(ChatCodec(tokenizer))


def test_a_thought_for_a_model_that_does_not_think_is_refused():
    codec = ChatCodec(chat_tokenizer("chatml"))
    with pytest.raises(ConfigError, match="thinking=on"):
        codec.answer_action(["Up"], thought="Hm.")
    asked = ChatCodec(chat_tokenizer("chatml"), thinking="on")
    acting, _ = rows(asked, thought="Hm.")
    assert acting.endswith("<think>\nHm.\n</think>\n\n<answer> Up </answer><|im_end|>")


@pytest.mark.parametrize("name", THINKERS)
def test_tags_of_thoughts_may_be_special_tokens(name):
    codec = ChatCodec(chat_tokenizer(name, special_thoughts=True))
    reply = codec.answer_action(["Up"], thought="not <answer> Down </answer>")
    assert codec.read_actions(reply) == ("Up",)
    unfinished = codec.write("<think> <answer> Down </answer>")
    assert codec.read_actions(unfinished) == ()
    # No world can write them.
    world = codec.world_turn(dataclasses.replace(HERE, observation=Text("</think>")))
    tag = codec.tokenizer.convert_tokens_to_ids("</think>")
    assert list(world).count(tag) == list(codec.world_turn(HERE)).count(tag)


@pytest.mark.parametrize("form", ["plain", "worldmodel", "worldmodel_forward"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tagged_replies_put_states_into_the_thought(name, form):
    codec = TaggedCodecConfig(form=form).make(chat_tokenizer(name))
    assert isinstance(codec, TaggedCodec)
    reply, _ = codec.answer(("Up",), ("P_", "_P"))
    assert codec.well_formed(reply) and codec.read_actions(reply) == ("Up",)
    if form != "plain":
        assert codec.read_states(reply) == ("P_", "_P")
    row = codec.inner.tokenizer.decode([*codec.ask_action(HERE), *reply])
    assert row.count("</think>") == (2 if name in THINKERS else 0)  # in the prompt, in the reply
    if name in THINKERS:
        thought, answer = row.rsplit("</think>", 1)
        assert "<answer>Up</answer>" in answer
        assert ("_P\n</prediction>" in thought) == (form == "worldmodel")


def test_a_template_that_hides_replies_is_refused():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message['role'] != 'assistant' %}"
        "{{ message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ConfigError, match="does not show the model's replies"):
        ChatCodec(tokenizer)


def test_warm_up_rows_are_turns_where_turns_have_their_own_prompts():
    codec = ChatCodec(chat_tokenizer("chatml"))
    rows = warmup_examples(
        Counter.Config(), codec, ask="action", count=3, seed=0, history="actions"
    )
    for turn, row in enumerate(rows):  # of the first episode
        prompt = decoded(codec, row.prompt_ids)
        assert prompt.count("</answer>") == turn + 1  # with the form that the prompt asks for
        assert len(codec.read_actions(row.completion_ids)) == 1 and all(row.mask)
    with pytest.raises(ConfigError, match="learn_world=False"):
        warmup_examples(
            Counter.Config(),
            codec,
            ask="action",
            count=1,
            seed=0,
            learn_world=True,
            history="actions",
        )


@pytest.mark.parametrize("ask", ["action", "observation"])
@pytest.mark.parametrize("name", ["r1", "chatml"])
def test_warm_up_rows_do_not_train_thinking_away(name, ask):
    codec = ChatCodec(chat_tokenizer(name))
    for row in warmup_examples(Counter.Config(), codec, ask=ask, count=3, seed=0):
        trained = [
            token for token, target in zip(row.completion_ids, row.mask, strict=True) if target
        ]
        text = decoded(codec, trained)
        assert text.startswith("<answer>") and "think>" not in text
        assert ("</think>" in decoded(codec, row.completion_ids)) == (name == "r1")


@pytest.mark.parametrize("name", THINKERS)
@pytest.mark.parametrize("form", ["plain", "shown"])
def test_a_tagged_reply_trains_no_empty_thought(name, form):
    codec = TaggedCodecConfig(form=form, thinking="on").make(chat_tokenizer(name))
    reply, spans = codec.answer(["Up"], ["", ""])
    targets = sft_targets(codec, reply)
    assert targets == tuple(counts(span, "reply") for span in spans)
    learnt = codec.inner.tokenizer.decode(
        [token for token, target in zip(reply, targets, strict=True) if target]
    )
    assert learnt.startswith("<answer>") and codec.read_actions(reply) == ("Up",)
