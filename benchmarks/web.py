"""Measures the web worlds and writes results/web_*.json, part by part.

    python benchmarks/web.py sweep rate kill leftovers arena pages pages_smollm2 mpc [--seed 0]
Any subset can be named. `sweep` to `leftovers` go to web_miniwob.json, the others to files of their
own. `arena` needs `terrella sites up`. Data and models go to `--runs` (default: runs/web) and are
reused. On two CPU cores, OMP_NUM_THREADS=1.
"""

import argparse
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import common

from terrella.browser.host import close_browsers, descendants
from terrella.core.episode import play
from terrella.core.instances import instance_id, split_of
from terrella.core.stats import wilson
from terrella.policies.basic import Expert, Random
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.miniwob.families import family_names
from terrella.worlds.miniwob.scripts import SCRIPTS

EPISODES = int(os.environ.get("WEB_EPISODES", "220"))
"""Episodes per arm of `rate`, and (60 at most) of `kill`."""
ELEVEN = (
    "click-test-2",
    "click-button",
    "click-link",
    "click-option",
    "click-checkboxes",
    "enter-text",
    "login-user",
    "enter-password",
    "focus-text-2",
    "click-tab",
    "click-dialog-2",
)


def write(name, part, metrics):
    """Add a part to a file, beside what was measured before."""
    environment = {"OMP_NUM_THREADS": 1}
    if part in ("rate", "kill"):
        environment = {"WEB_EPISODES": EPISODES, **environment}
    command = common.command(part, **environment)
    common.write_part(f"web_{name}", part, metrics, command=command)
    print({key: value for key, value in metrics.items() if not isinstance(value, dict | list)})


def cpu_seconds():
    """CPU time of this process and all below it, the driver and the browser included."""
    return common.cpu_seconds_of(os.getpid(), *descendants(os.getpid()))


# --- MiniWoB++ ------------------------------------------------------------------------------------


def sweep():
    """Every family, four seeds: scripts where there are some, random play elsewhere."""
    errors, wins, steps = [], {"scripted": [], "random": []}, 0
    timer = common.Timer()
    for family in family_names():
        world = MiniWob.Config(families=(family,), max_steps=12).build()
        scripted = family in SCRIPTS
        policy = (Expert if scripted else Random).Config().build()
        for seed in range(4):
            episode = play(world, policy, seed=seed)
            steps += len(episode.transitions)
            if episode.stop.is_broken:
                errors.append(f"{family} {seed}: {episode.error}")
            else:
                wins["scripted" if scripted else "random"].append(episode.success)
        world.close()
    metrics = {
        "families": len(family_names()),
        "scripted_families": len(SCRIPTS),
        "episodes": 4 * len(family_names()),
        "steps": steps,
        "harness_errors": len(errors),
        "errors": errors,
        "seconds": timer.seconds,
    }
    for kind, won in wins.items():
        metrics[kind] = {
            "episodes": len(won),
            "success": sum(won) / len(won),
            "interval": wilson(sum(won), len(won)),
        }
    write("miniwob", "sweep", metrics)


def play_many(number, episodes, reload, barrier=None):
    """Play on browser `number`; families come in blocks, as in a sweep over tasks."""
    worlds = [
        MiniWob.Config(families=(family,), browser=number, reload=reload, max_steps=10).build()
        for family in ELEVEN
    ]
    for world in worlds[1:]:
        world.tab = worlds[0].tab
    worlds[0].reset(seed=0)
    if barrier is not None:
        barrier.wait()
    timer, cpu_before, won = common.Timer(), cpu_seconds(), 0
    for index in range(episodes):
        world = worlds[index * len(ELEVEN) // episodes]
        world.tab = worlds[0].tab
        won += play(world, Expert.Config().build(), seed=index).success
    return {
        "episodes": episodes,
        "success": won / episodes,
        "seconds": timer.seconds,
        "cpu_seconds": cpu_seconds() - cpu_before,
    }


def rate():
    """Episodes per second of the eleven families of the pilot: one browser, then two."""
    modes = {"in_place": False, "reloaded": True}
    metrics = {"WEB_EPISODES": EPISODES, "families": list(ELEVEN), "policy": "scripted"}
    for name, reload in modes.items():
        played = play_many(0, EPISODES, reload)
        metrics[f"one_browser_{name}"] = {
            **played,
            "per_second": played["episodes"] / played["seconds"],
            "cpu_seconds_per_episode": played["cpu_seconds"] / played["episodes"],
        }
    for name, reload in modes.items():
        metrics[f"two_browsers_{name}"] = two_at_once(reload)
    write("miniwob", "rate", metrics)


def two_at_once(reload):
    """Two processes with a browser each, like env workers, timed while both play."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Manager().Barrier(2)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = [pool.submit(play_many, number, EPISODES, reload, barrier) for number in (1, 2)]
        both = [future.result() for future in futures]
    seconds = max(played["seconds"] for played in both)
    return {
        "episodes": 2 * EPISODES,
        "seconds": seconds,
        "per_second": 2 * EPISODES / seconds,
        "cpu_seconds": sum(played["cpu_seconds"] for played in both),
        "success": sum(played["success"] for played in both) / 2,
    }


def kill():
    """SIGKILL to the browser at the start of every third episode."""
    world = MiniWob.Config(families=ELEVEN, browser=3, max_steps=10).build()
    outcomes, kills = [], 0

    class Killer:
        name = "expert under fire"

        def act(self, moment):
            nonlocal kills
            if not moment.history and world.seed % 3 == 0:
                os.kill(world.host.pid, signal.SIGKILL)
                kills += 1
            return moment.expert()

    for seed in range(min(60, EPISODES)):
        outcomes.append(play(world, Killer(), seed=seed).outcome.value)
    metrics = {
        "episodes": len(outcomes),
        "kills": kills,
        "succeeded": outcomes.count(1.0),
        "masked": outcomes.count(None),
        "scored_0": outcomes.count(0.0),
        "browser_starts": world.host.starts,
    }
    write("miniwob", "kill", metrics)


def leftovers():
    """A thousand episodes, then the end: which processes are still running?"""
    world = MiniWob.Config(families=ELEVEN, browser=4, reload=False, max_steps=10).build()
    policy = Random.Config().build()
    errors = sum(play(world, policy, seed=seed).stop.is_broken for seed in range(1000))
    below = descendants(os.getpid())
    close_browsers()
    time.sleep(1.0)
    metrics = {
        "episodes": 1000,
        "harness_errors": errors,
        "processes_before_the_end": len(below),
        "leftover_processes": sum(map(is_running, below)),
    }
    write("miniwob", "leftovers", metrics)


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and " Z " not in stat.read_text()


# --- the mini-arena -------------------------------------------------------------------------------


class StopPolicy:
    """Stops at once."""

    name = "null"

    def act(self, moment):
        return "stop"


def arena():
    """Every task by its script and by an agent that stops at once; then the reset, by checksum."""
    from terrella.worlds.webarena import WebArena
    from terrella.worlds.webarena.arena import SITES, Arena

    known = common.read_results("web_arena").get("arena", {}).get("rows", [])
    # Tasks with any other result are played again.
    rows = [row for row in known if (row["oracle"], row["null"]) == (1.0, 0.0)]
    done = {row["task"] for row in rows}
    tasks = WebArena.Config().build().tasks
    rows += [play_task(task) for task in tasks if task.task_id not in done]
    sites, seconds, equal = Arena(), [], 0
    for _ in range(20):
        with common.Timer() as timer:
            sites.reset()
        seconds.append(timer.seconds)
        equal += all(sites.checksum(site) == sites.checksum(site, snapshot=True) for site in SITES)
    metrics = {
        "tasks": len(rows),
        "oracle": sum(row["oracle"] == 1.0 for row in rows),
        "null": sum(row["null"] == 1.0 for row in rows),
        "masked": sum(row[name] is None for row in rows for name in ("oracle", "null")),
        "resets": len(seconds),
        "reset_seconds_max": max(seconds),
        "reset_seconds_median": sorted(seconds)[10],
        "checksum_equal_after_reset": equal,
        "rows": rows,
    }
    write("arena", "arena", metrics)


def play_task(task):
    """The scores of the script and of the agent that stops at once, on one task."""
    from terrella.worlds.webarena import WebArena

    world = WebArena.Config(only=(task.task_id,)).build()
    split = split_of(instance_id({"tasks": "mini", "task": task.task_id}))
    scores = {}
    for name, policy in (("oracle", Expert.Config().build()), ("null", StopPolicy())):
        episode = play(world, policy, seed=0, split=split)
        scores[name] = episode.outcome.value
        if name == "oracle" and episode.outcome.value != 1.0:
            print(task.task_id, episode.error, episode.outcome, flush=True)
    world.close()
    about = {"task": task.task_id, "sites": list(task.sites), "checks": list(task.eval_types)}
    return {**about, **scores}


PARTS = {f.__name__: f for f in (sweep, rate, kill, leftovers, arena)}
TRAINED_PARTS = ("pages", "pages_smollm2", "mpc")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, *TRAINED_PARTS])
    parser.add_argument("--runs", type=Path, default=common.ROOT / "runs/web")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part in TRAINED_PARTS:
            import web_models  # needs the extra `train`

            getattr(web_models, part)(arguments.runs, write, arguments.seed)
        else:
            PARTS[part]()


if __name__ == "__main__":
    main()
