"""Commands about this machine: the sites of the mini-arena, what is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from terrella.cli.app import app, console


@app.command(name="sites")
def sites(
    verb: Positional[Literal["up", "reset", "down", "status"]],
    /,
    names: Positional[tuple[str, ...]] = (),
) -> None:
    """Install and start, reset, or stop the web sites of the mini-arena.

    Args:
        verb: up, reset, down or status.
        names: only these sites (shop, forum, tracker).
    """
    from terrella.commands.sites import run

    run(verb, names)


@app.command(name="doctor")
def doctor(*, cluster: bool = False, nodes: int = 0, out: Path = Path("runs")) -> None:
    """Say what is installed, what is missing for which extra, and what this machine has.

    Args:
        cluster: check every node of the Ray cluster (RAY_ADDRESS); exit 1 on a problem.
        nodes: with --cluster, wait for this many nodes.
        out: with --cluster, the folder that all nodes must share.
    """
    from terrella.commands.doctor import diagnose

    findings = list(diagnose())
    if cluster:
        from terrella.commands.doctor_cluster import diagnose_cluster

        findings = diagnose_cluster(out, nodes)
    table = Table("", "", "", "detail")
    for finding in findings:
        table.add_row(
            finding.topic,
            finding.subject,
            "[green]ok[/]" if finding.good else "[yellow]--[/]",
            escape(finding.detail),
        )
    console.print(table)
    sys.exit(1 if cluster and not all(finding.good for finding in findings) else 0)
