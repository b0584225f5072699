"""The trained parts of benchmarks/web.py: page world models, and an agent that plans with one.

Called by benchmarks/web.py; needs the extra `train`. Episodes are collected into `--runs` first:
    python benchmarks/web.py pages mpc --runs runs/web
"""

from pathlib import Path

import common
import torch
import web_plan

from terrella.core.config_override import override
from terrella.core.instances import plain
from terrella.core.run_folder import read_part
from terrella.core.types import Split
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.web.agent import WebPolicy
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.web.planning import WebPlan
from terrella.policies.basic import Mixture
from terrella.recipes.web import page_model, pages_smollm2_miniwob, web_policy
from terrella.show.progress import SilentProgress
from terrella.worlds.miniwob import MiniWob

common.quiet_trl()
torch.set_num_threads(1)
IN_HOURS = (
    "prompt=terse",  # an explanation doubles what is read, and SFT shows the form anyway
    "score_before=false",
    "most_train_steps=800",
    "rlvr.steps=20",
    "evaluate_on=32",
)


def collect(runs: Path, train: int = 1000, test: int = 100) -> None:
    for split, episodes in ((Split.TRAIN, train), (Split.TEST, test)):
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
    config = page_model().replace(seed=seed, out=runs / f"page_model-{seed}")
    score(config, runs, write, f"pages --seed {seed}")


def pages_smollm2(runs, write, seed):
    """The same families with SmolLM2, on as many steps as fit into two to three hours of a core."""
    config = override(pages_smollm2_miniwob(), IN_HOURS)
    config = config.replace(seed=seed, out=runs / f"pages_smollm2-{seed}")
    score(config, runs, write, f"pages_smollm2 --seed {seed}")


def score(config, runs, write, part):
    """Train and score a page model on the collected pages; keep every reply."""
    collect(runs)
    config = config.replace(train=runs / "pages/train", test=runs / "pages/test")
    with common.Timer() as timer:
        result = PageModel(config).run(SilentProgress())
    stages = [stage for stage in ("before", "sft", "rlvr") if getattr(result, stage) is not None]
    rows = common.read_rows("web_pages")
    rows[part] = {stage: read_part(config.out / f"{stage}_rows.json") for stage in stages}
    common.write_rows("web_pages", rows)
    details = {
        "model": config.model,
        "held_out": "task families",
        "seconds_of_this_call": timer.seconds,
    }
    write("pages", part, {**details, **plain(result)})


def mpc(runs, write, seed):
    """The same proposals with and without look-ahead, on held-out seeds of the train families."""
    collect(runs)
    policy = web_policy().replace(train=runs / "pages/train", out=runs / "web_policy")
    WebPolicy(policy).run(SilentProgress())
    config = WebPlan.Config(
        world=web_plan.trained_world(),
        proposer=str(policy.out),
        page_model=str(runs / "page_model-0"),
        instances=100,
        out=runs / "mpc",
    )
    result = WebPlan(config).run(SilentProgress())
    arms = {f"depth {depth}": web_plan.arm(scores) for depth, scores in result.depths.items()}
    write("mpc", "mpc", {"arms": arms, "episodes_per_arm": config.instances})


if __name__ == "__main__":
    raise SystemExit("run benchmarks/web.py")
