"""Three Ray nodes on this machine, one of which is lost while episodes are collected.

The number of stored, lost and duplicated episodes is printed as JSON.
    python -m tests.support.three_nodes FOLDER EPISODES
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter


class LosesANode(SilentProgress):
    """Kills a node with workers after the first chunk, and with it everything that runs there."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.lost = ""
        self.at = 0.0

    def advance(self, done: int, **_: float) -> None:
        if done and not self.lost:
            node, workers = self.busy_node()
            self.lost, self.at = node.node_id, time.monotonic()
            self.cluster.remove_node(node, allow_graceful=False)
            # A worker outlives its raylet for a moment, and could finish the remaining chunks.
            psutil.wait_procs(workers, timeout=60)

    def busy_node(self) -> tuple[Any, list[psutil.Process]]:
        """A node with workers, and their processes; waits until there is one."""
        from ray._private.state import actors

        for _ in range(600):
            alive = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
            for node in self.cluster.worker_nodes:
                pids = [
                    actor["Pid"] for actor in alive if actor["Address"]["NodeID"] == node.node_id
                ]
                if pids:
                    return node, [psutil.Process(pid) for pid in pids]
            time.sleep(0.1)
        raise TimeoutError("no worker has started on the other nodes within 60 s")


def collect(out: Path, episodes: int) -> dict[str, Any]:
    """Collect on three nodes while one is lost, and count the episodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        loser = LosesANode(cluster)
        started = time.monotonic()
        pipeline = Collect(
            Collect.Config(
                world=Counter.Config(),
                policy=Random.Config(),
                out=out,
                episodes=episodes,
                workers=4,
                chunk_episodes=max(episodes // 100, 10),
            )
        )
        pipeline.run(loser)
        seeds = [episode.seed for episode in EpisodeStore.open(out).episodes()]
        return {
            "episodes": len(seeds),
            "lost": len(set(range(episodes)) - set(seeds)),
            "duplicated": len(seeds) - len(set(seeds)),
            "nodes_lost": int(bool(loser.lost)),
            "workers_lost": pipeline.losses,
            "seconds": round(time.monotonic() - started, 1),
            "seconds_after_the_loss": round(time.monotonic() - loser.at, 1),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
