"""Why does looking ahead gain nothing? Each part of the web agent, learnt or an oracle.

    python benchmarks/web_plan.py --seeds 3 [--instances 40] [--runs runs/web] [--arms learned ...]
Proposals are the policy's, or have the expert's action among them, unmarked. The page model is the
learnt one, or a copy of the real world. Values are the predicted reward, or what the expert makes
of the real page. All eight combinations play the same instances at each depth of looking ahead; a
seed trains the policy and the page model anew. A killed run continues; finished arms are read.
Needs Chromium and the extras `web` and `train`. With `--proposer` (`random` needs none) and
`--page-model` it uses those, and a seed repeats the sampling only.
Writes results/web_plan_parts.json.
"""

import argparse
import itertools
import shlex
from pathlib import Path

import common
from recompute import web_parts

from terrella.core.types import Split
from terrella.data.row_journal import SUFFIX, read_rows
from terrella.pipelines.web.planning import WebPlan, planner_for
from terrella.show.progress import make_progress
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.miniwob.families import held_out
from terrella.worlds.miniwob.scripts import SCRIPTS

NAME = "web_plan_parts"
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


def train(options, seed, needs_page_model):
    """The small policy and the small page model of a seed, where no others are named."""
    proposer, page_model = options.proposer, options.page_model
    if proposer and (page_model or not needs_page_model):
        return proposer, page_model
    import web_models

    from terrella.pipelines.web.agent import WebPolicy
    from terrella.pipelines.web.page_model import PageModel
    from terrella.recipes import web

    runs = options.runs
    web_models.collect(runs, options.train_episodes, TEST_EPISODES)
    trained = {"train": runs / "pages/train", "seed": seed}
    with make_progress() as progress:
        if not proposer:
            policy = web.web_policy().replace(**trained, out=runs / f"web_policy-{seed}")
            WebPolicy(policy).run(progress)
            proposer = str(policy.out)
        if needs_page_model and not page_model:
            pages = web.page_model()
            pages = pages.replace(
                **trained,
                test=runs / "pages/test",
                rlvr=pages.rlvr.replace(steps=0),  # it did not help (results/web_pages.json)
                out=runs / f"page_model-sft-{seed}",
            )
            PageModel(pages).run(progress)
            page_model = str(pages.out)
    return proposer, page_model


def play(name, parts, proposer, page_model, options, seed):
    """One arm at every depth: the successes, and what they cost."""
    model = page_model if parts["page_model"] == "learned" else "real"
    config = WebPlan.Config(
        world=trained_world(),
        proposer=proposer,
        **{**parts, "page_model": model},
        planner=planner_for(parts["value"]),
        depths=tuple(options.depths),
        instances=options.instances,
        seed=seed,
        out=_folder(options, proposer, seed) / name.replace("; ", "-").replace(" ", "_"),
    )
    with make_progress() as progress:
        result = WebPlan(config).run(progress)
    (file,) = (config.out / "rows").glob(f"*{SUFFIX}")
    rows = {str(depth): [None] * options.instances for depth in options.depths}
    for episode in read_rows(file):
        rows[str(episode["depth"])][episode["seed"]] = episode["success"]
    costs = {
        depth: {
            "calls_per_step": scores.calls_per_step,
            "unread": scores.unread,
            "right_action_not_proposed": scores.missing,
        }
        for depth, scores in result.depths.items()
    }
    return rows, costs


def _folder(options, proposer, seed):
    depths = "".join(map(str, options.depths))
    name = f"plan-{Path(proposer).name}-{seed}-{options.instances}-{depths}"
    return options.runs / name


def _arguments(options):
    """What the result depends on: not where it is kept."""
    named = {name: value for name, value in vars(options).items() if name != "runs" and value}
    words = []
    for name, value in named.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/web"))
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train-episodes", type=int, default=TRAIN_EPISODES)
    parser.add_argument("--proposer", default="")
    parser.add_argument("--page-model", default="")
    parser.add_argument("--depths", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--arms", nargs="*", default=[], help="only arms with these words")
    options = parser.parse_args()
    chosen = {n: parts for n, parts in arms() if all(word in n for word in options.arms)}
    needs_page_model = any(parts["page_model"] == "learned" for parts in chosen.values())
    who = Path(options.proposer).name or "the small policy"
    part = f"{who} proposes, depths {' '.join(map(str, options.depths))}"
    rows, costs = {}, {}
    for seed in range(options.seeds):
        proposer, page_model = train(options, seed, needs_page_model)
        for name, parts in chosen.items():
            found = play(name, parts, proposer, page_model, options, seed)
            rows.setdefault(name, {})[str(seed)], costs.setdefault(name, {})[str(seed)] = found
            print(seed, name, found[1], flush=True)
        kept = {**common.read_rows(NAME), part: rows}
        common.write_rows(NAME, kept)
        write(part, {**web_parts({}, kept)[part], "costs": costs}, options)


def write(part, metrics, options):
    trained = "policy and page model trained anew"
    details = {
        "a_seed_is": f"sampling; {options.proposer} proposes" if options.proposer else trained,
        "instances": options.instances,
        **metrics,
    }
    command = common.command(shlex.join(_arguments(options)), OMP_NUM_THREADS=1)
    common.write_part(NAME, part, details, command=command, what=__doc__.split("\n")[0])


if __name__ == "__main__":
    main()
