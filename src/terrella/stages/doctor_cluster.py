"""`terrella doctor --cluster`: what is wrong on which node, before a run finds out.

Every node of the Ray cluster is asked for versions, devices, its clock, the shared folder and its way to the others.
    for finding in diagnose_cluster(Path("/shared/runs")): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from terrella.engines.verl.cluster_probe import NodeReport, probe_cluster
from terrella.stages.doctor import Finding

PACKAGES = ("terrella", "torch", "transformers", "ray", "verl", "vllm")
CLOCK_LIMIT = 1.0
"""Seconds. Ray's tokens, checkpoints' dates and logs from several nodes are compared by time."""


def diagnose_cluster(shared: Path, nodes: int = 0) -> list[Finding]:
    """One line per node and question; `good` is False where something must be done. Waits until `nodes` are there."""
    reports = probe_cluster(shared, PACKAGES, nodes)
    missing = [Finding(topic="cluster", subject="nodes", good=False, detail=f"{len(reports)} of {nodes} came")]
    return list(judge(reports, shared)) + (missing if len(reports) < nodes else [])


def judge(reports: Sequence[NodeReport], shared: Path) -> Iterator[Finding]:
    """Nodes are compared with what most of them say."""
    answered = [report for report in reports if not report.silent]
    usual = _usual_versions(answered)
    devices = Counter(report.devices for report in answered).most_common(1)
    for report in reports:
        if report.silent:
            yield _finding(report, "answers", f"no: {report.silent}", "")
            continue
        yield _finding(report, "versions", _odd_versions(report, usual), _shown(report.versions))
        yield _finding(report, "devices", _odd_devices(report, devices[0][0]), f"{report.devices} GPUs")
        yield _finding(report, "storage", _odd_storage(report, shared), f"{shared} is shared")
        yield _finding(report, "ports", _closed_ports(report), "reaches every node")
        yield _finding(report, "clock", _odd_clock(report), f"{report.clock:+.2f} s from here")


def _finding(report: NodeReport, subject: str, problem: str, fine: str) -> Finding:
    return Finding(topic=f"{report.name} ({report.address})", subject=subject, good=not problem, detail=problem or fine)


def _usual_versions(reports: Sequence[NodeReport]) -> dict[str, str]:
    names = {name for report in reports for name, _ in report.versions}
    said = {name: Counter(dict(report.versions)[name] for report in reports) for name in names}
    return {name: counts.most_common(1)[0][0] for name, counts in said.items()}


def _shown(versions: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {mine}" for name, mine in versions)


def _odd_versions(report: NodeReport, usual: dict[str, str]) -> str:
    odd = [f"{name} {mine}, elsewhere {usual[name]}" for name, mine in report.versions if mine != usual[name]]
    return "; ".join(odd)


def _odd_devices(report: NodeReport, usual: int) -> str:
    if report.devices != usual:
        return f"{report.devices} GPUs, other nodes have {usual}: verl wants the same on each"
    if report.seen and report.devices > report.seen:
        return f"Ray was promised {report.devices} GPUs, the node has {report.seen}"
    return ""


def _odd_storage(report: NodeReport, shared: Path) -> str:
    if report.reads and report.writes:
        return ""
    wrong = "does not see our file" if not report.reads else "writes what we do not see"
    return f"{wrong} in {shared}: mount the same file system"


def _closed_ports(report: NodeReport) -> str:
    names = ", ".join(report.unreachable)
    return f"cannot connect to {names}: open TCP between nodes" if names else ""


def _odd_clock(report: NodeReport) -> str:
    if abs(report.clock) <= CLOCK_LIMIT:
        return ""
    return f"{report.clock:+.2f} s from here: synchronise it (chrony, ntp)"
