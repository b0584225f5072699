"""`terrella doctor --cluster` names each problem and the node that has it."""

from pathlib import Path

import pytest

from terrella.commands.doctor_cluster import judge
from terrella.engines.cluster_probe import NodeReport

FINE = {
    "versions": (("python", "3.11.7"), ("verl", "0.9.1")),
    "devices": 8,
    "seen": 8,
    "reads": True,
    "writes": True,
}


def node(name: str, **changes: object) -> NodeReport:
    return NodeReport(name=name, address="10.0.0.1", **{**FINE, **changes})  # type: ignore[arg-type]


def problems(*reports: NodeReport) -> list[tuple[str, str, str]]:
    findings = judge(reports, Path("/shared"))
    return [(f.topic.split()[0], f.subject, f.detail) for f in findings if not f.good]


def test_a_healthy_cluster_has_no_problems():
    assert problems(node("a"), node("b"), node("c")) == []


@pytest.mark.parametrize(
    ("changes", "subject", "detail"),
    [
        (
            {"versions": (("python", "3.11.7"), ("verl", "0.9.0"))},
            "versions",
            "verl 0.9.0, elsewhere 0.9.1",
        ),
        ({"devices": 4}, "devices", "4 GPUs, other nodes have 8"),
        ({"seen": 4}, "devices", "Ray was promised 8 GPUs, the node has 4"),
        ({"reads": False}, "storage", "does not see our file in /shared"),
        ({"writes": False}, "storage", "writes what we do not see"),
        ({"unreachable": ("a",)}, "ports", "cannot connect to a"),
        ({"clock": -3.0}, "clock", "-3.00 s from here"),
        ({"silent": "GetTimeoutError"}, "answers", "GetTimeoutError"),
    ],
)
def test_a_problem_is_named_on_its_node(changes: dict[str, object], subject: str, detail: str):
    ((name, topic, message),) = problems(node("a"), node("b"), node("bad", **changes))
    assert (name, topic) == ("bad", subject) and detail in message
