"""Measures SPA beside the tables that `terrella reproduce` writes; results/spa_*.json.

    python benchmarks/spa.py table spa_frozen_lake RUNS     the table of the finished jobs
    python benchmarks/spa.py passes spa_frozen_lake RUNS    pass@k up to 64 of the models of seed 0
    python benchmarks/spa.py transfer spa_sokoban RUNS      the same models in harder rooms
    python benchmarks/spa.py self_play JOB...               what self-play taught SmolLM2, before RL
RUNS is the `--out` of `terrella reproduce`. No job is started here.
"""

import sys
from pathlib import Path

import common

from terrella.core.claims import Claim
from terrella.core.files import read_json, read_json_lines
from terrella.core.instances import plain
from terrella.core.run_folder import RunFolder, read_manifest, read_part
from terrella.engines.engine import make_engine
from terrella.evals.agents import Evaluate
from terrella.evals.arm_tables import decide_claims
from terrella.pipelines.reproduce.pipeline import Reproduce, instance_rows
from terrella.pipelines.spa.pipeline import Spa
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress

common.quiet_trl()
FEWER_TRAJECTORIES = ("spa_1500", "spa_3000")
COMPARED = ("base", "vanilla", "spa")
HARDER = {"longest": 6, "max_steps": 8}
"""Rooms that take up to six steps; the models were trained on up to three."""


def table(recipe, runs):
    """The table of the jobs that are finished, with more details of each job."""
    config = find_recipe(recipe)()
    reproduction = Reproduce(config.replace(out=Path(runs)))
    metrics = reproduction.write_table()
    fewer = [Claim(name, "spa") for name in FEWER_TRAJECTORIES if name in metrics["arms"]]
    rows = instance_rows(reproduction.finished())
    metrics["fewer_trajectories"] = decide_claims(
        rows, fewer, margin=config.margin, looks=config.looks
    )
    arm = config.arms["spa"]
    setting = {
        "world": str(arm.world),
        "budget_of_world_steps": arm.max_env_steps,
        "parameters": "0.3M, from scratch",
    }
    common.write_rows(recipe, reproduction.rows())
    common.write_results(
        recipe,
        {"setting": setting, "one_base": False, **metrics, **job_details(Path(runs))},
        command=f"terrella reproduce {recipe}",
    )
    for name, row in metrics["arms"].items():
        passes = {k: round(row[k]["mean"], 3) for k in ("pass@1", "pass@8")}
        print(name, row["seeds"], passes, row["env_steps"])
    for claim in metrics["claims"] + metrics["fewer_trajectories"]:
        print(claim)


def job_details(runs):
    """Job by job: what self-play gave, and when RL first got a reward."""
    self_play, rl_steps = {}, {}
    for path in sorted(runs.glob("*-[0-9]*/manifest.json")):
        job = path.parent
        played = read_manifest(job).metrics["self_play"]
        if played is not None:
            validation = played["validation"] or {}
            self_play[job.name] = {
                "episodes": played["episodes"],
                "rows": played["examples"],
                "valid_actions": validation.get("valid_actions"),
            }
        curve = job / "curve.jsonl"
        rewards = [row["reward"] for row in read_json_lines(curve)] if curve.exists() else []
        if rewards:
            rewarded = [step for step, reward in enumerate(rewards, 1) if reward > 0]
            rl_steps[job.name] = {
                "steps": len(rewards),
                "first_paid": rewarded[0] if rewarded else None,
                "paid": len(rewarded),
            }
    return {"self_play": self_play, "rl_steps": rl_steps}


def passes(recipe, runs):
    """Does RL add abilities, or only make likely answers likelier? pass@k up to 64, one seed."""
    config = Evaluate.Config(instances=256, samples=64)
    arms = {name: evaluate_again(recipe, runs, name, 0, config) for name in COMPARED}
    command = common.command("passes", recipe, "RUNS")
    record = {"command": command, "seed": 0, "instances": config.instances, "arms": arms}
    common.save_results(recipe, {**common.read_results(recipe), "to_64": record})


def transfer(recipe, runs):
    """From easy to hard: the same models in harder rooms than they were trained in."""
    config = Evaluate.Config(instances=256, samples=8)
    arms = {}
    for name in COMPARED:
        finished = [
            seed for seed in range(5) if Path(runs, f"{name}-{seed}/manifest.json").exists()
        ]
        arms[name] = {
            seed: evaluate_again(recipe, runs, name, seed, config, HARDER) for seed in finished
        }
    command = common.command("transfer", recipe, "RUNS")
    record = {"command": command, "changed": HARDER, "instances": config.instances, "arms": arms}
    common.save_results(recipe, {**common.read_results(recipe), "harder": record})


def evaluate_again(recipe, runs, name, seed, config, changes=None):
    """pass@k of a finished run's model, in its world or in a changed one."""
    reproduction = Reproduce(find_recipe(recipe)().replace(out=Path(runs)))
    arm = reproduction.job_config(name, seed)
    model = final_model(arm)
    if changes:
        arm = arm.replace(world=arm.world.replace(**changes), max_turns=changes["max_steps"])
    pipeline = Spa(arm)
    with make_engine(arm, work=arm.out / "engine") as pipeline.engine:
        scores = pipeline.score(config, model)
    means = {k: round(metric.mean, 3) for k, metric in scores.passes.items()}
    print(recipe, name, seed, means, flush=True)
    return {f"pass@{k}": plain(metric) for k, metric in scores.passes.items()}


def final_model(arm):
    """The model that RL left; that of the format SFT where an arm trains nothing more."""
    folder = arm.out / "model"
    if folder.exists():
        return folder
    pipeline = Spa(arm)
    with (
        RunFolder(arm.out, arm, ignored=Spa.ignored, progress=SilentProgress()) as run,
        pipeline.resources(run),
    ):
        return pipeline.format_model(run)


def self_play(*jobs):
    """What self-play taught SmolLM2 in these jobs of `spa_smollm2_lake`, before any RL.

    Jobs that are not finished count, too: what is read is written when self-play ends.
    """
    record = common.read_results("spa_smollm2_self_play")
    measured = record.get("jobs", {})
    for job in map(Path, jobs):
        settings = read_json(job / "spec.json")["config"]
        part = settings["self_play"]
        name = f"{part['trajectories']} episodes, batches of {part['sft']['batch_size']}"
        cost = read_part(job / "self_play_cost.json")
        measured[f"{name}, seed {settings['seed']}"] = {
            **cost,
            "before": form_and_truth(read_part(job / "base.json")),
            "after": form_and_truth(read_part(job / "after_self_play.json")),
        }
    common.write_results(
        "spa_smollm2_self_play",
        {"split": "validation", "jobs": measured},
        command="terrella reproduce spa_smollm2_lake --only spa-SEED",
    )


def form_and_truth(scores):
    """Of the scores of a model: how it writes, and how often its predictions are true."""
    names = ("samples", "well_formed", "valid_actions", "true_predictions", "reply_tokens")
    return {
        "instances": len(scores["successes"]),
        **{name: scores[name] for name in names},
        "pass@1": scores["passes"]["1"],
    }


PARTS = {"table": table, "passes": passes, "transfer": transfer, "self_play": self_play}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
