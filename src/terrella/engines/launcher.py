"""How a command is started on several devices: the scripts in `launch/`, with their environment.

The scripts are the single source of how processes meet. In a checkout they are in `launch/`, in an
installed package beside this one's modules. Nothing here imports torch.
    launch = Launch(devices=8, sharding="fsdp2")
    subprocess.run(launch.words(["rlvr", "tiny_counter"]), env=launch.environment())
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import terrella
from terrella.core.errors import ConfigError

NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Has an entry for each GPU of the machine."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def launch_folder() -> Path:
    """The folder of launch files."""
    package = Path(terrella.__file__).parent
    for folder in (package / "launch", package.parents[1] / "launch"):
        if (folder / "node.sh").exists():
            return folder
    raise ConfigError("launch", "the launch files are not installed", "reinstall terrella")


def visible_gpus() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, without starting CUDA."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return tuple(part for part in named.split(",") if part and part != "-1")
    return tuple(map(str, range(len(list(NVIDIA.iterdir()))))) if NVIDIA.is_dir() else ()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Devices for one command. Several nodes each start it with the same words."""

    devices: int
    """Per node."""
    nodes: int = 1
    sharding: Literal["ddp", "fsdp2"] = "ddp"
    engine: Literal["trl", "verl"] = "trl"
    gpus: tuple[str, ...] = ()
    """The GPUs of this node to use; empty leaves it to the environment."""
    port: int = 0
    """Port of the rendezvous; 0 is a free one on one node, and the script's own on several."""

    @classmethod
    def from_environment(cls, devices: int) -> Self:
        """What `launch/node.sh` was told, for a command that starts jobs of its own."""
        sharding = os.environ.get("SHARDING", "ddp")
        return cls(
            devices=devices,
            nodes=int(os.environ.get("NODES", "1")),
            sharding="fsdp2" if sharding == "fsdp2" else "ddp",
            port=int(os.environ.get("PORT", "0")),
        )

    def words(self, command: Sequence[str]) -> list[str]:
        """The command on this node, such as `rlvr tiny_counter --out runs/x`."""
        script = "verl_node.sh" if self.engine == "verl" else "node.sh"
        return ["bash", str(launch_folder() / script), *command]

    def environment(self) -> Mapping[str, str]:
        """The environment of that command; the scripts find this Python's programs."""
        beside = str(Path(sys.executable).parent)
        settings = {
            "DEVICES": str(self.devices),
            "NODES": str(self.nodes),
            "SHARDING": self.sharding,
            "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        if self.nodes == 1 and self.engine == "trl":
            settings["PORT"] = str(self.port or free_port())
        elif self.port:
            settings["PORT"] = str(self.port)
        if self.gpus:
            settings[VISIBLE] = ",".join(self.gpus)
        return {**os.environ, **settings}


def free_port() -> int:
    """A port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def share_gpus(gpus: Sequence[str], jobs: int) -> list[tuple[str, ...]]:
    """The GPUs of each of some jobs that run at once: equal parts, none twice.

    With fewer GPUs than jobs, jobs share one; without any, they get none.
    """
    if not gpus:
        return [()] * jobs
    each = len(gpus) // jobs
    if not each:
        return [(gpus[job % len(gpus)],) for job in range(jobs)]
    return [tuple(gpus[job * each : (job + 1) * each]) for job in range(jobs)]
