"""Why does looking ahead gain nothing? Each part of the web agent, learnt or an oracle.

    python benchmarks/web_plan.py --instances 40 [--runs runs/web] [--seed 0] [--arms learned ...]
Proposals are the policy's, or have the expert's action among them, unmarked. The page model is the
learnt one, or a copy of the real world. Values are the predicted reward, or what the expert makes
of the real page. All eight combinations play the same instances at depth 0, 1 and 2. A killed run
continues; finished arms are read. Needs Chromium and the extras `web` and `train`. It uses the
policy and the page model in `--proposer` and `--page-model`, and trains the small ones without.
Writes results/web_plan_parts.json.
"""

import argparse
import itertools
from pathlib import Path

import common

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


def train(options):
    """The small policy and the small page model, unless others are named."""
    import web_models

    from terrella.pipelines.web.agent import WebPolicy
    from terrella.pipelines.web.page_model import PageModel
    from terrella.recipes.web import page_model, web_policy
    from terrella.show.progress import make_progress

    runs = options.runs
    web_models.collect(runs, options.train_episodes, TEST_EPISODES)
    stores = {"train": runs / "pages/train"}
    with make_progress() as progress:
        if not options.proposer:
            policy = web_policy().replace(**stores, out=runs / "web_policy")
            WebPolicy(policy).run(progress)
        if not options.page_model:
            pages = page_model().replace(
                **stores, test=runs / "pages/test", out=runs / "page_model-0"
            )
            rlvr = pages.rlvr.replace(steps=0)  # it did not help (results/web_pages.json)
            PageModel(pages.replace(rlvr=rlvr)).run(progress)
    return options.proposer or str(runs / "web_policy"), options.page_model or str(
        runs / "page_model-0"
    )


def play(name, parts, proposer, page_model, options):
    """One arm at every depth; without look-ahead, only the proposals matter."""
    import web_models

    from terrella.pipelines.web.planning import WebPlan
    from terrella.show.progress import make_progress

    model = page_model if parts["page_model"] == "learned" else "real"
    config = WebPlan.Config(
        world=web_models.trained_world(),
        proposer=proposer,
        **{**parts, "page_model": model},
        instances=options.instances,
        seed=options.seed,
        out=options.runs / f"plan-{options.seed}-{options.instances}" / name.replace("; ", "-"),
    )
    with make_progress() as progress:
        result = WebPlan(config).run(progress)
    return {f"depth {depth}": web_models.arm(scores) for depth, scores in result.depths.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/web"))
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-episodes", type=int, default=TRAIN_EPISODES)
    parser.add_argument("--proposer", default="")
    parser.add_argument("--page-model", default="")
    parser.add_argument("--arms", nargs="*", default=[], help="only arms with these words")
    options = parser.parse_args()
    proposer, page_model = train(options)
    rows = {}
    for name, parts in arms():
        if all(word in name for word in options.arms):
            rows[name] = play(name, parts, proposer, page_model, options)
            words = {depth: (row["success"], row["gain"]) for depth, row in rows[name].items()}
            print(name, words, flush=True)
    command = common.command(
        "--instances", options.instances, "--seed", options.seed, OMP_NUM_THREADS=1
    )
    part = f"{options.instances} instances, seed {options.seed}"
    details = {
        "proposer": proposer,
        "page_model": page_model,
        "train_episodes": options.train_episodes,
        "unit": "instances (held-out seeds of the training families); one training seed",
        "arms": {**common.read_results("web_plan_parts").get(part, {}).get("arms", {}), **rows},
    }
    common.write_part("web_plan_parts", part, details, command=command, what=__doc__.split("\n")[0])


if __name__ == "__main__":
    main()
