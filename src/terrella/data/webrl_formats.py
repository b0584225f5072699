"""WebRL's and VAB-WebArena-Lite's files in and out, as JSON: traces, scores, training steps, judge questions, tasks.

Published training data is a pickled list of trajectories; here the same steps are JSON. Pickles are refused: loading
one runs whatever its author wrote. The page is cut to the room that is left, as the authors do (15,872 characters).
    traces = read_traces(folder); write_steps(path, [training_steps(trace) for trace in traces])
    trace = trace_of(attempt, "7"); write_trace(folder, trace)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.data.attempts import Attempt
from terrella.data.store import write_atomic

ROOM = 16384 - 512
"""Characters that the history and the page may take together."""
USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>"
ASSISTANT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
PAGE_MARK = "** Simplified html **"
JUDGE_SYSTEM = (
    "You are an expert in evaluating the performance of a website navigation agent. The agent is designed to help a "
    "human user navigate the website to complete a task. Given the user\u2019s intent, the agent's action history, "
    "and the final state of the screen, your goal is to decide whether the agent\u2019s execution is successful or "
    "not. You must respond with YES or NO."
)
RUNNING = -0.1
"""The score of a trace that has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One line of `traces/{task_id}.jsonl`."""

    trace_id: str
    index: int
    prompt: str
    """The intent on step 0, `** Simplified html **` after it."""
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
    """One step as the trainer reads it; observations are whole prompts."""

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


# --- the template -----------------------------------------------------------------------------------------------------


def prompt_at(task: str, earlier: Sequence[TraceStep], html: str) -> str:
    """The policy's prompt: the task, every earlier round with its page left out, then the page as it is now."""
    history = "".join(_round(n, step.prompt) + f"{step.response}\n\n" for n, step in enumerate(earlier))
    room = max(0, ROOM - len(history))
    return f"Task Instruction: {task}\n\n{history}{_round(len(earlier), html[:room])}"


def _round(index: int, said: str) -> str:
    return f"Round {index}\n\n{USER}\n{said}\n\n{ASSISTANT}\n"


def training_steps(trace: Trace) -> list[TrainingStep]:
    """A trace as the trainer wants it: the score on every step, and after the last step the same page again."""
    steps, found = trace.steps, []
    for n, step in enumerate(steps):
        is_last = n + 1 == len(steps)
        after = step if is_last else steps[n + 1]
        found.append(TrainingStep(
            observation=prompt_at(step.target, steps[:n], step.html),
            next_observation=prompt_at(step.target, steps[: n + 1], after.html),
            task=step.target, reward=trace.score, done=is_last, action=step.response,
            trajectory_reward=float(trace.score >= 0.5),
        ))  # fmt: skip
    return found


def judge_question(trace: Trace) -> dict[str, Any]:
    """What an outcome model is asked, with its label: the intent, one line per action, the last page."""
    lines = ["; ".join(step.response.split("\n")).strip() for step in trace.steps]
    asked = (
        f"The User Intent:\n{trace.steps[0].target.strip()}\n\nAction History:\n" + "".join(f"{x}\n" for x in lines)
        + f"\nThe Current Screenshot:\n{trace.steps[-1].html.strip()}"
    )  # fmt: skip
    said = "YES" if trace.score > 0.5 else "NO"
    return {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}],
            "system": JUDGE_SYSTEM}  # fmt: skip


# --- our attempts -----------------------------------------------------------------------------------------------------


def trace_of(attempt: Attempt, task_id: str, *, intent: str = "") -> Trace:
    """An attempt as a trace; the intent is the page's own task where the world shows one."""
    said = intent or _shown_task(attempt)
    steps = tuple(
        TraceStep(trace_id=task_id, index=n, prompt=said if n == 0 else PAGE_MARK, html=choice.observation,
                  response=choice.action, target=said)
        for n, choice in enumerate(attempt.choices)
    )  # fmt: skip
    return Trace(task_id=task_id, score=RUNNING if attempt.success is None else float(attempt.success), steps=steps)


def _shown_task(attempt: Attempt) -> str:
    first = attempt.choices[0].observation.split("\n", 1)[0] if attempt.choices else ""
    before, mark, rest = first.partition('task "')
    return rest.rpartition('"')[0] if mark and before.startswith("[") else attempt.instruction


# --- files ------------------------------------------------------------------------------------------------------------


def write_trace(folder: Path, trace: Trace) -> None:
    """`traces/{id}.jsonl` and `actions/{id}.json`."""
    for name in ("traces", "actions"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = "\n".join(json.dumps(asdict(step), ensure_ascii=False) for step in trace.steps)
    write_atomic(folder / "traces" / f"{trace.task_id}.jsonl", lines.encode())
    score = {"task_id": trace.task_id, "score": trace.score, "actions": [step.response for step in trace.steps]}
    write_atomic(folder / "actions" / f"{trace.task_id}.json", json.dumps(score, ensure_ascii=False).encode())


def read_traces(folder: Path) -> list[Trace]:
    """All traces of a folder that have a score, in order of their names; a line that is not a step is an error."""
    found = []
    for path in sorted((folder / "traces").glob("*.jsonl")):
        score = _read(folder / "actions" / f"{path.stem}.json").get("score", RUNNING)
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        steps = tuple(_record(TraceStep, row, path) for row in rows)
        found.append(Trace(task_id=path.stem, score=float(score), steps=steps))
    return found


def write_steps(path: Path, trajectories: Sequence[Sequence[TrainingStep]]) -> None:
    """A list of lists of steps."""
    write_atomic(path, json.dumps([[asdict(step) for step in one] for one in trajectories]).encode())


def read_steps(path: Path) -> list[list[TrainingStep]]:
    """What `write_steps` or a converter wrote."""
    rows = _read(path)
    if not isinstance(rows, list) or not all(isinstance(one, list) for one in rows):
        raise StoreError(str(path), "is not a list of trajectories", "one list of steps per trajectory")
    return [[_record(TrainingStep, row, path) for row in one] for one in rows]


def read_tasks(path: Path) -> list[TaskInfo]:
    """A task list (`intent`, `sites`, `start_url`; other keys are left aside)."""
    rows = _read(path)
    if not isinstance(rows, list):
        raise StoreError(str(path), "is not a list of tasks", "one object with an intent per task")
    return [_record(TaskInfo, row, path) for row in rows]


def write_tasks(path: Path, tasks: Sequence[TaskInfo]) -> None:
    """A task list."""
    write_atomic(path, json.dumps([asdict(task) for task in tasks], ensure_ascii=False, indent=1).encode())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        remedy = "pickles are not read: convert them to JSON where you trust them"
        raise StoreError(str(path), f"is not JSON: {error}", remedy) from error


def _record(kind: type[Any], row: Any, path: Path) -> Any:
    try:
        known = {key: _text_id(key, value) for key, value in row.items() if key in kind.__dataclass_fields__}
        return record_from_json(kind, known)
    except (ConfigError, AttributeError) as error:
        raise StoreError(str(path), f"holds no {kind.__name__}: {error}") from error


def _text_id(key: str, value: Any) -> Any:
    return str(value) if key == "trace_id" else value
