"""`terrella doctor --cluster`: find the problems of a Ray cluster, node by node, before a run.

Every node is probed for versions, devices, its clock, the shared folder and its connections to the
other nodes.
    for finding in diagnose_cluster(Path("/shared/runs")): print(finding.topic, finding.detail)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from terrella.commands.doctor import Finding
from terrella.engines.cluster_probe import NodeReport, probe_cluster

PACKAGES = ("terrella", "torch", "transformers", "ray", "verl", "vllm")
CLOCK_LIMIT = 1.0
"""Seconds. Ray's tokens, checkpoints' dates and logs from several nodes are compared by time."""


def diagnose_cluster(shared: Path, nodes: int = 0) -> list[Finding]:
    """Probe every node, and return one finding per node and property.

    Waits until `nodes` nodes have joined.
    """
    reports = probe_cluster(shared, PACKAGES, nodes)
    findings = list(judge(reports, shared))
    if len(reports) < nodes:
        detail = f"{len(reports)} of {nodes} joined"
        findings.append(Finding(topic="cluster", subject="nodes", good=False, detail=detail))
    return findings


def judge(reports: Sequence[NodeReport], shared: Path) -> Iterator[Finding]:
    """Compare each node with the majority of the nodes."""
    answered = [report for report in reports if not report.silent]
    usual = _usual_versions(answered)
    devices = Counter(report.devices for report in answered).most_common(1)
    for report in reports:
        if report.silent:
            yield _finding(report, "answers", f"no: {report.silent}", "")
            continue
        versions = ", ".join(f"{name} {version}" for name, version in report.versions)
        gpus = f"{report.devices} GPUs"
        yield _finding(report, "versions", _odd_versions(report, usual), versions)
        yield _finding(report, "devices", _odd_devices(report, devices[0][0]), gpus)
        yield _finding(report, "storage", _odd_storage(report, shared), f"{shared} is shared")
        yield _finding(report, "ports", _closed_ports(report), "reaches every node")
        yield _finding(report, "clock", _odd_clock(report), f"{report.clock:+.2f} s from here")


def _finding(report: NodeReport, subject: str, problem: str, fine: str) -> Finding:
    return Finding(
        topic=f"{report.name} ({report.address})",
        subject=subject,
        good=not problem,
        detail=problem or fine,
    )


def _usual_versions(reports: Sequence[NodeReport]) -> dict[str, str]:
    """Return the most common version of each package."""
    names = {name for report in reports for name, _ in report.versions}
    usual = {}
    for name in names:
        counts = Counter(dict(report.versions)[name] for report in reports)
        usual[name] = counts.most_common(1)[0][0]
    return usual


def _odd_versions(report: NodeReport, usual: dict[str, str]) -> str:
    odd = [
        f"{name} {version}, elsewhere {usual[name]}"
        for name, version in report.versions
        if version != usual[name]
    ]
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
