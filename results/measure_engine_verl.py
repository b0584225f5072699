"""Figures of the cluster engine, on CPUs: results/engine_verl.json. In the environment that .ci/verl makes:

    python results/measure_engine_verl.py curve|lake|sft|stale|killed|nodes|share [FOLDER]
Each measures one thing and replaces its entry; with a folder, runs are kept there and resumed.
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.verl_cpu import SETTINGS, environment  # noqa: E402  found from the root

RESULTS = ROOT / "results" / "engine_verl.json"
SMALL = ("rlvr.groups=8", "rlvr.group_size=4", "rlvr.kl=0", "evaluate_on=128")


def command(recipe, out, *extra):
    words = [word for setting in (*SETTINGS, *SMALL, *extra) for word in ("--set", setting)]
    return [sys.executable, "-m", "terrella.cli", "rlvr", recipe, "--out", str(out), *words]


def run(recipe, out, *extra, modules="verl_on_cpu", watch=lambda pid: None):
    """The command; its figures, its summary and how it ended."""
    out.parent.mkdir(parents=True, exist_ok=True)
    env = environment() | {"VERL_USE_EXTERNAL_MODULES": modules}
    began = time.monotonic()
    with out.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command(recipe, out, *extra), env=env, cwd=ROOT, stdout=log, stderr=log)
        threading.Thread(target=watch, args=(process.pid,), daemon=True).start()
        code = process.wait()
    file = out / "verl" / "figures.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    manifest = out / "manifest.json"
    summary = json.loads(manifest.read_text()) if manifest.exists() else {}
    return rows, summary, {"exit": code, "seconds": round(time.monotonic() - began)}


def curve_of(recipe, out, *extra):
    rows, summary, ended = run(recipe, out, *extra)
    later = rows[1:] or rows
    return {
        "recipe": recipe, "settings": [*SMALL, *extra], **ended, "steps": len(rows),
        "reward_by_step": [round(row["reward"], 3) for row in rows],
        "last_ten_minus_first_ten": rise([row["reward"] for row in rows]),
        "held_out": {name: summary.get(name) for name in ("before", "after", "baselines")},
        "mismatch_max": max(row["mismatch/max"] for row in rows),
        "mismatch_mean": max(row["mismatch/mean"] for row in rows),
        "prefix_hits": round(sum(row["prefix_hits"] for row in rows) / len(rows), 3),
        "masked": max(row["masked"] for row in rows),
        "turns": round(sum(row["turns"] for row in rows) / len(rows), 2),
        "seconds_per_step": {
            name: round(sum(row[f"seconds/{name}"] for row in later) / len(later), 2)
            for name in ("step", "generate", "train", "sync", "lessons")
        },
    }  # fmt: skip


def rise(rewards):
    """The difference of the means, with its 95% interval; steps are different questions."""
    first, last = rewards[:10], rewards[-10:]
    mean = statistics.mean(last) - statistics.mean(first)
    half = 1.96 * ((statistics.variance(first) + statistics.variance(last)) / 10) ** 0.5
    return {"mean": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)}


def curve(folder):
    """Counter, eight turns, GRPO, from the recipe's own warm-up."""
    extra = ("rlvr.steps=40", "rlvr.groups=16", "rlvr.group_size=8", "rlvr.learning_rate=0.0008", "rlvr.save_every=10")
    return curve_of("tiny_counter", folder / "curve", *extra)


def lake(folder):
    """Frozen lake, several turns, PPO with a critic."""
    extra = ("rlvr.steps=40", "rlvr.groups=16", "rlvr.group_size=8", "rlvr.algorithm=ppo", "rlvr.critic=separate",
             "rlvr.learning_rate=0.001", "rlvr.save_every=20")  # fmt: skip
    return curve_of("tiny_lake_agent", folder / "lake", *extra)


def sft(folder):
    """The warm-up through verl's SFT trainer, two workers: the loss by step."""
    _, _, ended = run("tiny_counter", folder / "sft", "rlvr.steps=1", "warmup_rows=640", "verl.restarts=0")
    losses = re.findall(r"train/loss:([0-9.]+)", (folder / "sft.log").read_text())
    return {**ended, "rows": 640, "loss_by_step": [round(float(loss), 3) for loss in losses]}


def stale(folder):
    """A sync that does nothing after step 1: caught by the monitor, before the optimiser of the next step moves."""
    extra = ("rlvr.steps=6", "warmup_rows=320", "rlvr.mismatch_limit=0.001", "rlvr.learning_rate=0.002")
    rows, _, ended = run("tiny_counter", folder / "stale", *extra, modules="verl_on_cpu,stale_sync")
    log = (folder / "stale.log").read_text()
    said = [line for line in log.splitlines() if "mismatch monitor" in line]
    return {**ended, "steps_done": len(rows), "mismatch_by_step": [row["mismatch/mean"] for row in rows],
            "said": said[-1].strip()[:300] if said else ""}  # fmt: skip


def killed(folder):
    """SIGKILL of a vLLM server's process after the first step that was checkpointed."""
    import psutil

    out, seen = folder / "killed", {}

    def watch(pid):
        while not (out / "verl" / "latest_checkpointed_iteration.txt").exists():
            time.sleep(0.5)
        family = [(p, " ".join(p.cmdline())) for p in psutil.Process(pid).children(recursive=True)]
        victims = [(p, line) for p, line in family if "vLLMHttpServer" in line or "EngineCore" in line]
        seen["at"], seen["process"] = time.monotonic(), victims[0][1][:60]
        os.kill(victims[0][0].pid, signal.SIGKILL)
        while "starting again from" not in out.with_suffix(".log").read_text():
            time.sleep(0.5)
        seen["noticed"] = round(time.monotonic() - seen["at"], 1)

    rows, summary, ended = run("tiny_counter", out, "rlvr.steps=6", "rlvr.save_every=1", "warmup_rows=320",
                               "verl.restarts=1", watch=watch)  # fmt: skip
    steps = [row["step"] for row in rows]
    said = [line for line in out.with_suffix(".log").read_text().splitlines() if "rollout server" in line]
    return {**ended, "killed": seen.get("process"), "seconds_until_restart": seen.get("noticed"), "steps": steps,
            "finished": bool(summary), "said": said[0].strip()[:300] if said else ""}  # fmt: skip


def nodes(folder):
    """Three Ray nodes, one lost while 10,000 episodes are collected."""
    words = [sys.executable, "-m", "tests.support.three_nodes", str(folder / "nodes"), "10000"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def share(folder):
    """Our own code in a step: episodes played against a sampler that answers at once, and the lessons of a step."""
    from terrella.core.protocols import Sampled
    from terrella.engines.verl.agent_loop import Desk, ServerSampler, as_output
    from terrella.models.presets import load_model

    class Canned:
        async def sample(self, request):
            ids = (*range(10, 10 + min(request.max_new_tokens, 3) - 1), request.stop_ids[0])
            return Sampled(token_ids=ids, logprobs=(-1.0,) * len(ids), stopped=True)

        def release(self, session):
            pass

    out = folder / "curve"
    desk = Desk(str(out / "verl" / "plan.json"), load_model(str(out / "warm"))[1])
    settings = desk.settings

    async def step(first):
        async def one(index, member):
            episode = await desk.driver.run_one(Canned(), desk.task(index), member, 0)
            return as_output(episode, ServerSampler(None), filler=1, reward="outcome", step=1).as_dict()

        pairs = [(first + group, member) for group in range(settings.groups) for member in range(settings.group_size)]
        return await asyncio.gather(*(one(*pair) for pair in pairs))

    asyncio.run(step(0))
    began = time.process_time()
    for number in range(1, 6):
        asyncio.run(step(number * settings.groups))
    episodes = (time.process_time() - began) / 5
    rows = [json.loads(line) for line in (out / "verl" / "figures.jsonl").read_text().splitlines()][1:]
    lessons, whole = (sum(row[f"seconds/{name}"] for row in rows) / len(rows) for name in ("lessons", "step"))
    return {"episodes_per_step": settings.groups * settings.group_size, "seconds_playing": round(episodes, 4),
            "seconds_lessons": round(lessons, 4), "seconds_step": round(whole, 2), "steps": len(rows),
            "share": round((episodes + lessons) / whole, 4)}  # fmt: skip


def main(name, folder):
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    began = time.time()
    entry = globals()[name](folder)
    entry["command"] = f"python results/measure_engine_verl.py {name}"
    entry["machine"] = f"{os.cpu_count()} cores, shared; load {os.getloadavg()[1]:.0f}; {time.time() - began:.0f} s"
    found[name] = entry
    RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    print(json.dumps(entry, indent=1))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else scratch))
