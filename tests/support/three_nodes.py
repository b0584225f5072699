"""Three Ray nodes on this machine, one of which is lost while episodes are collected.

python -m tests.support.three_nodes FOLDER EPISODES     prints what was kept, as JSON
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from terrella.data.store import EpisodeStore
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.stages.collect import Collect
from terrella.worlds.counter import Counter


class LosesANode(SilentProgress):
    """After the first chunk the raylet of a node with workers is killed, and with it everything that ran there."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.lost, self.at = cluster, "", 0.0

    def advance(self, done: int, **_: float) -> None:
        if done and not self.lost:
            node, workers = self.busy_node()
            self.lost, self.at = node.node_id, time.monotonic()
            self.cluster.remove_node(node, allow_graceful=False)
            # A worker outlives its raylet for a moment, in which it could finish all that is left.
            psutil.wait_procs(workers, timeout=60)

    def busy_node(self) -> tuple[Any, list[psutil.Process]]:
        """A node on which workers live, and they: collecting waits until there is one."""
        from ray._private.state import actors

        for _ in range(600):
            living = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
            for node in self.cluster.worker_nodes:
                pids = [actor["Pid"] for actor in living if actor["Address"]["NodeID"] == node.node_id]
                if pids:
                    return node, [psutil.Process(pid) for pid in pids]
            time.sleep(0.1)
        raise TimeoutError("no worker has started on the other nodes within 60 s")


def collect(out: Path, episodes: int) -> dict[str, Any]:
    """Collect on three nodes, lose one; what came of it."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        loser = LosesANode(cluster)
        began = time.monotonic()
        stage = Collect(
            Collect.Config(
                world=Counter.Config(),
                policy=Random.Config(),
                out=out,
                episodes=episodes,
                workers=4,
                chunk_episodes=max(episodes // 100, 10),
            )
        )
        stage.run(loser)
        found = [episode.seed for episode in EpisodeStore.open(out).episodes()]
        return {"episodes": len(found), "lost": len(set(range(episodes)) - set(found)),
                "duplicated": len(found) - len(set(found)), "nodes_lost": int(bool(loser.lost)),
                "workers_lost": stage.losses, "seconds": round(time.monotonic() - began, 1),
                "seconds_after_the_loss": round(time.monotonic() - loser.at, 1)}  # fmt: skip
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
