"""Pages of any length: refused, left out or cut, and counted by name; chat prompts share pages."""

import logging

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl
from tests.support.made_pages import write_pages
from tests.support.tiny_chat import chat_model_folder

from terrella.codecs.pages import PageCodecConfig
from terrella.core.errors import ConfigError, StoreError
from terrella.core.types import Transition, Tree, show_text
from terrella.engines.engine import load_tokenizer
from terrella.pipelines.web.page_cut import cut_step
from terrella.pipelines.web.page_steps import (
    LONG_ANSWER,
    TOO_LONG,
    StepSelection,
    changes_of,
    page_examples,
    situation_of,
)
from terrella.verify.tree import parse
from terrella.verify.tree_diff import same_page

LINES = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(chat_model_folder(tmp_path_factory.mktemp("chat") / "model", positions=4096))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("pages") / "store", count=4, lines=LINES)


def selection(store, model, **fields):
    terse = PageCodecConfig(ask="terse", thinking="off")
    return StepSelection(store=store, model=model, **{"codec": terse, "turn_tokens": 80} | fields)


def test_a_page_that_fits_is_asked_about_as_it_is(store, model):
    selected = selection(store, model).load()
    counts = selected.counts
    assert (counts.recorded, counts.kept, counts.cut, counts.left_out) == (8, 8, 0, {})
    assert [selection(store, model, most=n).load().counts.kept for n in (4, 5, 9)] == [4, 5, 8]
    assert counts.limit == 4096 and 1000 < counts.longest_prompt < 4096 - 80


def test_a_page_that_does_not_fit_is_refused_by_name_unless_the_settings_say_more(store, model):
    with pytest.raises(StoreError, match=r"the context has 700.*Enter 0"):
        selection(store, model, context_tokens=700).load()
    with pytest.raises(StoreError, match=f"no step is left of 8.*{TOO_LONG}"):
        selection(store, model, context_tokens=700, long_pages="leave_out").load()
    with pytest.raises(ConfigError, match=r"9000 are asked for, .* reads 4096"):
        selection(store, model, context_tokens=9000).load()


def test_a_cut_page_fits_and_its_changes_are_those_of_the_whole_page(store, model):
    whole = selection(store, model).load().steps
    selected = selection(store, model, context_tokens=700, long_pages="cut").load()
    assert selected.counts.cut == selected.counts.kept == 8 and not selected.counts.hidden
    assert 500 < selected.counts.longest_prompt <= 700 - 80
    for step, cut in zip(whole, selected.steps, strict=True):
        assert changes_of(cut) == changes_of(step) != "="
        assert show_text(cut.observation) in show_text(step.observation)
        assert '[1] task "Enter' in show_text(cut.observation)


def test_what_a_cut_hides_is_counted(tmp_path, model):
    folder = write_pages(tmp_path / "store", count=2, lines=LINES, more='\n[99] button "Submit"')
    counts = selection(folder, model, context_tokens=700, long_pages="cut").load().counts
    assert counts.cut == 4 and counts.hidden == 2  # of the click that renames both buttons


def test_a_test_asks_about_answers_that_no_reply_can_hold_and_training_does_not(store, model):
    counts = selection(store, model, turn_tokens=30).load().counts
    assert counts.left_out == {LONG_ANSWER: 4} and counts.kept == 4
    assert selection(store, model, turn_tokens=30, training=False).load().counts.kept == 8


@pytest.mark.parametrize("keep", [1, 3, 5, 8])
def test_a_cut_keeps_ancestors_and_the_element_that_is_acted_on(keep):
    before = (
        '[1] task "Go."\n[2] list ""\n  [3] item ""\n    [4] link "a"\n[5] list ""\n  [6] link "b"'
    )
    after = before.replace('[6] link "b"', '[6] link "b" focused\n  [7] text "new"')
    cut = cut_step(
        Transition(observation=Tree(before), action="click 6", next_observation=Tree(after)), keep
    )
    text = show_text(cut.observation)
    assert '"Go."' in text and '[6] link "b"' in text and "[5] list" in text
    assert changes_of(cut) == '^[6] focused\n+[6]   text "new"'
    whole = cut_step(
        Transition(observation=Tree(before), action="click 6", next_observation=Tree(after)), 99
    )
    assert same_page(parse(show_text(whole.next_observation)), parse(after))


@pytest.mark.parametrize("form", ["changes", "sections"])
def test_a_chat_model_is_told_the_language_and_questions_about_one_page_share_it(form, model):
    tokenizer = load_tokenizer(model)
    codec = PageCodecConfig(form=form, thinking="off").make(tokenizer)
    before, other = '[1] textbox ""\n[2] button "Ok"', '[1] textbox "" value="x"\n[2] button "Ok"'
    steps = [
        Transition(observation=Tree(before), action=action, next_observation=Tree(after))
        for action, after in (("type 1 x", other), ("click 2", before))
    ]
    prompt = tokenizer.decode(codec.ask_observation(situation_of(steps[0]), "type 1 x"))
    told = {"changes": "element 3 gains value", "sections": "Deleted items:\nNone"}
    assert told[form] in prompt and before in prompt and "Action: type 1 x" in prompt
    (bundle,) = page_examples(steps, codec, tokenizer, form)
    assert len(bundle) == 2 and bundle[0].prompt_ids == bundle[1].prompt_ids
    assert before in tokenizer.decode(list(bundle[0].prompt_ids))
    for step, example in zip(steps, bundle, strict=True):
        learnt = [
            token for token, own in zip(example.completion_ids, example.mask, strict=True) if own
        ]
        text = tokenizer.decode(learnt)
        assert text.startswith(f"<answer>\n{changes_of(step, form)}\n</answer>")
        assert step.action in tokenizer.decode(list(example.completion_ids))
        read = codec.read_observation(learnt[: learnt.index(codec.stop_ids[0])], Tree(before))
        assert show_text(read) == changes_of(step, form)


def test_what_was_left_out_is_logged(store, model, tmp_path, caplog):
    from terrella.pipelines.web.page_model import PageModel
    from terrella.worlds.counter import Counter

    config = PageModel.Config(
        world=Counter.Config(),
        train=store,
        test=store,
        model=model,
        prompt="terse",
        context_tokens=700,
        long_pages="cut",
        turn_tokens=80,
    )
    with caplog.at_level(logging.WARNING, logger="terrella"):
        PageModel(config).select(model, store, training=True)
    assert "8 cut (0 with hidden changes)" in caplog.text
