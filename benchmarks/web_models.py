"""The trained parts of benchmarks/web.py: page world models, and an agent that plans with one.

Called by benchmarks/web.py; needs the extra `train`. Episodes are collected into `--runs` first:
    python benchmarks/web.py pages mpc --runs runs/web
"""

from pathlib import Path

import common
import torch

from terrella.core.instances import plain
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.web.agent import LookAhead, compare_agents
from terrella.pipelines.web.page_model import PageModel
from terrella.policies.basic import Mixture
from terrella.recipes.web import page_model, web_policy
from terrella.show.progress import SilentProgress
from terrella.worlds.miniwob import MiniWob

common.quiet_trl()
torch.set_num_threads(1)


def collect(runs: Path) -> None:
    for split, episodes in ((Split.TRAIN, 1000), (Split.TEST, 100)):
        config = Collect.Config(
            world=MiniWob.Config(by="family", max_steps=6),
            policy=Mixture.Config(share=0.5),
            split=split,
            out=runs / "pages" / split.value,
            episodes=episodes,
            chunk_episodes=50,
        )
        if not (config.out / "manifest.json").exists():
            Collect(config).run(SilentProgress())


def pages(runs, write, seed):
    """A page model on families that it has never seen; one part of the file per seed."""
    collect(runs)
    config = page_model().replace(
        train=runs / "pages/train",
        test=runs / "pages/test",
        seed=seed,
        out=runs / f"page_model-{seed}",
    )
    with common.Timer() as timer:
        result = PageModel(config).run(SilentProgress())
    details = {
        "model": config.model,
        "held_out": "task families",
        "seconds_of_this_call": timer.seconds,
    }
    write("pages", f"pages --seed {seed}", {**details, **plain(result)})


def mpc(runs, write, seed):
    """The same proposals with and without look-ahead, on held-out seeds of the train families."""
    collect(runs)
    config = LookAhead.Config(
        policy=web_policy().replace(train=runs / "pages/train", out=runs / "web_policy"),
        page_model=runs / "page_model-0/rl/model",
    )
    episodes = compare_agents(config, runs / "mpc.jsonl", SilentProgress())
    arms = summary(episodes)
    write("mpc", "mpc", {"arms": arms, "episodes_per_arm": len(episodes) // max(1, len(arms))})


def summary(episodes):
    """Success, calls and steps of each arm; masked episodes are left out."""
    arms = {}
    for arm in dict.fromkeys(episode.arm for episode in episodes):
        judged = [
            episode for episode in episodes if episode.arm == arm and episode.success is not None
        ]
        won = sum(episode.success for episode in judged)
        steps = sum(episode.steps for episode in judged)
        low, high = wilson(int(won), len(judged))
        arms[arm] = {
            "n": len(judged),
            "success": won / len(judged),
            "low": low,
            "high": high,
            "calls_per_step": sum(episode.calls for episode in judged) / max(1, steps),
            "steps": steps,
        }
    return arms


if __name__ == "__main__":
    raise SystemExit("run benchmarks/web.py")
