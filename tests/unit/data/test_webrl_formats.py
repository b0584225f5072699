"""WebRL and VAB files: the published template, round trips, and no pickles."""

import json
import pickle
from dataclasses import replace

import pytest

from terrella.codecs.web_language import Action, parse_action
from terrella.core.errors import StoreError
from terrella.data import webrl_formats as formats
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.data.train_steps import train_steps

USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>"
ASSISTANT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>"


def trace(score=1.0):
    steps = [
        formats.TraceStep(
            trace_id="7", index=n, prompt=prompt, html=html, response=response, target="Buy tea"
        )
        for n, (prompt, html, response) in enumerate(
            [
                ("Buy tea", "<a>0</a>", '# Element: x\ndo(action="Click", element="7")'),
                (formats.PAGE_MARK, "<a>1</a>", 'exit(message="done")'),
            ]
        )
    ]
    return formats.Trace(task_id="7", score=score, steps=tuple(steps))


def test_the_prompt_is_the_published_template():
    first, second = formats.training_steps(trace())
    assert (
        first.observation
        == f"Task Instruction: Buy tea\n\nRound 0\n\n{USER}\n<a>0</a>\n\n{ASSISTANT}\n"
    )
    assert second.observation == (
        f"Task Instruction: Buy tea\n\nRound 0\n\n{USER}\nBuy tea\n\n{ASSISTANT}\n"
        f"{trace().steps[0].response}\n\nRound 1\n\n{USER}\n<a>1</a>\n\n{ASSISTANT}\n"
    )
    assert first.next_observation == second.observation
    assert second.next_observation.endswith(f"Round 2\n\n{USER}\n<a>1</a>\n\n{ASSISTANT}\n")
    assert [(step.reward, step.done) for step in (first, second)] == [(1.0, False), (1.0, True)]


def test_a_long_page_is_cut_to_fit():
    prompt = formats.prompt_at("t", trace().steps[:1], "x" * 40_000)
    history = prompt.index("Round 1") - len("Task Instruction: t\n\n")
    assert (
        prompt.count("x" * 100)
        and history + prompt.count("x", prompt.index("Round 1")) == formats.MAX_CHARS
    )


def test_an_outcome_model_example_has_one_line_per_action():
    example = formats.outcome_model_example(trace(score=0.0))
    prompt, label = example["conversations"]
    assert label["value"] == "NO" and example["system"].endswith("YES or NO.")
    assert prompt["value"] == (
        "The User Intent:\nBuy tea\n\nAction History:\n"
        '# Element: x; do(action="Click", element="7")\n'
        'exit(message="done")\n\nThe Current Screenshot:\n<a>1</a>'
    )


def test_traces_steps_and_tasks_survive_the_disk(tmp_path):
    page = replace(trace(0.5).steps[1], html="<p>a\u2028b\x85c</p>")  # not ends of lines
    written = replace(trace(0.5), steps=(trace().steps[0], page))
    formats.write_trace(tmp_path, written)
    assert formats.read_traces(tmp_path) == [written]
    stored = json.loads((tmp_path / "actions/7.json").read_text())
    assert stored["score"] == 0.5 and len(stored["actions"]) == 2
    formats.write_steps(tmp_path / "steps.json", [formats.training_steps(trace())])
    assert formats.read_steps(tmp_path / "steps.json") == [formats.training_steps(trace())]
    tasks = [formats.TaskInfo(intent="Buy tea", sites=("shopping",), start_url="__SHOPPING__")]
    rows = [{"intent": "Buy tea", "sites": ["shopping"], "start_url": "__SHOPPING__"}]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    assert formats.read_tasks(tmp_path / "tasks.json") == tasks


def test_a_pickle_is_refused_and_a_wrong_row_is_named(tmp_path):
    (tmp_path / "steps.pt").write_bytes(pickle.dumps([[{"task": "x"}]]))
    with pytest.raises(StoreError, match="pickles are not read"):
        formats.read_steps(tmp_path / "steps.pt")
    (tmp_path / "steps.json").write_text('[[{"task": 3}]]')
    with pytest.raises(StoreError, match="TrainingStep"):
        formats.read_steps(tmp_path / "steps.json")


def test_an_attempt_becomes_a_trace_with_the_task_of_its_page():
    choice = Choice(
        observation='[1] task "Click \\"ok\\"."\n[2] button "ok"',
        offered=("click 2", "stop"),
        taken=0,
        logprob=-0.1,
        steps_left=5,
    )
    played = Attempt(
        task=PracticeTask(family="click", seed=1),
        instruction="rules",
        choices=(choice,),
        last="",
        success=True,
        stop="terminated",
    )
    trace = formats.trace_of(played, "3")
    assert trace.steps[0].target == 'Click "ok".'
    assert trace.steps[0].response == "click 2"
    assert trace.score == 1.0


@pytest.mark.parametrize("score", [1.0, 0.0, formats.UNFINISHED_SCORE])
def test_a_trace_is_an_attempt_and_a_trace_again(score):
    made = formats.attempt_of(trace(score), "lite", 3)
    assert made.task.name == "lite/3" and made.success is {1.0: True, 0.0: False}.get(score)
    assert formats.trace_of(made, "7", intent=made.instruction) == trace(score)
    assert [parse_action(action) for action in made.actions] == [
        Action("click", 7),
        Action("stop", 0, "done"),
    ]
    steps = train_steps(made, 1.0)
    assert steps[1].input.past_actions == made.actions[:1] and steps[0].taken == -1
    assert formats.outcome_question(made, made.last) == (
        "The User Intent:\nBuy tea\n\nAction History:\n"
        '# Element: x; do(action="Click", element="7")\n'
        'exit(message="done")\n\nThe Current Screenshot:\n<a>1</a>'
    )
