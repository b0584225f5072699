"""The trained parts of measure_web.py: page world models, and the agent that looks ahead with one.

Called by measure_web.py; needs the extra `train`. Episodes are collected into `--runs` first:
    python results/measure_web.py pages mpc --runs runs/web
"""

import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

# isort: off
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

# isort: on
import torch

from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.policies.basic import Mixture
from terrella.recipes.web import page_model, web_policy
from terrella.show.progress import SilentProgress
from terrella.stages.collect import Collect
from terrella.stages.page_model import PageModel
from terrella.stages.web_agent import LookAhead, compare_agents
from terrella.worlds.miniwob import MiniWob

torch.set_num_threads(1)


def collect(runs: Path) -> None:
    for split, episodes in ((Split.TRAIN, 1000), (Split.TEST, 100)):
        wanted = Collect.Config(
            world=MiniWob.Config(by="family", max_steps=6), policy=Mixture.Config(share=0.5), split=split,
            out=runs / "pages" / split.value, episodes=episodes, chunk_episodes=50,
        )  # fmt: skip
        if not (wanted.out / "manifest.json").exists():
            Collect(wanted).run(SilentProgress())


def pages(runs, write, seed):
    """A page model on families that it has never seen; one seed a call, one part of the file a seed."""
    collect(runs)
    config = page_model().replace(
        train=runs / "pages/train", test=runs / "pages/test", seed=seed, out=runs / f"page_model-{seed}"
    )
    began = time.monotonic()
    found = PageModel(config).run(SilentProgress())
    told = {"model": config.model, "held_out": "task families", "seconds_of_this_call": time.monotonic() - began}
    write("pages", f"pages --seed {seed}", {**told, **found})


def mpc(runs, write, seed):
    """The same proposals with and without looking ahead, on held-out seeds of the training families."""
    collect(runs)
    config = LookAhead.Config(
        policy=web_policy().replace(train=runs / "pages/train", out=runs / "web_policy"),
        page_model=runs / "page_model-0/sharpened/model",
    )
    rows = compare_agents(config, runs / "mpc.jsonl")
    write("mpc", "mpc", {"arms": summary(rows), "episodes_per_arm": len(rows) // max(1, len({r["arm"] for r in rows}))})


def summary(rows):
    found = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm and row["success"] is not None]
        won, steps = sum(row["success"] for row in mine), sum(row["steps"] for row in mine)
        low, high = wilson(won, len(mine))
        found[arm] = {"n": len(mine), "success": won / len(mine), "low": low, "high": high,
                      "calls_per_step": sum(row["calls"] for row in mine) / max(1, steps), "steps": steps}  # fmt: skip
    return found


if __name__ == "__main__":
    raise SystemExit(json.dumps("run measure_web.py"))
