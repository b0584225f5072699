"""WebRL's formats: public task files load, traces and training steps round-trip, replies are read.

pip install --no-deps libwebarena browsergym-webarenalite webarena-verified
python benchmarks/webrl_formats.py     results/webrl_formats.json, about a minute
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import common
from tests.support.fuzzed_replies import fuzzed_replies, read_back
from tests.unit.codecs.test_web_language import ACTIONS, PAGE

from terrella.core.errors import TerrellaError
from terrella.data import webrl_formats as formats
from terrella.pipelines.webrl.instructions import read_instructions
from terrella.worlds.webarena.tasks import SOURCES, load_tasks
from terrella.worlds.webarena.templates import TemplateBook

PIECES = ["`", "\n", "- ", "Who owns ticket ", "3", "?", '"', "{number}", "\\", "\x00", "é" * 50]


def task_files() -> dict[str, Any]:
    """How many tasks of each public collection are read, and their checks."""
    found: dict[str, Any] = {}
    for name in SOURCES:
        try:
            tasks = load_tasks(name)
        except TerrellaError as error:
            found[name] = {"tasks": 0, "error": str(error)}
            continue
        checks = Counter(kind for task in tasks for kind in task.eval_types)
        found[name] = {"tasks": len(tasks), "checks": dict(checks)}
    return found


def round_trips(count: int) -> dict[str, int]:
    """Traces and training steps that are the same after being written and read."""
    rng = random.Random(0)
    same = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(count):
            trace = made_trace(rng, str(number))
            formats.write_trace(folder, trace)
            same["traces"] += formats.read_trace(folder / f"traces/{number}.jsonl") == trace
            steps = formats.training_steps(trace)
            formats.write_steps(folder / "steps.json", [steps])
            same["training_steps"] += formats.read_steps(folder / "steps.json") == [steps]
            back = formats.trace_of(formats.attempt_of(trace, "f", number), str(number))
            same["attempts"] += back == trace
    return {"of": count, **same}


def made_trace(rng: random.Random, name: str) -> formats.Trace:
    intent = "".join(rng.choices('Buy tea "now" \u2028 <|eot_id|>', k=20)).strip() or "x"
    steps = tuple(
        formats.TraceStep(
            trace_id=name,
            index=index,
            prompt=formats.PAGE_MARK if index else intent,
            html="".join(rng.choices('<a id="7">\n\té\U0001f600', k=rng.randrange(1, 400))),
            response=rng.choice(['do(action="Click", element="7")', 'exit(message="42")']),
            target=intent,
        )
        for index in range(rng.randrange(1, 6))
    )
    return formats.Trace(task_id=name, score=float(rng.random() < 0.5), steps=steps)


def replies(count: int) -> dict[str, int]:
    """Whatever a reply raises is a crash, and so is an action that is not read back."""
    read = crashes = 0
    for text in fuzzed_replies(ACTIONS, PAGE, count):
        try:
            read += read_back(text)
        except Exception as error:  # noqa: BLE001  every kind of crash is counted and shown
            crashes += 1
            print(repr(text), error)
    return {"replies": count, "read_as_actions": read, "crashes": crashes}


def instructions(count: int) -> dict[str, int]:
    """What a writer of tasks may say: read, and fitted to the templates."""
    rng = random.Random(0)
    book = TemplateBook(lambda site, query, values: [(3,)])
    read = fitted = crashes = 0
    for _ in range(count):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 20)))
        try:
            found = read_instructions(text)
            fitted += sum(book.fit(each) is not None for each in found)
        except Exception as error:  # noqa: BLE001  as above
            crashes += 1
            print(repr(text), error)
            continue
        read += len(found)
    return {"replies": count, "instructions_read": read, "fitted": fitted, "crashes": crashes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000, help="fuzzed replies")
    count = parser.parse_args().count
    metrics = {
        "task_files": task_files(),
        "round_trips": round_trips(max(10, count // 500)),
        "action_language": replies(count),
        "instructions": instructions(count),
    }
    common.write_results("webrl_formats", metrics, command=common.command("--count", str(count)))


if __name__ == "__main__":
    main()
