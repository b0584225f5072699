"""Training beside a slow world, step after step or at the same time: results/engine_async.json.

    python benchmarks/engine_async.py run SEED sync|async FOLDER    # one arm
    python benchmarks/engine_async.py table FOLDER                  # the comparison
The world is the counter of `tiny_counter`, except that a step takes 0.2 seconds. Both arms start
from the same warmed-up model, ask as many tasks and are validated on the same instances.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import common

SLEEP = 0.2
STEPS = 60
GROUPS = 8
STALENESS = 2
INSTANCES = 256


def slow_counter():
    from terrella.worlds.counter import Counter

    class SlowCounter(Counter):
        """A counter that takes its time, like a browser."""

        def step(self, action):
            time.sleep(SLEEP)
            return super().step(action)

    return SlowCounter.Config


def run(seed, schedule, folder):
    from terrella.core.run_folder import RunFolder
    from terrella.pipelines.rlvr import Rlvr
    from terrella.pipelines.validation import validate
    from terrella.recipes import find_recipe
    from terrella.rollout.env_pool import EnvPool
    from terrella.show.progress import SilentProgress

    base = find_recipe("tiny_counter")()
    world = base.world.replace(goals=5, away=3, max_steps=4)
    base = base.replace(world=world, max_turns=4, warmup_examples=4000, seed=seed)
    pipeline = Rlvr(base.replace(out=folder / f"base-{seed}"))
    with (
        RunFolder(pipeline.config.out, pipeline.config, progress=SilentProgress()) as held,
        pipeline.resources(held),
    ):
        start = pipeline.warm_model(held)
        source = pipeline.episode_source()
        slow = slow_counter()(goals=5, away=3, max_steps=4)
        workers = (STALENESS + 1) * GROUPS * 8
        rollout = source.rollout.replace(
            world=slow, env_pool=EnvPool.Config(place="thread", workers=workers)
        )
        config = base.rlvr.replace(
            steps=STEPS, groups=GROUPS, schedule=schedule, staleness=STALENESS, save_every=0
        )
        out = folder / f"{schedule}-{seed}"
        with common.Timer() as timer:
            trained = pipeline.engine.rlvr(
                start,
                source.replace(rollout=rollout),
                config,
                out,
                seed=seed,
                progress=SilentProgress(),
            )
        before, after = (
            validate(pipeline.engine, source, model, count=INSTANCES, seed=seed).metric
            for model in (start, out)
        )
    rows = trained.curve
    return {
        "seed": seed,
        "schedule": schedule,
        "seconds": round(timer.seconds, 1),
        "before": before.mean,
        "after": after.mean,
        "n": INSTANCES,
        "last_ten_rewards": statistics.mean(row["reward"] for row in rows[-10:]),
        "staleness_max": max((row.get("staleness/max", 0.0) for row in rows), default=0.0),
        "staleness_mean": statistics.mean(row.get("staleness/mean", 0.0) for row in rows),
        "seconds_waiting": statistics.mean(row["seconds/generate"] for row in rows),
        "seconds_training": statistics.mean(row["seconds/train"] for row in rows),
        "mismatch_max": max(row.get("mismatch/max", 0.0) for row in rows),
    }


def table(folder):
    arms = [json.loads(path.read_text()) for path in sorted(folder.glob("arm-*.json"))]
    by_seed = {
        seed: {arm["schedule"]: arm for arm in arms if arm["seed"] == seed}
        for seed in sorted({arm["seed"] for arm in arms})
    }
    whole = [pair for pair in by_seed.values() if len(pair) == 2]
    metrics = {
        "setting": {
            "world": f"counter, 4 turns, each step sleeps {SLEEP} s",
            "model": "tiny-0.3m",
            "steps": STEPS,
            "groups": GROUPS,
            "group_size": 8,
            "staleness": STALENESS,
        },
        "arms": arms,
        "speed_up": common.mean_row(
            [pair["sync"]["seconds"] / pair["async"]["seconds"] for pair in whole]
        ),
        "reward_async_minus_sync": common.mean_row(
            [pair["async"]["after"] - pair["sync"]["after"] for pair in whole]
        ),
        "staleness_max": max(arm["staleness_max"] for arm in arms),
        "seeds": len(whole),
    }
    common.write_results("engine_async", metrics, command=common.command("table", "FOLDER"))
    print(json.dumps({name: metrics[name] for name in ("speed_up", "reward_async_minus_sync")}))


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(Path(sys.argv[2]))
    else:
        common.quiet_trl()
        seed, schedule, folder = int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
        folder.mkdir(parents=True, exist_ok=True)
        measured = run(seed, schedule, folder)
        (folder / f"arm-{schedule}-{seed}.json").write_text(json.dumps(measured, indent=1))
        print(json.dumps(measured))
