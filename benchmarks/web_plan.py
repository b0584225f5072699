"""Why does looking ahead gain nothing? Each part of the web agent, learnt or an oracle.

    python benchmarks/web_plan.py --instances 40 [--runs runs/web] [--seed 0] [--arms learned ...]
Proposals are the policy's, or have the expert's action among them, unmarked. The page model is the
learnt one, or a copy of the real world. Values are the predicted reward, or what the expert makes
of the real page. All eight combinations play the same instances at depth 0, 1 and 2. A killed run
continues; finished arms are read. Needs Chromium and the extras `web` and `train`. It uses the
policy and the page model in `--proposer` (`random` needs none) and `--page-model`, and trains the
small ones without.
Writes results/web_plan_parts.json.
"""

import argparse
import itertools
import shlex
from pathlib import Path

import common

from terrella.core.instances import plain
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.pipelines.web.planning import WebPlan, planner_for
from terrella.show.progress import make_progress
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.miniwob.families import held_out
from terrella.worlds.miniwob.scripts import SCRIPTS

PARTS = {
    "right_action": (False, True),
    "page_model": ("learned", "real"),
    "value": ("reward", "true"),
}
TRAIN_EPISODES, TEST_EPISODES = 1000, 100


def arms():
    """Every combination by name, all learnt first."""
    for right, model, value in itertools.product(*PARTS.values()):
        proposals = "right action proposed" if right else "policy proposes"
        name = f"{proposals}; {model} model; {value} value"
        yield name, {"right_action": right, "page_model": model, "value": value}


def trained_world():
    """The families that the policy was trained on; their held-out seeds are played."""
    families = held_out(Split.TRAIN, tuple(sorted(SCRIPTS)))
    return MiniWob.Config(max_steps=6, families=families)


def arm(scores):
    """Success, its interval and what it cost; masked episodes are left out."""
    success = scores.success
    low, high = wilson(round(success.mean * success.n), success.n)
    return {
        "n": success.n,
        "masked": scores.masked,
        "success": success.mean,
        "low": low,
        "high": high,
        "gain": plain(scores.gain) if scores.gain else None,
        "calls_per_step": scores.calls_per_step,
        "unread": scores.unread,
        "right_action_not_proposed": scores.missing,
    }


def train(options, needs_page_model):
    """The small policy and the small page model, where they are needed and no others are named."""
    proposer, page_model = options.proposer, options.page_model
    if proposer and (page_model or not needs_page_model):
        return proposer, page_model
    import web_models

    from terrella.pipelines.web.agent import WebPolicy
    from terrella.pipelines.web.page_model import PageModel
    from terrella.recipes import web

    runs = options.runs
    web_models.collect(runs, options.train_episodes, TEST_EPISODES)
    stores = {"train": runs / "pages/train"}
    with make_progress() as progress:
        if not proposer:
            policy = web.web_policy().replace(**stores, out=runs / "web_policy")
            WebPolicy(policy).run(progress)
            proposer = str(policy.out)
        if needs_page_model and not page_model:
            pages = web.page_model()
            pages = pages.replace(
                **stores,
                test=runs / "pages/test",
                rlvr=pages.rlvr.replace(steps=0),  # it did not help (results/web_pages.json)
                out=runs / "page_model-sft",
            )
            PageModel(pages).run(progress)
            page_model = str(pages.out)
    return proposer, page_model


def play(name, parts, proposer, page_model, options):
    """One arm at every depth; without look-ahead, only the proposals matter."""
    model = page_model if parts["page_model"] == "learned" else "real"
    config = WebPlan.Config(
        world=trained_world(),
        proposer=proposer,
        **{**parts, "page_model": model},
        planner=planner_for(parts["value"]),
        depths=tuple(options.depths),
        instances=options.instances,
        seed=options.seed,
        out=_folder(options, proposer) / name.replace("; ", "-").replace(" ", "_"),
    )
    with make_progress() as progress:
        result = WebPlan(config).run(progress)
    return {f"depth {depth}": arm(scores) for depth, scores in result.depths.items()}


def _arguments(options):
    """What the result depends on: not where it is kept."""
    named = {name: value for name, value in vars(options).items() if name != "runs" and value}
    words = []
    for name, value in named.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def _folder(options, proposer):
    depths = "".join(map(str, options.depths))
    name = f"plan-{Path(proposer).name}-{options.seed}-{options.instances}-{depths}"
    return options.runs / name


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/web"))
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-episodes", type=int, default=TRAIN_EPISODES)
    parser.add_argument("--proposer", default="")
    parser.add_argument("--page-model", default="")
    parser.add_argument("--depths", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", default=[], help="only arms with these words")
    options = parser.parse_args()
    chosen = {n: parts for n, parts in arms() if all(word in n for word in options.arms)}
    needs_page_model = any(parts["page_model"] == "learned" for parts in chosen.values())
    proposer, page_model = train(options, needs_page_model)
    rows = {}
    for name, parts in chosen.items():
        rows[name] = play(name, parts, proposer, page_model, options)
        words = {depth: (row["success"], row["gain"]) for depth, row in rows[name].items()}
        print(name, words, flush=True)
    command = common.command(shlex.join(_arguments(options)), OMP_NUM_THREADS=1)
    part = f"{Path(proposer).name} proposes, {options.instances} instances, seed {options.seed}"
    details = {
        "proposer": Path(proposer).name,
        "page_model": Path(page_model).name or None,
        "train_episodes": options.train_episodes,
        "unit": "instances (held-out seeds of the training families); one training seed",
        "arms": {**common.read_results("web_plan_parts").get(part, {}).get("arms", {}), **rows},
    }
    common.write_part("web_plan_parts", part, details, command=command, what=__doc__.split("\n")[0])


if __name__ == "__main__":
    main()
