"""Measures SPA beside the tables that `terrella reproduce` writes; results/spa_*.json.

    python benchmarks/spa.py table spa_frozen_lake RUNS     the table of the finished jobs
    python benchmarks/spa.py passes spa_frozen_lake RUNS    pass@k up to 64 of the models of seed 0
    python benchmarks/spa.py transfer spa_sokoban RUNS      the same models in harder rooms
    python benchmarks/spa.py smollm2 FOLDER                 a few steps with SmolLM2-135M-Instruct
RUNS is the `--out` of `terrella reproduce`. No job is started here.
"""

import json
import sys
from pathlib import Path

import common

from terrella.core.claims import Claim
from terrella.core.files import read_json_lines
from terrella.core.instances import plain
from terrella.core.run_folder import RunFolder, read_manifest
from terrella.core.types import Split
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.engine import make_engine
from terrella.evals.agents import Evaluate
from terrella.evals.arm_tables import decide_claims
from terrella.pipelines.reproduce.pipeline import Reproduce, instance_rows
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import find_recipe
from terrella.rollout.reward_shaping import RewardShaping
from terrella.show.progress import SilentProgress
from terrella.worlds.frozen_lake import FrozenLake

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
    metrics["fewer_trajectories"] = decide_claims(rows, fewer, margin=config.margin)
    arm = config.arms["spa"]
    setting = {
        "world": str(arm.world),
        "budget_of_world_steps": arm.max_env_steps,
        "parameters": "0.3M, from scratch",
    }
    common.write_rows(recipe, reproduction.rows())
    common.write_results(
        recipe,
        {"setting": setting, **metrics, **job_details(Path(runs))},
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


def smollm2(folder):
    """The whole pipeline on a chat model: tagged self-play, true states, SFT, GRPO, evaluation.

    A few steps each: it must run, not win.
    """
    evaluation = Evaluate.Config(instances=4, samples=2)
    config = Spa.Config(
        world=FrozenLake.Config(size=3, view="grid_coordinates", max_steps=4),
        model="smollm2",
        form="worldmodel",
        max_turns=2,
        max_actions=2,
        turn_tokens=120,
        self_play=SelfPlay.Config(
            trajectories=12, keep="all", sft=SftConfig(batch_size=4, learning_rate=1e-4)
        ),
        rlvr=RlvrConfig(steps=2, groups=2, group_size=4, learning_rate=1e-5),
        reward_shaping=RewardShaping.Config(turn_fine=0.1),
        test=evaluation,
        validation=evaluation.replace(split=Split.VALIDATION),
        out=Path(folder),
    )
    with common.Timer() as timer:
        result = Spa(config).run(SilentProgress())
    metrics = {
        "base": plain(result.base),
        "learnt": plain(result.self_play),
        "rl": plain(result.rl),
        "test": plain(result.test),
    }
    common.write_results(
        "spa_smollm2",
        {"model": "SmolLM2-135M-Instruct", "seconds": round(timer.seconds), **metrics},
        command=common.command("smollm2", "FOLDER"),
    )
    print(json.dumps(metrics)[:800])


PARTS = {"table": table, "passes": passes, "transfer": transfer, "smollm2": smollm2}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
