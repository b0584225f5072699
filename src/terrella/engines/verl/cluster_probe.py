"""One look at every node of a Ray cluster: versions, devices, clock, the shared folder, and whether nodes reach nodes.

A probe is a task pinned to a node; it sends plain values. What is wrong is decided elsewhere (`stages/doctor_cluster`).
    for report in probe_cluster(Path("/shared/runs"), packages=("torch", "verl")): ...
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
from terrella.engines.fanout import import_ray

SECONDS = 60.0
"""A node that has not answered by then is named as silent."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """What one node said; `silent` says why there is nothing else."""

    name: str
    address: str
    silent: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    devices: int = 0
    """GPUs that Ray may hand out there."""
    seen: int = 0
    """GPUs that the node itself has."""
    clock: float = 0.0
    """Seconds ahead of the node that asks."""
    reads: bool = False
    writes: bool = False
    """The shared folder: sees our file; we see its."""
    unreachable: tuple[str, ...] = ()
    """Nodes that it could not connect to."""


def probe_cluster(shared: Path, packages: Sequence[str], expected: int = 0) -> list[NodeReport]:
    """Ask every node of the Ray cluster that `RAY_ADDRESS` names, or of the one this process is connected to."""
    ray = import_ray()
    with _connected(ray), _marked(shared) as mark:
        nodes = _alive(ray, expected)
        doors = {node["NodeID"]: _pinned(ray, Door, node) for node in nodes}
        ports = {node["NodeID"]: _answer(ray, doors[node["NodeID"]].port.remote()) for node in nodes}
        targets = [(n["NodeName"], n["NodeManagerAddress"], ports[n["NodeID"]]) for n in nodes]
        return [_report(ray, node, doors[node["NodeID"]], mark, packages, targets) for node in nodes]


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    if "RAY_ADDRESS" not in os.environ:
        raise EngineError("ray", "no cluster to look at", "RAY_ADDRESS=HOST:PORT, on a node of the cluster")
    ray.init(log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _alive(ray: Any, expected: int) -> list[dict[str, Any]]:
    """The nodes there are; for a while, wait until as many have come as are expected."""
    until = time.monotonic() + SECONDS
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if len(nodes) >= expected or time.monotonic() > until:
            return nodes
        time.sleep(1.0)


@contextlib.contextmanager
def _marked(shared: Path) -> Iterator[Path]:
    """A file of ours in the shared folder, which every node must see."""
    shared.mkdir(parents=True, exist_ok=True)
    mark = (shared / f".doctor-{uuid.uuid4().hex}").resolve()
    mark.write_text("here")
    try:
        yield mark
    finally:
        for left in mark.parent.glob(mark.name + "*"):
            left.unlink(missing_ok=True)


def _pinned(ray: Any, actor: type[Any], node: dict[str, Any]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=place)(actor).remote()


def _answer(ray: Any, call: Any) -> Any:
    """The answer, or what went wrong as an exception that is not raised: one bad node must not hide the others."""
    try:
        return ray.get(call, timeout=SECONDS)
    except ray.exceptions.RayError as error:
        return error


def _report(
    ray: Any, node: dict[str, Any], door: Any, mark: Path, packages: Sequence[str], targets: Sequence[Any]
) -> NodeReport:
    known = {"name": node["NodeName"], "address": node["NodeManagerAddress"]}
    asked = time.time()
    said = _answer(ray, door.clock.remote())
    clock = 0.0 if isinstance(said, Exception) else said - (asked + time.time()) / 2
    facts = _answer(ray, door.look.remote(str(mark), list(packages), list(targets), uuid.uuid4().hex))
    if isinstance(facts, Exception):
        return NodeReport(**known, silent=" ".join(str(facts).split())[:200] or type(facts).__name__)
    wrote = facts.pop("wrote")
    devices = int(node["Resources"].get("GPU", 0))
    return NodeReport(**known, **facts, devices=devices, clock=clock, writes=Path(wrote).exists())


class Door:
    """What runs on a node: listens on a port of its own choice, and looks around."""

    def __init__(self) -> None:
        """Any free port: the trainer's rendezvous and the servers choose theirs like this, too."""
        self.listening = socket.create_server(("", 0))

    def port(self) -> int:
        """Where to knock."""
        return int(self.listening.getsockname()[1])

    def clock(self) -> float:
        """The time here."""
        return time.time()

    def look(self, mark: str, packages: list[str], targets: list[tuple[str, str, Any]], own: str) -> dict[str, Any]:
        """Plain values only."""
        wrote = Path(f"{mark}-{own}")
        with contextlib.suppress(OSError):  # a folder that cannot be written is what is asked here
            wrote.write_text("here")
        return {
            "versions": (("python", platform.python_version()), *((name, _version(name)) for name in packages)),
            "seen": len(list(Path("/proc/driver/nvidia/gpus").glob("*"))), "reads": Path(mark).exists(),
            "wrote": str(wrote), "unreachable": tuple(name for name, host, port in targets if not _reaches(host, port)),
        }  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _reaches(host: str, port: Any) -> bool:
    if not isinstance(port, int):
        return True  # that node is silent: it is named for that already
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False
