"""Examples and scores of page models, from recorded steps; no browser and no training."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.errors import StoreError
from terrella.core.types import Split, Transition, Tree
from terrella.models.characters import character_tokenizer
from terrella.pipelines.web.agent import WebPolicy
from terrella.pipelines.web.page_model import PageModel, RecordedTasks
from terrella.pipelines.web.page_scores import baseline_scores, page_scores
from terrella.pipelines.web.page_steps import (
    CHANGE_TOKENS,
    SelectedSteps,
    StepSelection,
    change_examples,
    changes_of,
)
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress
from terrella.verify.tree_diff import TreeDiff
from terrella.world_models.planner_web import PageReplies

PAGE = '[1] task "Enter \\"kai\\"."\n[2] textbox ""\n[3] button "Submit"'
TYPED = PAGE.replace('[2] textbox ""', '[2] textbox "" value="kai" focused')


def step(before, action, after, **more):
    return Transition(observation=Tree(before), action=action, next_observation=Tree(after), **more)


STEPS = [
    step(PAGE, "type 2 kai", TYPED),
    step(PAGE, "scroll down", PAGE),
    step(TYPED, "click 3", TYPED, reward=1.0, terminated=True, info={"success": True}),
]


def test_an_example_asks_about_a_page_and_answers_with_its_changes():
    tokenizer = character_tokenizer(CHANGE_TOKENS)
    codec = InterleavedCodec(tokenizer)
    example = next(iter(change_examples(STEPS, codec, tokenizer)))
    assert changes_of(STEPS[0]) == '^[2] focused value="kai"'
    completion = tokenizer.decode(list(example.completion_ids))
    assert completion.startswith('^[2] focused value="kai"<end>')
    assert len(example.mask) == len(example.completion_ids)
    last = list(change_examples(STEPS, codec, tokenizer))[-1]
    rest = last.completion_ids[len(codec.answer_observation(Tree("="))) :]
    assert OutcomeCodec(tokenizer, codec.stop_ids).read(rest) == (1.0, True, True)


def test_scores_tell_changed_from_unchanged_and_baselines_earn_nothing_where_it_counts():
    right = page_scores(STEPS, [changes_of(step) for step in STEPS])
    assert right.all.exact.mean == 1.0 and right.changed.n == 1 and right.unchanged.n == 2
    baselines = baseline_scores(STEPS)
    assert {name: scores.changed.value.mean for name, scores in baselines.items()} == {
        "no_change": 0.0,
        "copy_of_the_page": 0.0,
        "none": 0.0,
    }
    assert baselines["no_change"].unchanged.exact.mean == 1.0
    assert baselines["none"].all.f1.mean == 0.0


def test_recorded_tasks_are_disjoint_and_visit_every_step(monkeypatch):
    steps = [step(f'[1] text "{n}"', "click 1", PAGE) for n in range(20)]
    selected = SelectedSteps(steps, counts=None)
    monkeypatch.setattr(StepSelection, "load", lambda self: selected)
    tasks = RecordedTasks(steps=StepSelection(store=Path("store"), model="tiny-0.3m"), seed=3)
    asked = {
        split: {tasks.replace(split=split).make()(n).transition.observation for n in range(40)}
        for split in (Split.TRAIN, Split.VALIDATION)
    }
    assert len(asked[Split.TRAIN]) == 18 and len(asked[Split.VALIDATION]) == 2
    assert not asked[Split.TRAIN] & asked[Split.VALIDATION]


def test_an_imagined_page_can_be_asked_about_again():
    codec = InterleavedCodec(character_tokenizer(CHANGE_TOKENS))
    replies = PageReplies(codec)
    imagined = replies.read_observation(
        codec.answer_observation(Tree('^[2] value="kai" focused')), like=Tree(PAGE)
    )
    assert (
        imagined.text
        == '[1] task "Enter \\"kai\\"."\n[2] textbox "" focused value="kai"\n[3] button "Submit"'
    )
    assert (
        replies.read_observation(codec.answer_observation(Tree("^[9] focused")), like=Tree(PAGE))
        is None
    )


@pytest.mark.parametrize(
    ("recipe", "pipeline"), [("page_model", PageModel), ("web_policy", WebPolicy)]
)
def test_recordings_that_are_not_there_are_named_and_leave_no_folder(recipe, pipeline, tmp_path):
    config = find_recipe(recipe)().replace(train=tmp_path / "nowhere", out=tmp_path / "run")
    with pytest.raises(StoreError, match=r"nowhere: there is no such folder\n.*terrella collect"):
        pipeline(config).run(SilentProgress())
    assert not any(tmp_path.iterdir())


def break_on(monkeypatch, *spoiled):
    """A verifier with a bug: it raises on these steps, whatever the reply."""
    verify = TreeDiff.verify
    broken = [step.next_observation for step in spoiled]

    def buggy(self, reply, truth, before):
        if any(truth is each for each in broken):
            raise RuntimeError("a bug in the verifier")
        return verify(self, reply, truth, before)

    monkeypatch.setattr(TreeDiff, "verify", buggy)


def test_a_masked_verdict_is_counted_and_left_out_of_every_mean(monkeypatch):
    break_on(monkeypatch, STEPS[1])
    scores = page_scores(STEPS, [changes_of(STEPS[0]), "^[2] focused", "^[9] focused"])
    assert scores.all.masked == 1 and scores.all.n == 2 and scores.all.unparsable == 1
    # One is right and one cannot be read; the masked one is neither.
    for metric in (scores.all.value, scores.all.f1, scores.all.exact):
        assert metric.mean == 0.5
    assert scores.changed.masked == 0 and scores.unchanged.masked == 1


def test_where_every_verdict_is_masked_there_is_no_metric(monkeypatch):
    break_on(monkeypatch, STEPS[1], STEPS[2])
    scores = page_scores(STEPS, [changes_of(step) for step in STEPS]).unchanged
    assert scores.n == 0 and scores.masked == 2
    assert scores.value is None and scores.exact is None
