"""`terrella report RUN...`: curves, tables, certificates, cost and config differences of runs.

Takes run folders and files of `results/`.
    Report(Report.Config(runs=(Path("runs/a-0"), Path("runs/a-1")), out=Path("report"))).write()
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable, Local, Recorded
from terrella.core.errors import ConfigError
from terrella.core.files import locked
from terrella.core.metric import Metric
from terrella.core.untrusted import reading
from terrella.evals.agent_scores import Outcomes, compare_passes
from terrella.show.report import write_report
from terrella.show.report_data import load_report_data, short_names
from terrella.show.report_sections import ONE_BY_ONE

SHOWN_NAMES = 4
"""Runs that a title names."""


class Report(Configurable):
    """The command; `write` returns the files."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The runs to report on, and the folder of the report."""

        runs: Local[tuple[Path, ...]]
        """Run folders, and files of `results/`."""
        out: Local[Path] = Path("report")
        title: Recorded[str] = ""
        """Names the runs unless given."""

        def __post_init__(self) -> None:
            if not self.runs:
                raise ConfigError(
                    "report",
                    "no run named",
                    "terrella report RUN... (folders, or files of results)",
                )

    config: Config

    def write(self) -> list[Path]:
        """Write `report.md`, `report.html` and `report.pdf`."""
        data = load_report_data(self.config.runs)
        with reading("report", ONE_BY_ONE):
            data.comparisons = compare_evaluations(data.evaluations)
        with locked(self.config.out):
            return write_report(data, self.config.out, title=self.config.title or self._title())

    def _title(self) -> str:
        names = list(short_names(self.config.runs).values())
        more = len(names) - SHOWN_NAMES
        return f"Report on {', '.join(names[:SHOWN_NAMES])}" + f" and {more} more" * (more > 0)


def compare_evaluations(
    evaluations: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, str, str, str]]:
    """Differences of agents that were evaluated on the same world: who, k, difference, n."""
    rows = []
    for (first, one), (second, other) in itertools.combinations(evaluations.items(), 2):
        for world in one["worlds"]:
            if world not in other["worlds"]:
                continue
            ours, theirs = one["worlds"][world], other["worlds"][world]
            if "passes" not in ours or "passes" not in theirs:
                continue  # world models
            for k in _shared_ks(ours, theirs):
                difference = compare_passes(_outcomes(ours), _outcomes(theirs), k)
                if difference is not None:
                    name = f"{first} minus {second} on {world}"
                    rows.append((name, f"pass@{k}", _signed(difference), str(difference.n)))
    return rows


def _shared_ks(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[int]:
    """1, and the largest k that both have."""
    shared = sorted(int(k) for k in first["passes"].keys() & second["passes"].keys())
    return list(dict.fromkeys((*shared[:1], *shared[-1:])))


def _outcomes(scores: Mapping[str, Any]) -> Outcomes:
    return Outcomes(
        instances=scores["instances"], successes=scores["successes"], judged=scores["judged"]
    )


def _signed(difference: Metric) -> str:
    low, high = difference.low, difference.high
    spread = "" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]"
    return f"{difference.mean:+.3f}{spread}"
