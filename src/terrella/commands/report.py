"""`terrella report RUN...`: curves, tables, certificates, cost and config differences of runs.

Takes run folders and files of `results/`.
    Report(Report.Config(runs=(Path("runs/a-0"), Path("runs/a-1")), out=Path("report"))).write()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terrella.core.config import Configurable, Local, Recorded
from terrella.core.errors import ConfigError
from terrella.core.files import locked
from terrella.show.report import write_report
from terrella.show.report_data import load_report_data


class Report(Configurable):
    """The command; `write` returns the files."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The runs to report on, and the folder of the report."""

        runs: Local[tuple[Path, ...]]
        """Run folders, and files of `results/`."""
        out: Local[Path] = Path("report")
        title: Recorded[str] = "Report"

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
        with locked(self.config.out):
            return write_report(data, self.config.out, title=self.config.title)
