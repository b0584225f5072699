"""The doctor's look at a cluster: what is wrong is named, on the node where it is."""

from pathlib import Path

import pytest

from terrella.engines.verl.cluster_probe import NodeReport
from terrella.stages.doctor_cluster import judge

FINE = {"versions": (("python", "3.11.7"), ("verl", "0.9.1")), "devices": 8, "seen": 8, "reads": True, "writes": True}


def node(name: str, **changes: object) -> NodeReport:
    return NodeReport(name=name, address="10.0.0.1", **{**FINE, **changes})  # type: ignore[arg-type]


def wrong(*reports: NodeReport) -> list[tuple[str, str, str]]:
    found = judge(reports, Path("/shared"))
    return [(f.topic.split()[0], f.subject, f.detail) for f in found if not f.good]


def test_a_healthy_cluster_has_nothing_to_say():
    assert wrong(node("a"), node("b"), node("c")) == []


@pytest.mark.parametrize(
    ("changes", "subject", "detail"),
    [
        ({"versions": (("python", "3.11.7"), ("verl", "0.9.0"))}, "versions", "verl 0.9.0, elsewhere 0.9.1"),
        ({"devices": 4}, "devices", "4 GPUs, other nodes have 8"),
        ({"seen": 4}, "devices", "Ray was promised 8 GPUs, the node has 4"),
        ({"reads": False}, "storage", "does not see our file in /shared"),
        ({"writes": False}, "storage", "writes what we do not see"),
        ({"unreachable": ("a",)}, "ports", "cannot connect to a"),
        ({"clock": -3.0}, "clock", "-3.00 s from here"),
        ({"silent": "GetTimeoutError"}, "answers", "GetTimeoutError"),
    ],
)
def test_what_is_wrong_is_named_on_its_node(changes: dict[str, object], subject: str, detail: str):
    ((name, topic, said),) = wrong(node("a"), node("b"), node("bad", **changes))
    assert (name, topic) == ("bad", subject) and detail in said
