"""What a GPU run must show for the cluster engine, and a CPU cannot.

By hand, on a node with at least two GPUs:

    python tests/gpu/check_verl.py /shared/runs/check           exits 1 and names what does not hold
Real vLLM kernels and NCCL weight sync in bf16, prefix cache, sleep mode, PPO with a critic, a
killed server, mini-batches, replies that a weight sync interrupts (schedule=async), and servers
that share the devices of a learner's workers.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

SETTINGS = (
    "engine=verl",
    "model=tiny-25m",
    "rlvr.groups=32",
    "rlvr.steps=20",
    "rlvr.save_every=5",
    "warmup_examples=2000",
)
BF16_MISMATCH = 0.02
"""Mean difference in log-probability that bf16 kernels of sampler and trainer may have.

Fp32 must stay below 1e-3.
"""


def run(out: Path, *extra: str, kill_after: float = 0.0) -> list[dict[str, Any]]:
    """The command; the figures of every step."""
    words = [word for setting in (*SETTINGS, *extra) for word in ("--set", setting)]
    process = subprocess.Popen(["terrella", "rlvr", "tiny_counter", "--out", str(out), *words])
    if kill_after:
        time.sleep(kill_after)
        kill_a_server(process.pid)
    if process.wait():
        raise SystemExit(f"{out} failed")
    return [
        json.loads(line) for line in (out / "model-rlvr" / "metrics.jsonl").read_text().splitlines()
    ]


def kill_a_server(pid: int) -> None:
    """SIGKILL one vLLM server of this run."""
    family = psutil.Process(pid).children(recursive=True)
    servers = [process for process in family if "vLLMHttpServer" in " ".join(process.cmdline())]
    os.kill(servers[0].pid, signal.SIGKILL)


def main(folder: Path) -> list[str]:
    """What does not hold."""
    wrong = []
    for name, extra, limit in (
        ("grpo_fp32", (), 1e-3),
        ("grpo_bf16", ("rlvr.bf16=true",), BF16_MISMATCH),
        (
            "ppo_bf16",
            ("rlvr.bf16=true", "rlvr.algorithm=ppo", "rlvr.critic=separate"),
            BF16_MISMATCH,
        ),
    ):
        rows = run(folder / name, *extra)
        worst = max(row["mismatch/mean"] for row in rows)
        if worst > limit:
            wrong.append(f"{name}: sampler and trainer differ by {worst:.2g}")
        if sum(row["prefix_hits"] for row in rows) / len(rows) < 0.3:
            wrong.append(f"{name}: the prefix cache is not hit")
        if rows[-1]["reward"] <= rows[0]["reward"]:
            wrong.append(
                f"{name}: the reward did not rise "
                f"({rows[0]['reward']:.2f} to {rows[-1]['reward']:.2f})"
            )
    wrong += check_mini_batches(folder / "parts")
    wrong += check_async(folder / "async") + check_learner(folder / "learner")
    if len({row["step"] for row in run(folder / "killed", kill_after=180.0)}) != 20:
        wrong.append("killed: not every step was done")
    return wrong


def check_mini_batches(folder: Path) -> list[str]:
    """Two optimizer steps on each batch of episodes: 20 steps are 10 batches."""
    parts = ("rlvr.mini_batches=2", "rlvr.save_every=10", "rlvr.bf16=true")
    rows = run(folder, *parts, "rlvr.algorithm=ppo", "rlvr.critic=separate")
    wrong = []
    if [row["step"] for row in rows] != list(range(1, 11)):
        wrong.append(f"mini-batches: 20 steps were {len(rows)} batches")
    # The ratio differs from 1 from the second step of a batch on.
    if not any(row["clip_share"] for row in rows):
        wrong.append("mini-batches: no ratio was ever clipped, as if there were one step a batch")
    return wrong


def check_async(folder: Path) -> list[str]:
    """Long replies: a step aborts and continues them, and sleeping servers lose none."""
    wrong = []
    rows = run(folder, "rlvr.schedule=async", "rlvr.staleness=2", "rlvr.bf16=true", "max_turns=8")
    ages = [row["staleness/max"] for row in rows]
    if max(ages) > 2 or not any(ages):
        wrong.append(f"async: the oldest groups of the steps are {ages} versions old")
    current = [row["mismatch/mean"] for row in rows if "mismatch/mean" in row]
    if not current or max(current) > BF16_MISMATCH:
        wrong.append(f"async: sampler and trainer differ on current rows by {current}")
    if len({row["step"] for row in rows}) != 20 or any(row["masked"] for row in rows):
        wrong.append("async: steps or episodes are missing")
    return wrong


def check_learner(folder: Path) -> list[str]:
    """A learner, its servers on the same devices, and the learner again, in its old memory."""
    from terrella.core.tokens import AdamParams, TokenRequest, TrainExample
    from terrella.engines.configs import EngineConfig
    from terrella.engines.engine import make_engine, start_model

    example = TrainExample(prompt_ids=[5, 6], completion_ids=[7, 8, 9], mask=[True] * 3)
    request = TokenRequest(prompt_ids=(5, 6), max_new_tokens=3, seed=0, temperature=0.0)
    start = start_model("tiny-25m", folder / "start")
    with (
        make_engine(EngineConfig(engine="verl"), work=folder) as engine,
        engine.learner(start, work=folder) as learner,
    ):
        for _ in range(60):
            learner.forward_backward([example] * 3, "cross_entropy")
            learner.optim_step(AdamParams(learning_rate=1e-3))
        before = learner.forward([example])
        with learner.sampler() as sampler:
            written = asyncio.run(sampler.sample(request)).token_ids
        after = learner.forward([example])
    wrong = [] if written == (7, 8, 9) else [f"learner: its servers wrote {written}"]
    return wrong if before == after else [*wrong, "learner: sampling changed its weights"]


if __name__ == "__main__":
    found = main(Path(sys.argv[1]))
    sys.stderr.write("\n".join(found or ["all holds"]) + "\n")
    sys.exit(bool(found))
