"""SIGKILL at random moments of each pipeline: does it resume, and to the same result?

    python benchmarks/kills.py [--kills 10] [--seed 0] [--only spa webrl ...]

Each pipeline runs once undisturbed, in seconds. Then it is killed at random moments until all kills
are used, and finished after every few kills; the metrics and the exported weights must be the same
bytes. Then one setting is changed in the finished folder: that must be refused by name. Pages for
the page model are collected once in Chromium. Writes results/pipeline_kills.json.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
from pathlib import Path

import common

from terrella.core.config_override import override
from terrella.core.errors import TerrellaError
from terrella.core.types import Split
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.rlvr import Rlvr
from terrella.policies.basic import Expert, Random
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.miniwob import MiniWob

common.quiet_trl()  # imports torch and TRL once; every run is a fork
PAGES = Path(tempfile.gettempdir()) / "terrella-kill-pages"
"""Recorded MiniWoB++ episodes for the page model."""
KILLS_PER_FOLDER = 3


def collect(out):
    return Collect.Config(
        world=Counter.Config(),
        policy=Random.Config(),
        transitions=60_000,
        chunk_episodes=400,
        out=out / "run",
    )


def rlvr(out):
    return Rlvr.Config(
        world=Counter.Config(goals=3, max_steps=3),
        turn_tokens=4,
        max_turns=2,
        warmup_examples=256,
        evaluate_on=16,
        warmup=SftConfig(batch_size=16, save_every=4),
        rlvr=RlvrConfig(steps=12, groups=4, group_size=4, save_every=2),
        out=out / "run",
    )


def spa(out):
    small = [
        "format_examples=1500",
        "format_sft.save_every=10",
        "self_play.trajectories=120",
        "self_play.sft.epochs=1",
        "self_play.sft.save_every=2",
        "rlvr.steps=6",
        "rlvr.groups=4",
        "rlvr.group_size=4",
        "rlvr.save_every=2",
        "validation.instances=8",
        "validation.samples=2",
        "test.instances=16",
        "test.samples=4",
    ]
    arm = override(find_recipe("spa_frozen_lake")().arms["spa"], small)
    return arm.replace(out=out / "run", base_cache=out / "bases")


def webrl(out):
    arm = find_recipe("webrl_sokoban")().arms["webrl_paper"]
    small = [
        "demonstrations=6",
        "imitation_updates=12",
        "phases=3",
        "phase_steps=150",
        "validation=2",
        "test=4",
    ]
    return override(arm, small).replace(out=out / "run", base_cache=out / "bases")


def text_games(out):
    arm = find_recipe("bytesized32_tiny")().arms["exact"]
    small = [
        "model=tiny-0.3m",
        "states=60",
        "actions=8",
        "sft.batch_size=2",
        "sft.save_every=5",
        "rlvr.steps=4",
        "rlvr.groups=4",
        "rlvr.group_size=4",
        "rlvr.save_every=1",
        "test_records=40",
    ]
    return override(arm, small).replace(out=out / "run", base_cache=out / "bases")


def video(out):
    config = find_recipe("video_quick")()
    return config.replace(out=out / "run", videos=config.videos.replace(out=out / "videos"))


def world_model(out):
    small = [
        "transitions=400",
        "sft.epochs=1",
        "sft.save_every=2",
        "rlvr.steps=4",
        "rlvr.groups=4",
        "rlvr.group_size=4",
        "rlvr.save_every=1",
        "evaluate_on=8",
    ]
    return override(find_recipe("lake_model")(), small).replace(out=out / "run")


def page_model(out):
    config = find_recipe("page_model")()
    small = [
        "sft.epochs=2",
        "sft.save_every=2",
        "rlvr.steps=4",
        "rlvr.groups=2",
        "rlvr.group_size=4",
        "rlvr.save_every=1",
    ]
    config = override(config, small)
    return config.replace(out=out / "run", train=PAGES / "train", test=PAGES / "test")


def collect_pages():
    for name, split in (("train", Split.TRAIN), ("test", Split.TEST)):
        config = Collect.Config(
            world=MiniWob.Config(by="family", max_steps=6),
            policy=Expert.Config(),
            episodes=24,
            chunk_episodes=12,
            split=split,
            out=PAGES / name,
        )
        Collect(config).run(SilentProgress())


PIPELINES = {
    "collect": (collect, "seed=1"),
    "rlvr": (rlvr, "evaluate_on=17"),
    "spa": (spa, "max_turns=4"),
    "webrl": (webrl, "phase_steps=151"),
    "text_games": (text_games, "turn_tokens=47"),
    "video": (video, "horizon=3"),
    "world_model": (world_model, "evaluate_on=9"),
    "page_model": (page_model, "turn_tokens=63"),
}


def start(config, log):
    """Start the pipeline in a forked process, which shares the imports of this one."""
    child = multiprocessing.get_context("fork").Process(target=_work, args=(config, log))
    child.start()
    return child


def _work(config, log):
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        config.build().run(SilentProgress())


def run_to_end(config, log):
    """Run or resume a pipeline; returns the seconds it took."""
    with common.Timer() as timer:
        child = start(config, log)
        child.join()
    if child.exitcode:
        raise SystemExit(f"failed with {child.exitcode}:\n{log.read_text()[-3000:]}")
    return timer.seconds


def kill_after(config, log, seconds):
    """True if the process was killed, False if it had already finished."""
    child = start(config, log)
    child.join(seconds)
    if child.exitcode is not None:
        return False
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    return True


def digest(folder):
    """Hashes of the metrics and of every file of weights or data."""
    manifest = json.loads((folder / "manifest.json").read_text())
    metrics = manifest.get("metrics", manifest.get("parts"))
    hashes = {"metrics": hashlib.sha256(json.dumps(metrics, sort_keys=True).encode()).hexdigest()}
    for path in sorted(folder.rglob("*")):
        exported = path.suffix == ".safetensors" and "checkpoint" not in str(path)
        if exported or path.suffix == ".parquet":
            name = str(path.relative_to(folder))
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def refusal(config, change):
    """The error of a run with one changed setting in the same folder; None if it was accepted."""
    try:
        override(config, [change]).build().run(SilentProgress())
    except TerrellaError as error:
        return str(error)
    return None


def kill_and_compare(name, kills, rng, scratch):
    """Kill and resume one pipeline until all kills are used; compare the results."""
    make_config, change = PIPELINES[name]
    log = scratch / f"{name}.log"
    reference = make_config(scratch / "reference")
    seconds = run_to_end(reference, log)
    expected = digest(reference.out)
    used, folders, same = 0, 0, 0
    while used < kills:
        folders += 1
        config = make_config(scratch / f"killed-{folders}")
        for _ in range(min(KILLS_PER_FOLDER, kills - used)):
            used += kill_after(config, log, rng.uniform(0.0, seconds))
        run_to_end(config, log)
        same += digest(config.out) == expected
    message = refusal(reference, change)
    field = change.partition("=")[0]
    return {
        "undisturbed_seconds": round(seconds, 1),
        "kills": used,
        "folders": folders,
        "same_result": same,
        "changed_setting": change,
        "refused": message is not None and field in message,
        "message": (message or "").splitlines()[0].replace(str(scratch), "FOLDER"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(PIPELINES))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    if "page_model" in options.only:
        collect_pages()
    for name in options.only:
        with tempfile.TemporaryDirectory(
            prefix=f"kills-{name}-", ignore_cleanup_errors=True
        ) as scratch:
            row = kill_and_compare(name, options.kills, rng, Path(scratch))
        print(name, row, flush=True)
        command = common.command("--kills", options.kills, "--seed", options.seed, "--only", name)
        common.write_part("pipeline_kills", name, row, command=command)


if __name__ == "__main__":
    main()
