"""File formats of WebRL and VAB-WebArena-Lite as JSON: traces, training steps, tasks.

The published training data is a pickled list of trajectories; here the same steps are JSON. Pickles
are not read, because loading one can run arbitrary code. As in the authors' code, the page is cut
so that history and page fit into 15,872 characters.
    traces = read_traces(folder)
    write_steps(path, [training_steps(trace) for trace in traces])
    write_trace(folder, trace_of(attempt, "7"))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import write_atomic
from terrella.core.untrusted import MAX_FILE_BYTES, read_json, read_json_lines, reading
from terrella.core.written_tasks import shown_task
from terrella.data.attempts import Attempt, Choice, PracticeTask

MAX_CHARS = 16384 - 512
"""Maximum length of the history and the page together."""
USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>"
ASSISTANT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
PAGE_MARK = "** Simplified html **"
OUTCOME_MODEL_SYSTEM = (
    "You are an expert in evaluating the performance of a website navigation agent. The agent is "
    "designed to help a human user navigate the website to complete a task. Given the user\u2019s "
    "intent, the agent's action history, and the final state of the screen, your goal is to "
    "decide whether the agent\u2019s execution is successful or not. You must respond with YES or "
    "NO."
)
UNFINISHED_SCORE = -0.1
"""Score of a trace that has not ended."""
MAX_STEPS = 1000
"""Steps of one trace; each prompt repeats all earlier rounds."""
MAX_NUMBER = 1e9
NO_PICKLES = "pickles are not read: convert them to JSON where you trust them"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One line of `traces/{task_id}.jsonl`."""

    trace_id: str
    index: int
    prompt: str
    """The intent on step 0, `** Simplified html **` on later steps."""
    html: str
    response: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A rollout: its steps and its score (`actions/{task_id}.json`)."""

    task_id: str
    score: float
    steps: tuple[TraceStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step as the trainer reads it; an observation is a whole prompt."""

    observation: str
    next_observation: str
    task: str
    reward: float
    done: bool
    action: str
    trajectory_reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A row of the task list."""

    intent: str
    sites: tuple[str, ...] = ()
    start_url: str = ""


# --- the template ---------------------------------------------------------------------------------


def prompt_at(task: str, earlier: Sequence[TraceStep], html: str) -> str:
    """The policy's prompt: the task, the earlier rounds without their pages, the current page."""
    history = "".join(
        _round(index, step.prompt) + f"{step.response}\n\n" for index, step in enumerate(earlier)
    )
    room = max(0, MAX_CHARS - len(history))
    return f"Task Instruction: {task}\n\n{history}{_round(len(earlier), html[:room])}"


def _round(index: int, user_text: str) -> str:
    return f"Round {index}\n\n{USER}\n{user_text}\n\n{ASSISTANT}\n"


def training_steps(trace: Trace) -> list[TrainingStep]:
    """The training steps of a trace, as in the authors' code.

    Every step has the score as its reward; the page after the last step is the last page again.
    """
    steps = trace.steps
    converted = []
    for index, step in enumerate(steps):
        is_last = index + 1 == len(steps)
        after = step if is_last else steps[index + 1]
        converted.append(
            TrainingStep(
                observation=prompt_at(step.target, steps[:index], step.html),
                next_observation=prompt_at(step.target, steps[: index + 1], after.html),
                task=step.target,
                reward=trace.score,
                done=is_last,
                action=step.response,
                trajectory_reward=float(trace.score >= 0.5),
            )
        )
    return converted


def outcome_model_example(trace: Trace) -> dict[str, Any]:
    """A training example of the outcome model in the published format, with its label.

    The prompt is the intent, one line per action, and the last page.
    """
    steps = trace.steps
    prompt = _question(steps[0].target, [step.response for step in steps], steps[-1].html)
    label = "YES" if trace.score > 0.5 else "NO"
    return {
        "conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": label}],
        "system": OUTCOME_MODEL_SYSTEM,
    }


def _question(intent: str, responses: Sequence[str], page: str) -> str:
    actions = ["; ".join(response.split("\n")).strip() for response in responses]
    return (
        f"The User Intent:\n{intent.strip()}\n\nAction History:\n"
        + "".join(f"{action}\n" for action in actions)
        + f"\nThe Current Screenshot:\n{page.strip()}"
    )


def outcome_question(attempt: Attempt, page: str, *, without: int = 0) -> str:
    """What the outcome model is asked about an attempt, with this text as its last page.

    `without` so many of its first actions.
    """
    return _question(instruction_of(attempt), attempt.actions[without:], page)


# --- from attempts --------------------------------------------------------------------------------


def trace_of(attempt: Attempt, task_id: str, *, intent: str = "") -> Trace:
    """Convert an attempt to a trace; by default the intent is the task shown on the page."""
    intent = intent or instruction_of(attempt)
    steps = tuple(
        TraceStep(
            trace_id=task_id,
            index=index,
            prompt=intent if index == 0 else PAGE_MARK,
            html=choice.observation,
            response=choice.action,
            target=intent,
        )
        for index, choice in enumerate(attempt.choices)
    )
    score = UNFINISHED_SCORE if attempt.success is None else float(attempt.success)
    return Trace(task_id=task_id, score=score, steps=steps)


def attempt_of(trace: Trace, family: str, number: int) -> Attempt:
    """Convert a trace to an attempt at task `number`; its actions are those that were written.

    As published, the page after the last step is the last page again.
    """
    count = len(trace.steps)
    choices = tuple(
        Choice(
            observation=step.html,
            offered=(),
            taken=-1,
            logprob=0.0,
            steps_left=count - index,
            written=step.response,
        )
        for index, step in enumerate(trace.steps)
    )
    return Attempt(
        task=PracticeTask(family=family, seed=number),
        instruction=trace.steps[0].target if trace.steps else "",
        choices=choices,
        last=trace.steps[-1].html if trace.steps else "",
        success=None if trace.score < 0 else trace.score >= 0.5,
        stop="terminated",
    )


def instruction_of(attempt: Attempt) -> str:
    """The task that the first page shows, or else what the agent was told."""
    first = attempt.choices[0].observation if attempt.choices else ""
    return shown_task(first) or attempt.instruction


# --- files ----------------------------------------------------------------------------------------


def write_trace(folder: Path, trace: Trace) -> None:
    """Write `traces/{id}.jsonl` and `actions/{id}.json`."""
    for name in ("traces", "actions"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = "\n".join(json.dumps(asdict(step), ensure_ascii=False) for step in trace.steps)
    write_atomic(folder / "traces" / f"{trace.task_id}.jsonl", lines.encode())
    score = {
        "task_id": trace.task_id,
        "score": trace.score,
        "actions": [step.response for step in trace.steps],
    }
    data = json.dumps(score, ensure_ascii=False).encode()
    write_atomic(folder / "actions" / f"{trace.task_id}.json", data)


def trace_files(folder: Path) -> list[Path]:
    """The files with the steps of traces, ordered by name."""
    return sorted((folder / "traces").glob("*.jsonl"))


def score_file(path: Path) -> Path:
    """The file with the score of the trace in `traces/{task_id}.jsonl`."""
    return path.parents[1] / "actions" / f"{path.stem}.json"


def read_traces(folder: Path) -> list[Trace]:
    """Read all traces of a folder, ordered by name; a line that is not a step is an error."""
    return [read_trace(path) for path in trace_files(folder)]


def read_trace(path: Path) -> Trace:
    """The trace in `traces/{task_id}.jsonl`, with the score beside it."""
    score = _read_score(score_file(path))
    rows = list(read_json_lines(path))
    if len(rows) > MAX_STEPS:
        raise StoreError(str(path), f"has {len(rows):,} steps, more than {MAX_STEPS:,}")
    steps = tuple(_record(TraceStep, row, path) for row in rows)
    return Trace(task_id=path.stem, score=score, steps=steps)


def _read_score(path: Path) -> float:
    about = _read(path)
    score = about.get("score", UNFINISHED_SCORE) if isinstance(about, dict) else None
    if isinstance(score, bool) or not isinstance(score, int | float) or not _is_finite(score):
        raise StoreError(
            str(path), f"has the score {str(score)[:40]}", "a score is a number from 0 to 1"
        )
    return float(score)


def _is_finite(number: float) -> bool:
    return abs(number) <= MAX_NUMBER


def write_steps(path: Path, trajectories: Sequence[Sequence[TrainingStep]]) -> None:
    """Write a list of trajectories, each a list of steps."""
    rows = [[asdict(step) for step in trajectory] for trajectory in trajectories]
    write_atomic(path, json.dumps(rows).encode())


def read_steps(path: Path) -> list[list[TrainingStep]]:
    """Read the steps of trajectories, as written by `write_steps` or a converter."""
    rows = _read(path)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise StoreError(
            str(path),
            "is not a list of trajectories",
            "the file must have one list of steps per trajectory",
        )
    return [[_record(TrainingStep, step, path) for step in row] for row in rows]


def read_tasks(path: Path) -> list[TaskInfo]:
    """Read a task list (`intent`, `sites`, `start_url`; other keys are ignored)."""
    rows = _read(path)
    if not isinstance(rows, list):
        raise StoreError(
            str(path),
            "is not a list of tasks",
            "the file must have one object with an intent per task",
        )
    return [_record(TaskInfo, row, path) for row in rows]


def _read(path: Path) -> Any:
    return read_json(path, NO_PICKLES, MAX_FILE_BYTES)


def _record(kind: type[Any], row: Any, path: Path) -> Any:
    """A row as a record; a number in it must be finite, and a text must be encodable."""
    if not isinstance(row, dict):
        raise StoreError(str(path), f"has a {kind.__name__} that is not an object", NO_PICKLES)
    fields = {key: value for key, value in row.items() if key in kind.__dataclass_fields__}
    if isinstance(fields.get("trace_id"), int):  # some files have numbers
        fields["trace_id"] = str(fields["trace_id"])
    for key, value in fields.items():
        if isinstance(value, int | float) and not _is_finite(value):
            raise StoreError(str(path), f"has a {kind.__name__} whose {key} is not finite")
    try:
        with reading(str(path)):
            "".join(value for value in fields.values() if isinstance(value, str)).encode()
        return record_from_json(kind, fields)
    except ConfigError as error:
        what = f"has a row that is not a {kind.__name__}: {error.where} {error.what}"
        raise StoreError(str(path), what[:400], "see docs/webrl.md for the fields") from error
