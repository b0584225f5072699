"""Measures the web worlds and writes results/web_*.json, part by part.

    python results/measure_web.py sweep rate kill leftovers arena pages mpc [--seed 0]       (any subset)
`sweep` .. `leftovers` go to web_miniwob.json, the others to files of their own. `arena` wants `terrella sites up`.
Data and models go to `--runs` (default: runs/web) and are reused. On two CPU cores, OMP_NUM_THREADS=1.
"""

import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from terrella.browser.host import close_browsers, descendants  # noqa: E402
from terrella.core.episode import play  # noqa: E402
from terrella.core.instances import instance_id, split_of  # noqa: E402
from terrella.core.stats import wilson  # noqa: E402
from terrella.policies.basic import Expert, Random  # noqa: E402
from terrella.worlds.miniwob import MiniWob  # noqa: E402
from terrella.worlds.miniwob.families import family_names  # noqa: E402
from terrella.worlds.miniwob.scripts import SCRIPTS  # noqa: E402

COMMAND = "OMP_NUM_THREADS=1 python results/measure_web.py "
EPISODES = int(os.environ.get("WEB_EPISODES", "220"))
"""Episodes per arm of `rate`, and (60 at most) of `kill`."""
ELEVEN = ("click-test-2", "click-button", "click-link", "click-option", "click-checkboxes", "enter-text", "login-user",
          "enter-password", "focus-text-2", "click-tab", "click-dialog-2")  # fmt: skip


def write(name, part, found):
    """Add a part to a file, beside what was measured before."""
    path = ROOT / f"results/web_{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    prefix = f"WEB_EPISODES={EPISODES} " if part in ("rate", "kill") else ""
    known[part] = {"command": prefix + COMMAND + part, "machine": machine, **found}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(part, "written", {k: v for k, v in found.items() if not isinstance(v, dict | list)}, flush=True)


def cpu_seconds():
    """Processor time of this process and everything below it, the driver and the browser included."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# --- MiniWoB++ ----------------------------------------------------------------------------------------------------


def sweep():
    """Every family, four seeds: scripts where there are some, random play elsewhere."""
    errors, wins, steps, began = [], {"scripted": [], "random": []}, 0, time.monotonic()
    for family in family_names():
        world = MiniWob.Config(families=(family,), max_steps=12).build()
        policy = (Expert if family in SCRIPTS else Random).Config().build()
        for seed in range(4):
            episode = play(world, policy, seed=seed)
            steps += len(episode.transitions)
            if episode.stop.is_broken:
                errors.append(f"{family} {seed}: {episode.error}")
            else:
                wins["scripted" if family in SCRIPTS else "random"].append(episode.success)
        world.close()
    shares = {
        kind: {"episodes": len(won), "success": sum(won) / len(won), "interval": wilson(sum(won), len(won))}
        for kind, won in wins.items()
    }
    write("miniwob", "sweep", {
        "families": len(family_names()), "scripted_families": len(SCRIPTS), "episodes": 4 * len(family_names()),
        "steps": steps, "harness_errors": len(errors), "errors": errors, "seconds": time.monotonic() - began, **shares,
    })  # fmt: skip


def play_many(number, episodes, reload, gate=None):
    """One world on browser `number`; families come in blocks, as a sweep over tasks does."""
    worlds = [
        MiniWob.Config(families=(family,), browser=number, reload=reload, max_steps=10).build() for family in ELEVEN
    ]
    for world in worlds[1:]:
        world.tab = worlds[0].tab
    worlds[0].reset(seed=0)
    if gate is not None:
        gate.wait()
    began, used, won = time.monotonic(), cpu_seconds(), 0
    for index in range(episodes):
        world = worlds[index * len(ELEVEN) // episodes]
        world.tab = worlds[0].tab
        won += play(world, Expert.Config().build(), seed=index).success
    return {
        "episodes": episodes,
        "success": won / episodes,
        "seconds": time.monotonic() - began,
        "cpu_seconds": cpu_seconds() - used,
    }


def rate():
    """Episodes per second of the eleven families of the pilot: one browser, then two."""
    found = {}
    for name, reload in (("in_place", False), ("reloaded", True)):
        one = play_many(0, EPISODES, reload)
        found[f"one_browser_{name}"] = {**one, "per_second": one["episodes"] / one["seconds"],
                                        "cpu_seconds_per_episode": one["cpu_seconds"] / one["episodes"]}  # fmt: skip
    for name, reload in (("in_place", False), ("reloaded", True)):
        found[f"two_browsers_{name}"] = two_at_once(reload)
    write("miniwob", "rate", {"WEB_EPISODES": EPISODES, "families": list(ELEVEN), "policy": "scripted", **found})


def two_at_once(reload):
    """Two processes with a browser each, as workers have them; the clock runs while both play."""
    context = multiprocessing.get_context("spawn")
    gate = context.Manager().Barrier(2)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        both = list(pool.map(play_many, (1, 2), (EPISODES, EPISODES), (reload, reload), (gate, gate)))
    seconds = max(one["seconds"] for one in both)
    return {"episodes": 2 * EPISODES, "seconds": seconds, "per_second": 2 * EPISODES / seconds,
            "cpu_seconds": sum(one["cpu_seconds"] for one in both),
            "success": sum(one["success"] for one in both) / 2}  # fmt: skip


def kill():
    """SIGKILL to the browser at a random moment of every third episode."""
    world, outcomes, kills = MiniWob.Config(families=ELEVEN, browser=3, max_steps=10).build(), [], 0

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
    write("miniwob", "kill", {
        "episodes": len(outcomes), "kills": kills, "succeeded": outcomes.count(1.0), "masked": outcomes.count(None),
        "scored_0": outcomes.count(0.0), "browser_starts": world.host.starts,
    })  # fmt: skip


def leftovers():
    """A thousand episodes, then the end: what is still running?"""
    world = MiniWob.Config(families=ELEVEN, browser=4, reload=False, max_steps=10).build()
    errors = sum(play(world, Random.Config().build(), seed=seed).stop.is_broken for seed in range(1000))
    below = descendants(os.getpid())
    close_browsers()
    time.sleep(1.0)
    left = [
        pid for pid in below if Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
    ]
    write(
        "miniwob",
        "leftovers",
        {
            "episodes": 1000,
            "harness_errors": errors,
            "processes_before_the_end": len(below),
            "leftover_processes": len(left),
        },
    )


# --- the mini-arena -----------------------------------------------------------------------------------------------


class Null:
    """An agent that stops at once."""

    name = "null"

    def act(self, moment):
        return "stop"


def arena():
    """Every task by its script and by an agent that stops at once; then the reset, by checksum."""
    from terrella.worlds.webarena import WebArena
    from terrella.worlds.webarena.arena import SITES, Arena

    world, path = WebArena.Config().build(), ROOT / "results/web_arena.json"
    known = json.loads(path.read_text())["arena"]["rows"] if path.exists() else []
    rows = [row for row in known if (row["oracle"], row["null"]) == (1.0, 0.0)]  # the others are played again
    done = {row["task"] for row in rows}
    for task in (one for one in world.tasks if one.task_id not in done):
        one = WebArena.Config(only=(task.task_id,)).build()
        split = split_of(instance_id({"tasks": "mini", "task": task.task_id}))
        scores = {}
        for name, policy in (("oracle", Expert.Config().build()), ("null", Null())):
            episode = play(one, policy, seed=0, split=split)
            scores[name] = episode.outcome.value
            if name == "oracle" and episode.outcome.value != 1.0:
                print(task.task_id, episode.error, episode.outcome, flush=True)
        one.close()
        rows.append({"task": task.task_id, "sites": list(task.sites), "checks": list(task.eval_types), **scores})
    sites, seconds, same = Arena(), [], []
    for _ in range(20):
        began = time.monotonic()
        sites.reset()
        seconds.append(time.monotonic() - began)
        same.append(all(sites.checksum(site) == sites.checksum(site, snapshot=True) for site in SITES))
    write("arena", "arena", {
        "tasks": len(rows), "oracle": sum(r["oracle"] == 1.0 for r in rows), 
        "null": sum(r["null"] == 1.0 for r in rows),
        "masked": sum(r[k] is None for r in rows for k in ("oracle", "null")), "resets": len(seconds),
        "reset_seconds_max": max(seconds), "reset_seconds_median": sorted(seconds)[10],
        "checksum_equal_after_reset": sum(same), "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    arguments = sys.argv[1:]
    runs = Path(arguments.pop(arguments.index("--runs") + 1)) if "--runs" in arguments else ROOT / "runs/web"
    seed = int(arguments.pop(arguments.index("--seed") + 1)) if "--seed" in arguments else 0
    for part in (name for name in arguments if not name.startswith("--")):
        if part in ("pages", "mpc"):
            import measure_web_models

            getattr(measure_web_models, part)(runs, write, seed)
        else:
            {"sweep": sweep, "rate": rate, "kill": kill, "leftovers": leftovers, "arena": arena}[part]()
