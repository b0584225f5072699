"""A page model's questions, answers and figures, from recorded steps; no browser and no training."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import OutcomeWords
from terrella.core.types import Transition, Tree
from terrella.models.characters import character_tokenizer
from terrella.stages.page_model import CHANGE_WORDS, baselines, change_rows, changes_of, figures
from terrella.use.plan_web import PageCodec

PAGE = '[1] task "Enter \\"kai\\"."\n[2] textbox ""\n[3] button "Submit"'
TYPED = PAGE.replace('[2] textbox ""', '[2] textbox "" value="kai" focused')


def step(before, action, after, **more):
    return Transition(observation=Tree(before), action=action, next_observation=Tree(after), **more)


STEPS = [
    step(PAGE, "type 2 kai", TYPED),
    step(PAGE, "scroll down", PAGE),
    step(TYPED, "click 3", TYPED, reward=1.0, terminated=True, info={"success": True}),
]


def test_a_row_asks_about_a_page_and_answers_with_its_changes():
    tokenizer = character_tokenizer(CHANGE_WORDS)
    codec = InterleavedCodec(tokenizer)
    row = next(iter(change_rows(STEPS, codec, tokenizer)))
    assert changes_of(STEPS[0]) == '^[2] focused value="kai"'
    told = tokenizer.decode(list(row.completion_ids))
    assert told.startswith('^[2] focused value="kai"<end>') and len(row.mask) == len(row.completion_ids)
    last = list(change_rows(STEPS, codec, tokenizer))[-1]
    rest = last.completion_ids[len(codec.answer_observation(Tree("="))) :]
    assert OutcomeWords(tokenizer, codec.stop_ids).read(rest) == (1.0, True, True)


def test_figures_tell_changed_from_unchanged_and_the_baselines_earn_nothing_where_it_counts():
    right = figures(STEPS, [changes_of(one) for one in STEPS])
    assert right["all"]["exact"]["mean"] == 1.0 and right["changed"]["n"] == 1 and right["unchanged"]["n"] == 2
    plain = baselines(STEPS)
    assert {name: found["changed"]["value"]["mean"] for name, found in plain.items()} == {
        "no_change": 0.0, "copy_of_the_page": 0.0, "none": 0.0,
    }  # fmt: skip
    assert plain["no_change"]["unchanged"]["exact"]["mean"] == 1.0 and plain["none"]["all"]["f1"]["mean"] == 0.0


def test_an_imagined_page_can_be_asked_about_again():
    codec = PageCodec(character_tokenizer(CHANGE_WORDS))
    imagined = codec.read_observation(codec.answer_observation(Tree('^[2] value="kai" focused')), like=Tree(PAGE))
    assert imagined.text == '[1] task "Enter \\"kai\\"."\n[2] textbox "" focused value="kai"\n[3] button "Submit"'
    assert codec.read_observation(codec.answer_observation(Tree("^[9] focused")), like=Tree(PAGE)) is None
