"""How a curriculum moved, for people: tables of a run's phases in Markdown.

write_curriculum(last_phase, logs, families, outcomes)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from terrella.core.config import record_from_json
from terrella.core.files import write_atomic
from terrella.core.run_folder import read_part
from terrella.pipelines.webrl.critic_report import task_values
from terrella.pipelines.webrl.curriculum import CurriculumLog
from terrella.pipelines.webrl.instructions import FATES, PhaseInstructions
from terrella.pipelines.webrl.phase import Phase

SHOWN_REASON = 120


def write_curriculum(
    last: Phase,
    logs: Sequence[CurriculumLog],
    families: Sequence[str],
    outcomes: Callable[[Phase], Sequence[float | None]],
) -> None:
    """Write `curriculum.md`, and `instructions.md` if any were written, into the run.

    `last` is the last phase, `logs` are those of the phases that had a curriculum.
    """
    if not logs:
        return
    write_atomic(last.run / "curriculum.md", curriculum_table(logs, families).encode())
    if any(log.written for log in logs):
        phases = [dataclasses.replace(last, number=number) for number in range(1, last.number + 1)]
        write_instructions(last.run / "instructions.md", phases, outcomes)


def curriculum_table(logs: Sequence[CurriculumLog], families: Sequence[str]) -> str:
    """Admitted tasks by phase and family, and what became of new instructions."""
    lines = [
        f"| phase | {' | '.join(families)} | mean value | resting |",
        f"|{'---|' * (len(families) + 3)}",
    ]
    for number, log in enumerate(logs, 1):
        counts = " | ".join(str(log.admitted.get(name, 0)) for name in families)
        value = "" if log.mean_value is None else f"{log.mean_value:.2f}"
        lines.append(f"| {number} | {counts} | {value} | {', '.join(log.resting)} |")
    return "\n".join([*lines, *_instruction_counts(logs)]) + "\n"


def _instruction_counts(logs: Sequence[CurriculumLog]) -> list[str]:
    counted = [(number, log.written) for number, log in enumerate(logs, 1) if log.written]
    if not counted:
        return []
    fates = [*FATES, "admitted"]
    lines = ["", "New instructions:", "", f"| phase | {' | '.join(fates)} |"]
    lines.append(f"|{'---|' * (len(fates) + 1)}")
    for number, counts in counted:
        row = " | ".join(str(counts.get(fate, 0)) for fate in fates)
        lines.append(f"| {number} | {row} |")
    meanings = [f"- {fate}: {meaning}" for fate, meaning in FATES.items()]
    return [*lines, "", *meanings, "- admitted: within the critic's band, practised"]


def write_instructions(
    path: Path, phases: Sequence[Phase], outcomes: Callable[[Phase], Sequence[float | None]]
) -> None:
    """Every instruction of a run and what became of it, for people."""
    lines = ["# Instructions that were written", ""]
    for phase in phases:
        written_file = phase.file("written.json")
        if not written_file.exists():
            continue
        written = record_from_json(PhaseInstructions, read_part(written_file))
        practised: dict[str, list[float | None]] = {}
        for attempt, outcome in zip(phase.attempts(), outcomes(phase), strict=True):
            practised.setdefault(attempt.task.name, []).append(outcome)
        lines += instruction_lines(phase.number, written, task_values(phase), practised)
    write_atomic(path, "\n".join(lines).encode())


def instruction_lines(
    phase: int,
    written: PhaseInstructions,
    values: Mapping[str, float],
    outcomes: Mapping[str, Sequence[float | None]],
) -> list[str]:
    """Every instruction of a phase: its fate, the critic's value, and how practice went.

    `values` and `outcomes` are by the name of the task.
    """
    lines = [f"## Phase {phase}", "", "| instruction | fate | check | value | practice |"]
    lines.append(f"|{'---|' * 5}")
    for each in written.instructions:
        name = each.practice.name
        value = f"{values[name]:.2f}" if name in values and each.task else ""
        fate = f"{each.fate}: {each.reason[:SHOWN_REASON]}" if each.reason else each.fate
        check = ("world" if each.checked else "outcome model") if each.task else ""
        cells = (each.text, fate, check, value, _practice(outcomes.get(name, ())))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return [*lines, ""]


def _practice(outcomes: Sequence[float | None]) -> str:
    names = {None: "unjudged", 1.0: "won", 0.0: "lost"}
    return ", ".join(names.get(outcome, "unjudged") for outcome in outcomes)


def _cell(text: str) -> str:
    """Untrusted text in a table: no mark-up, no further columns."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return escaped.replace("\n", " ").replace("`", "'").replace("[", "\\[")
