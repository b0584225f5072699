"""`terrella report RUN...`: curves, tables, certificates, cost and config differences in one report.

    Report(Report.Config(runs=(Path("runs/a-0"), Path("runs/a-1")), out=Path("report"))).write()
"""  # fmt: skip

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.show.facts import gather
from terrella.show.report import write_report


class Report(Configurable):
    """The stage: `write` returns the files."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What it is about, and where it goes."""

        runs: tuple[Path, ...]
        """Folders of runs, and files of `results/`."""
        out: Path = Path("report")
        title: str = "Report"

        def __post_init__(self) -> None:
            """Refuse a report about nothing."""
            if not self.runs:
                raise ConfigError("report", "no run named", "terrella report RUN... (folders, or files of results)")

    config: Config

    def write(self) -> list[Path]:
        """`report.md`, `report.html`, `report.pdf`."""
        return write_report(gather(self.config.runs), self.config.out, title=self.config.title)
