"""What a GPU run must show for TRL with vLLM, and a CPU cannot.

By hand, on a node with at least three GPUs, from the repository's root:

    python tests/gpu/check_trl_vllm.py runs/check           exits 1 and names what does not hold
A server on a GPU of its own gets weights over NCCL. A server that shares the trainer's GPU sleeps
while the trainer trains, and has nearly all of that GPU after a warm-up. Two ranks with FSDP2 share
one server and have one process's gradient. Flex attention gives sdpa's gradients. A plain process
that sees several GPUs is refused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SETTINGS = (
    "model=tiny-25m",
    "sampler=vllm",
    "warmup_examples=2000",
    "rlvr.groups=16",
    "rlvr.steps=10",
    "rlvr.bf16=true",
)
BF16_MISMATCH = 0.02
"""Mean difference in log-probability that bf16 kernels of sampler and trainer may have."""
FSDP2 = ("accelerate", "launch", "--config_file=launch/accelerate/fsdp2.yaml")


def run(
    out: Path, *extra: str, gpus: str, launch: tuple[str, ...] = (), fails: bool = False
) -> list[dict[str, Any]]:
    """The command; the metrics of every step."""
    words = [word for setting in (*SETTINGS, *extra) for word in ("--set", setting)]
    program = (*launch, "-m", "terrella") if launch else (sys.executable, "-m", "terrella")
    done = subprocess.run(
        [*program, "rlvr", "tiny_counter", "--out", str(out), *words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus},
        check=False,
    )
    if bool(done.returncode) != fails:
        raise SystemExit(f"{out} ended with code {done.returncode}")
    path = out / "curve.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(folder: Path) -> list[str]:
    """What does not hold."""
    two = (*FSDP2, "--num_processes=2")
    runs = {
        # Seen: "nccl" in model-rlvr/vllm.log; seconds/sync far below those of `shared`.
        "nccl": run(folder / "nccl", "vllm.devices=1", gpus="0"),
        # Seen: nvidia-smi shows the server's memory fall while the trainer trains.
        "shared": run(folder / "shared", "vllm.sleep=true", "vllm.memory=0.3", gpus="0"),
        # Seen: it starts: what the warm-up took is free again. It wakes at each of ten syncs: so is
        # what torch kept of the last step.
        "tight": run(folder / "tight", "vllm.sleep=true", "vllm.memory=0.92", gpus="0"),
        # Seen: nvidia-smi shows a copy on each GPU; the mismatch says that both have new weights.
        "copies": run(folder / "copies", "vllm.devices=1,2", "vllm.data_parallel=2", gpus="0"),
        # Seen: both copies' memory falls while the ranks train, and comes back at each sync.
        "asleep": run(
            folder / "asleep",
            "vllm.data_parallel=2",
            "vllm.sleep=true",
            "vllm.memory=0.3",
            gpus="0,1",
            launch=two,
        ),
        # Seen: both ranks' requests in vllm.log; parameters are DTensors on both GPUs. While they
        # train, nvidia-smi shows what `terrella launch --dry-run --on 2x80GB` plans, and no more
        # with a tenth of `rlvr.pack_tokens`: no rank holds a whole gradient from pack to pack.
        "fsdp2": run(
            folder / "fsdp2",
            "vllm.devices=2",
            "rlvr.gradient_checkpointing=true",
            gpus="0,1",
            launch=two,
        ),
        # Seen: no collective while episodes are sampled: ranks finish at different times.
        "gathered": run(folder / "gathered", "sampler=local", gpus="0,1", launch=two),
        "flex": run(folder / "flex", "rlvr.attention=flex_attention", gpus="0"),
        "sdpa": run(folder / "sdpa", "rlvr.attention=sdpa", gpus="0"),
    }
    wrong = []
    for name, rows in runs.items():
        worst = max(row.get("mismatch/mean") or 0.0 for row in rows)
        if worst > BF16_MISMATCH:
            wrong.append(f"{name}: sampler and trainer differ by {worst:.2g}")
        if rows[-1]["reward"] <= rows[0]["reward"]:
            wrong.append(f"{name}: the reward did not rise")
    first = [runs[name][0]["grad_norm"] for name in ("flex", "sdpa")]
    if abs(first[0] - first[1]) > 0.02 * first[1]:
        wrong.append(f"flex: the first gradient is {first[0]:.4f}, with sdpa {first[1]:.4f}")
    first = [runs[name][0]["grad_norm"] for name in ("fsdp2", "sdpa")]  # of the same episodes
    if abs(first[0] - first[1]) > 0.05 * first[1]:
        wrong.append(f"fsdp2: the first gradient is {first[0]:.4f}, of one process {first[1]:.4f}")
    syncs = [sum(row["seconds/sync"] for row in runs[name]) for name in ("nccl", "shared")]
    if syncs[0] > syncs[1]:
        wrong.append(f"nccl: weight syncs took {syncs[0]:.1f} s, by file {syncs[1]:.1f} s")
    run(folder / "refused", gpus="0,1", fails=True)  # two GPUs, one process
    return wrong


if __name__ == "__main__":
    found = main(Path(sys.argv[1]))
    sys.stderr.write("\n".join(found or ["all holds"]) + "\n")
    sys.exit(bool(found))
