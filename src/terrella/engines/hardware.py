"""Hardware by name, for plans: how many devices, and how much memory each has.

Nothing here imports torch or looks for a GPU: the hardware is the one that a run is planned for.
    parse_hardware("8xH100"); parse_hardware("2x8xA100-80G"); parse_hardware("2x24GB"); parse("cpu")
"""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import dataclass, replace

from terrella.core.errors import ConfigError

GB = 1e9
DEVICES = {
    "B200": 180 * GB,
    "H200": 141 * GB,
    "H100": 80 * GB,
    "A100": 80 * GB,
    "A100-80G": 80 * GB,
    "A100-40G": 40 * GB,
    "L40S": 48 * GB,
    "A6000": 48 * GB,
    "A10": 24 * GB,
    "L4": 24 * GB,
    "RTX4090": 24 * GB,
    "T4": 16 * GB,
}
"""Memory of known devices, as their data sheets say."""
CPU = "cpu"
CONTEXT_BYTES = 1.5 * GB
"""Fixed memory of each GPU: the CUDA context, NCCL's buffers and loaded kernels. Assumed."""
FRAGMENTATION = 0.05
"""Share of a GPU's memory that the caching allocator cannot use. Assumed."""
CPU_SHARE = 0.9
"""Share of a machine's memory that its processes may use together."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Equal devices; on a CPU a device is a process, and all of them share the memory."""

    name: str
    memory: float
    """Bytes of one GPU, or of the whole machine."""
    devices: int = 1
    """Per node."""
    nodes: int = 1

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def processes(self) -> int:
        """Training processes: one for each device."""
        return self.devices * self.nodes

    @property
    def usable(self) -> float:
        """Bytes that one training process can use."""
        if self.is_cpu:
            return self.memory * CPU_SHARE / self.devices
        return self.memory * (1 - FRAGMENTATION) - CONTEXT_BYTES

    def shared_by(self, jobs: int) -> Hardware:
        """What each of several jobs gets when they run at the same time.

        With fewer GPUs than jobs, several jobs are on one GPU (`engines.launcher.share_gpus`).
        """
        if self.is_cpu:
            return replace(self, memory=self.memory / jobs)
        if jobs > self.devices:
            on_one = math.ceil(jobs / self.devices)
            name = f"{self.name} shared by {on_one} jobs"
            return replace(self, name=name, memory=self.memory / on_one, devices=1)
        return replace(self, devices=self.devices // jobs)

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.devices}x{self.name}"


def parse_hardware(text: str) -> Hardware:
    """`8xH100`, `2x8xH100` (nodes x devices), `2x24GB`, `H100`, `cpu` or `2xcpu`."""
    found = re.fullmatch(r"(?:(?:(\d+)x)?(\d+)x)?([\w.-]+)", text.strip())
    if found is None:
        raise ConfigError(text, "is not a number of devices", "write it as 8xH100 or 2x24GB")
    nodes, devices, kind = found.groups()
    name, memory = _device(kind)
    counts = {"nodes": int(nodes or 1), "devices": int(devices or 1)}
    if 0 in counts.values():
        raise ConfigError(text, "has no device", "write it as 8xH100 or 2x24GB")
    return Hardware(name=name, memory=memory, **counts)


def _device(kind: str) -> tuple[str, float]:
    if kind.lower() == CPU:
        return CPU, machine_memory()
    size = re.fullmatch(r"(\d+(?:\.\d+)?)GB", kind, re.IGNORECASE)
    if size:
        return kind, float(size[1]) * GB
    by_upper = {name.upper(): name for name in DEVICES}
    name = by_upper.get(kind.upper().removesuffix("B") if kind.upper().endswith("GB") else "")
    name = by_upper.get(kind.upper(), name)
    if name is None:
        near = difflib.get_close_matches(kind.upper(), list(by_upper), n=2)
        start = f"did you mean {' or '.join(by_upper[each] for each in near)}? " if near else ""
        known = f"known: {', '.join(DEVICES)}, cpu, or a size such as 24GB"
        raise ConfigError(kind, "no such device", start + known)
    return name, DEVICES[name]


def machine_memory() -> float:
    """Bytes of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
