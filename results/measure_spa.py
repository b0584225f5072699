"""SPA's figures beside the tables that `terrella reproduce` writes; results/spa_*.json.

    python results/measure_spa.py table spa_frozen_lake RUNS     the table of the jobs that are done, none is started
    python results/measure_spa.py passes spa_frozen_lake RUNS    pass@k to 64 of the models of seed 0
    python results/measure_spa.py transfer spa_sokoban RUNS      the same models in harder rooms
    python results/measure_spa.py smollm2 FOLDER                 the pipeline on SmolLM2-135M-Instruct, a few steps each
RUNS is the `--out` of `terrella reproduce`.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# isort: off
import tests.support.quiet_trl  # noqa: E402, F401  before anything else imports TRL

# isort: on
from terrella.core.types import Split  # noqa: E402
from terrella.engines.sampling.local_sampler import LocalSampler  # noqa: E402
from terrella.engines.trl.rlvr_settings import RlvrSettings  # noqa: E402
from terrella.engines.trl.sft_trainer import SftSettings  # noqa: E402
from terrella.models.presets import load_model  # noqa: E402
from terrella.recipes import find_recipe  # noqa: E402
from terrella.show.progress import SilentProgress  # noqa: E402
from terrella.stages.agent_pay import AgentPay  # noqa: E402
from terrella.stages.evaluate import Evaluate, evaluate_agent  # noqa: E402
from terrella.stages.reproduce import Claim, Reproduce  # noqa: E402
from terrella.stages.self_play import SelfPlay  # noqa: E402
from terrella.stages.spa import Spa  # noqa: E402
from terrella.worlds.frozen_lake import FrozenLake  # noqa: E402


def write(name, found):
    path = ROOT / f"results/{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **found}, indent=1) + "\n")


def table(recipe, runs):
    config = find_recipe(recipe)()
    stage = Reproduce(config.replace(out=Path(runs)))
    found = stage.write_table()
    fewer = [name for name in ("spa_1500", "spa_3000") if name in found["arms"]]
    found["fewer_trajectories"] = [stage.judge(Claim(name, "spa", 1), stage.finished()) for name in fewer]
    arms = config.arms["spa"]
    setting = {"world": str(arms.world), "budget_of_world_steps": arms.budget, "parameters": "0.3M, from scratch"}
    write(recipe, {"command": f"terrella reproduce {recipe}", "setting": setting, **found, **seen(Path(runs))})
    for name, arm in found["arms"].items():
        print(name, arm["seeds"], {k: round(arm[k]["mean"], 3) for k in ("pass@1", "pass@8")}, arm["world_steps"])
    for claim in found["claims"] + found["fewer_trajectories"]:
        print(claim)


def seen(runs):
    """Job by job: what self-play gave, and when RL was first paid."""
    played, paid = {}, {}
    for path in sorted(runs.glob("*-[0-9]*/manifest.json")):
        learnt = json.loads(path.read_text())["learnt"]
        if "episodes" in learnt:
            played[path.parent.name] = {name: learnt[name] for name in ("episodes", "rows", "valid_actions")}
        curve = path.with_name("curve.jsonl")
        rewards = [json.loads(line)["reward"] for line in curve.read_text().splitlines()] if curve.exists() else []
        if rewards:
            first = next((step for step, reward in enumerate(rewards, 1) if reward > 0), None)
            paid[path.parent.name] = {"steps": len(rewards), "first_paid": first, "paid": sum(r > 0 for r in rewards)}
    return {"self_play": played, "rl_steps": paid}


def passes(recipe, runs):
    """Whether RL gave something or only made the likely likelier: pass@k to 64, same instances, one seed."""
    look = Evaluate.Config(instances=256, samples=64)
    found = {name: look_again(recipe, runs, name, 0, look) for name in ("base", "vanilla", "spa")}
    command = f"python results/measure_spa.py passes {recipe} RUNS"
    write(recipe, {"to_64": {"command": command, "seed": 0, "instances": 256, "arms": found}})


HARDER = {"longest": 6, "max_steps": 8}


def transfer(recipe, runs):
    """From easy to hard: the same models in rooms that take up to six steps instead of three."""
    look, found = Evaluate.Config(instances=256, samples=8), {}
    for name in ("base", "vanilla", "spa"):
        seeds = [seed for seed in range(5) if (Path(runs) / f"{name}-{seed}/manifest.json").exists()]
        found[name] = {seed: look_again(recipe, runs, name, seed, look, HARDER) for seed in seeds}
    command = f"python results/measure_spa.py transfer {recipe} RUNS"
    write(recipe, {"harder": {"command": command, "changed": HARDER, "instances": 256, "arms": found}})


def look_again(recipe, runs, name, seed, look, changes=None):
    """pass@k of a finished run's model, in its world or a changed one."""
    arm = find_recipe(recipe)().arms[name].replace(bases=Path(runs) / "bases")
    folder = Path(runs) / f"{name}-{seed}/model"
    model, tokenizer = load_model(str(folder)) if folder.exists() else Spa(arm)._base(SilentProgress())
    if changes:
        arm = arm.replace(world=arm.world.replace(**changes), max_turns=changes["max_steps"])
    stage = Spa(arm)
    model.eval()
    codec = stage.codec(tokenizer)
    result = evaluate_agent(look, stage.driver(codec), LocalSampler(model), codec)
    print(recipe, name, seed, {k: round(v["mean"], 3) for k, v in result["pass"].items()}, flush=True)
    return {f"pass@{k}": value for k, value in result["pass"].items()}


def smollm2(folder):
    """It must run, not win: self-play in the tagged form, true states in, SFT, GRPO, evaluation."""
    began, look = time.time(), Evaluate.Config(instances=4, samples=2)
    config = Spa.Config(
        world=FrozenLake.Config(size=3, view="grid_coordinates", max_steps=4), model="smollm2", form="worldmodel",
        max_turns=2, max_actions=2, turn_tokens=120,
        self_play=SelfPlay.Config(
            trajectories=12, keep="all", sft=SftSettings.Config(batch_rows=4, learning_rate=1e-4)
        ),
        rlvr=RlvrSettings.Config(steps=2, groups=2, group_size=4, learning_rate=1e-5),
        pay=AgentPay.Config(turn_fine=0.1), evaluate=look, glance=look.replace(split=Split.VALIDATION),
        out=Path(folder),
    )  # fmt: skip
    found = Spa(config).run(SilentProgress())
    kept = {name: found[name] for name in ("base", "learnt", "rl", "test")}
    write("spa_smollm2", {"command": "python results/measure_spa.py smollm2 FOLDER", "model": "SmolLM2-135M-Instruct",
                          "seconds": round(time.time() - began), **kept})  # fmt: skip
    print(json.dumps(kept)[:800])


if __name__ == "__main__":
    {"table": table, "passes": passes, "transfer": transfer, "smollm2": smollm2}[sys.argv[1]](*sys.argv[2:])
