"""A Ray that we start cannot be reached from other machines."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from terrella.rollout.fanout import cluster

pytest.importorskip("ray", reason="needs the extra: pip install 'terrella[ray]'")

LISTENING = "0A"
PROGRAM = """
import os
from terrella.rollout.fanout import cluster, import_ray

ray = import_ray()
with cluster(ray, 1):
    print("session", ray._private.worker._global_node.session_name, os.getpid(), flush=True)
    input()
"""


def listening_addresses(processes: set[int]) -> list[str]:
    """Local addresses, in the kernel's hexadecimal, on which these processes listen."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except FileNotFoundError:
                continue  # closed meanwhile
            inodes.add(target.removeprefix("socket:[").rstrip("]"))
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == LISTENING and columns[9] in inodes:
                found.append(columns[1])
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_process_of_ray_listens_on_loopback_only():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    try:
        _, session, driver = process.stdout.readline().split()
        started = subprocess.run(["pgrep", "-f", session], capture_output=True, text=True)
        addresses = listening_addresses({int(driver), *map(int, started.stdout.split())})
    finally:
        process.communicate("\n", timeout=60)
    assert len(addresses) >= 2  # the raylet and its control store
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000")
    outside = [address for address in addresses if not address.startswith(loopback)]
    assert not outside


def test_a_cluster_that_happens_to_run_here_is_not_joined(monkeypatch):
    """Without an address Ray joins the cluster that a file in /tmp names, whoever wrote it."""
    asked = {}
    stand_in = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: asked.update(options),
        cluster_resources=lambda: {"CPU": 2.0},
        shutdown=lambda: None,
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with cluster(stand_in, 2):
        assert asked["address"] == "local" and asked["num_cpus"] == 2
