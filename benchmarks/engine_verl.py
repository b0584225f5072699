"""Measures the cluster engine (verl) on CPUs: results/engine_verl.json.

In the environment that .ci/verl makes:
    python benchmarks/engine_verl.py curve|lake|sft|stale|killed|nodes|share [FOLDER]
Each part replaces its own entry. With a folder, runs are kept there and resumed.
"""

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common
from tests.support.verl_cpu import SETTINGS, environment

SMALL = ("rlvr.groups=8", "rlvr.group_size=4", "rlvr.kl=0", "evaluate_on=128")
LONGER = ("rlvr.steps=40", "rlvr.groups=16", "rlvr.group_size=8")


def run(recipe, out, *extra, modules="verl_on_cpu", watch=lambda pid: None):
    """Run `terrella rlvr`; returns its rows of metrics, its result and how it ended."""
    from terrella.core.files import read_json_lines
    from terrella.core.run_folder import read_manifest

    out.parent.mkdir(parents=True, exist_ok=True)
    env = environment() | {"VERL_USE_EXTERNAL_MODULES": modules}
    arguments = common.settings(*SETTINGS, *SMALL, *extra)
    command = common.terrella("rlvr", recipe, "--out", out, *arguments)
    with common.Timer() as timer, out.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, env=env, cwd=common.ROOT, stdout=log, stderr=log)
        threading.Thread(target=watch, args=(process.pid,), daemon=True).start()
        code = process.wait()
    file = out / "model-rlvr" / "metrics.jsonl"
    rows = read_json_lines(file) if file.exists() else []
    result = read_manifest(out).metrics if (out / "manifest.json").exists() else {}
    return rows, result, {"exit": code, "seconds": round(timer.seconds)}


def train_curve(recipe, out, *extra):
    rows, result, ended = run(recipe, out, *extra)
    later = rows[1:] or rows
    return {
        "recipe": recipe,
        "settings": [*SMALL, *extra],
        **ended,
        "steps": len(rows),
        "reward_by_step": [round(row["reward"], 3) for row in rows],
        "last_ten_minus_first_ten": rise([row["reward"] for row in rows]),
        "held_out": {name: result.get(name) for name in ("before", "after", "baselines")},
        "mismatch_max": max(row["mismatch/max"] for row in rows),
        "mismatch_mean": max(row["mismatch/mean"] for row in rows),
        "prefix_hits": round(mean_of("prefix_hits", rows), 3),
        "masked": max(row["masked"] for row in rows),
        "turns": round(mean_of("turns", rows), 2),
        "seconds_per_step": {
            name: round(mean_of(f"seconds/{name}", later), 2)
            for name in ("step", "generate", "train", "sync", "batch")
        },
    }


def mean_of(name, rows):
    return sum(row[name] for row in rows) / len(rows)


def rise(rewards):
    """The difference of the means, with its 95% interval; every step has tasks of its own."""
    first, last = rewards[:10], rewards[-10:]
    mean = statistics.mean(last) - statistics.mean(first)
    half = 1.96 * ((statistics.variance(first) + statistics.variance(last)) / 10) ** 0.5
    return {"mean": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)}


def curve(folder):
    """Counter, eight turns, GRPO, from the recipe's own warm-up."""
    extra = (*LONGER, "rlvr.learning_rate=0.0008", "rlvr.save_every=10")
    return train_curve("tiny_counter", folder / "curve", *extra)


def lake(folder):
    """Frozen lake, several turns, PPO with a critic."""
    extra = (
        *LONGER,
        "rlvr.algorithm=ppo",
        "rlvr.critic=separate",
        "rlvr.learning_rate=0.001",
        "rlvr.save_every=20",
    )
    return train_curve("tiny_lake_agent", folder / "lake", *extra)


def sft(folder):
    """The warm-up through verl's SFT trainer, two workers: the loss by step."""
    _, _, ended = run(
        "tiny_counter", folder / "sft", "rlvr.steps=1", "warmup_examples=640", "verl.restarts=0"
    )
    losses = re.findall(r"train/loss:([0-9.]+)", (folder / "sft.log").read_text())
    return {**ended, "rows": 640, "loss_by_step": [round(float(loss), 3) for loss in losses]}


def stale(folder):
    """A weight sync that does nothing after step 1.

    The mismatch monitor must stop the run before the optimiser's next step.
    """
    extra = (
        "rlvr.steps=6",
        "warmup_examples=320",
        "rlvr.mismatch_limit=0.001",
        "rlvr.learning_rate=0.002",
    )
    rows, _, ended = run("tiny_counter", folder / "stale", *extra, modules="verl_on_cpu,stale_sync")
    log = (folder / "stale.log").read_text()
    messages = [line for line in log.splitlines() if "mismatch monitor" in line]
    return {
        **ended,
        "steps_done": len(rows),
        "mismatch_by_step": [row["mismatch/mean"] for row in rows],
        "said": messages[-1].strip()[:300] if messages else "",
    }


def killed(folder):
    """SIGKILL of a vLLM server's process after the first step that was checkpointed."""
    import psutil

    out, log = folder / "killed", folder / "killed.log"
    events = {}

    def watch(pid):
        while not (out / "model-rlvr" / "latest_checkpointed_iteration.txt").exists():
            time.sleep(0.5)
        for process in psutil.Process(pid).children(recursive=True):
            line = " ".join(process.cmdline())
            if "vLLMHttpServer" in line or "EngineCore" in line:
                break
        else:
            raise RuntimeError("no process of a vLLM server was found")
        timer = common.Timer()
        events["process"] = line[:60]
        os.kill(process.pid, signal.SIGKILL)
        while "starting again from" not in log.read_text():
            time.sleep(0.5)
        events["restarted"] = round(timer.seconds, 1)

    rows, result, ended = run(
        "tiny_counter",
        out,
        "rlvr.steps=6",
        "rlvr.save_every=1",
        "warmup_examples=320",
        "verl.restarts=1",
        watch=watch,
    )
    messages = [line for line in log.read_text().splitlines() if "rollout server" in line]
    return {
        **ended,
        "killed": events.get("process"),
        "seconds_until_restart": events.get("restarted"),
        "steps": [row["step"] for row in rows],
        "finished": bool(result),
        "said": messages[0].strip()[:300] if messages else "",
    }


def nodes(folder):
    """Three Ray nodes, one lost while 10,000 episodes are collected."""
    module = "tests.support.three_nodes"
    command = [sys.executable, "-m", module, str(folder / "nodes"), "10000"]
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def share(folder):
    """The share of our own code in a step: playing episodes, and preparing the train batch.

    Episodes are played against a sampler that answers at once, on one thread. `seconds_batch` holds
    the calls of verl's transfer queue, which bare verl makes, too: the share is an upper bound.
    """
    from terrella.core.files import read_json_lines
    from terrella.core.tokens import Sampled
    from terrella.engines.verl.agent_loop import ServerSampler, WorkerContext, as_output
    from terrella.models.presets import load_model

    class InstantSampler:
        async def sample(self, request):
            ids = (*range(10, 10 + min(request.max_new_tokens, 3) - 1), request.stop_ids[0])
            return Sampled(token_ids=ids, logprobs=(-1.0,) * len(ids), stopped=True)

        def release(self, session):
            pass

    out = folder / "share"
    sizes = ("rlvr.groups=16", "rlvr.group_size=8", "warmup_examples=512", "evaluate_on=32")
    *_, ended = run("tiny_counter", out, "rlvr.steps=6", *sizes)
    if ended["exit"]:
        raise SystemExit(out.with_suffix(".log").read_text()[-4000:])
    tokenizer = load_model(str(out / "warm"))[1]
    context = WorkerContext(str(out / "model-rlvr" / "rollout_spec.json"), tokenizer)
    settings = context.settings

    async def play_member(index, member):
        task = context.task(index)
        episode = await context.rollout.run_one(InstantSampler(), task, member, 0)
        output = as_output(episode, ServerSampler(None), filler=1, reward="outcome", step=1)
        return output.as_dict()

    async def play_step(step):
        indices = range(step * settings.groups, (step + 1) * settings.groups)
        members = range(settings.group_size)
        return await asyncio.gather(
            *(play_member(index, member) for index in indices for member in members)
        )

    asyncio.run(play_step(0))
    with common.Timer() as timer:
        for step in range(1, 6):
            asyncio.run(play_step(step))
    playing = timer.cpu_seconds / 5
    rows = read_json_lines(out / "model-rlvr" / "metrics.jsonl")[1:]
    batch = mean_of("seconds/batch", rows)
    whole = mean_of("seconds/step", rows)
    return {
        "episodes_per_step": settings.groups * settings.group_size,
        "seconds_playing": round(playing, 4),
        "seconds_batch": round(batch, 4),
        "seconds_step": round(whole, 2),
        "steps": len(rows),
        "share": round((playing + batch) / whole, 4),
    }


PARTS = {f.__name__: f for f in (curve, lake, sft, stale, killed, nodes, share)}


def main(name, folder):
    metrics = PARTS[name](folder)
    part = common.write_part("engine_verl", name, metrics, command=common.command(name))
    print(json.dumps(part, indent=1))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else scratch))
