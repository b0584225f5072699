"""Probes every node of a Ray cluster: versions, GPUs, clock, shared folder, connections.

A probe is an actor pinned to a node; it reports plain values. `terrella doctor` decides what is
wrong with them.
    for report in probe_cluster(Path("/shared/runs"), packages=("torch", "verl")):
        print(report.name, report.versions)
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from terrella.core.errors import EngineError
from terrella.rollout.fanout import import_ray

SECONDS = 60.0
"""A node that has not answered by then is reported as silent."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """What one node reported. `silent` is the reason why it did not, if so."""

    name: str
    address: str
    silent: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    devices: int = 0
    """GPUs that Ray schedules on the node."""
    seen: int = 0
    """GPUs that the node's driver lists."""
    clock: float = 0.0
    """Seconds that its clock is ahead of ours."""
    reads: bool = False
    """The node sees our file in the shared folder."""
    writes: bool = False
    """We see the node's file in the shared folder."""
    unreachable: tuple[str, ...] = ()
    """Nodes that it cannot connect to."""


def probe_cluster(shared: Path, packages: Sequence[str], expected: int = 0) -> list[NodeReport]:
    """Probe the nodes of the connected Ray cluster, or else of the one at `RAY_ADDRESS`."""
    ray = import_ray()
    with _connected(ray), _marked(shared) as mark:
        nodes = _alive(ray, expected)
        probes = [_pinned(ray, NodeProbe, node) for node in nodes]
        targets = []
        for node, probe in zip(nodes, probes, strict=True):
            port = _answer(ray, probe.port.remote())
            targets.append((node["NodeName"], node["NodeManagerAddress"], port))
        return [
            _report(ray, node, probe, mark, packages, targets)
            for node, probe in zip(nodes, probes, strict=True)
        ]


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    if "RAY_ADDRESS" not in os.environ:
        raise EngineError(
            "ray",
            "no cluster to probe",
            "set RAY_ADDRESS=HOST:PORT, on a node of the cluster",
        )
    ray.init(log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _alive(ray: Any, expected: int) -> list[dict[str, Any]]:
    """The nodes that are alive; waits up to a minute until there are `expected` of them."""
    deadline = time.monotonic() + SECONDS
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if len(nodes) >= expected or time.monotonic() > deadline:
            return nodes
        time.sleep(1.0)


@contextlib.contextmanager
def _marked(shared: Path) -> Iterator[Path]:
    """Write a file to the shared folder that every node must see; remove it afterwards."""
    shared.mkdir(parents=True, exist_ok=True)
    mark = (shared / f".doctor-{uuid.uuid4().hex}").resolve()
    mark.write_text("here")
    try:
        yield mark
    finally:
        for leftover in mark.parent.glob(mark.name + "*"):
            leftover.unlink(missing_ok=True)


def _pinned(ray: Any, actor: type[Any], node: dict[str, Any]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=strategy)(actor).remote()


def _answer(ray: Any, call: Any) -> Any:
    """The result of a call, or its error, returned: one bad node must not hide the others."""
    try:
        return ray.get(call, timeout=SECONDS)
    except ray.exceptions.RayError as error:
        return error


def _report(
    ray: Any,
    node: dict[str, Any],
    probe: Any,
    mark: Path,
    packages: Sequence[str],
    targets: Sequence[Any],
) -> NodeReport:
    identity = {"name": node["NodeName"], "address": node["NodeManagerAddress"]}
    started = time.time()
    their_time = _answer(ray, probe.clock.remote())
    clock = 0.0
    if not isinstance(their_time, Exception):
        clock = their_time - (started + time.time()) / 2
    facts = _answer(
        ray, probe.facts.remote(str(mark), list(packages), list(targets), uuid.uuid4().hex)
    )
    if isinstance(facts, Exception):
        reason = " ".join(str(facts).split())[:200] or type(facts).__name__
        return NodeReport(**identity, silent=reason)
    wrote = facts.pop("wrote")
    devices = int(node["Resources"].get("GPU", 0))
    writes = Path(wrote).exists()
    return NodeReport(**identity, **facts, devices=devices, clock=clock, writes=writes)


class NodeProbe:
    """The actor on a node: it listens on a port of its own and collects facts."""

    def __init__(self) -> None:
        """Listens on any free port, as the trainer's rendezvous and the servers do."""
        self.listening = socket.create_server(("", 0))

    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def clock(self) -> float:
        return time.time()

    def facts(
        self, mark: str, packages: list[str], targets: list[tuple[str, str, Any]], own: str
    ) -> dict[str, Any]:
        """Fields of a `NodeReport`, as plain values, and the file that was written."""
        wrote = Path(f"{mark}-{own}")
        with contextlib.suppress(OSError):  # the caller checks whether the file exists
            wrote.write_text("here")
        return {
            "versions": (
                ("python", platform.python_version()),
                *((name, _version(name)) for name in packages),
            ),
            "seen": len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            "reads": Path(mark).exists(),
            "wrote": str(wrote),
            "unreachable": tuple(name for name, host, port in targets if not _reaches(host, port)),
        }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _reaches(host: str, port: Any) -> bool:
    if not isinstance(port, int):
        return True  # that node is silent, and reported as such
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False
