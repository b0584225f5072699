"""Planning and learning inside a video model, against the same in the simulator.

    python benchmarks/video_plan.py RUN --videos FOLDER [--tasks push reach] [--model fitted]
RUN is a trained video model and FOLDER its recordings and tokenizer. Each task plays the same
held-out starts in the simulator with: random actions; the script (`expert`); a clone of the
recorded successes after few updates; CEM and MPPI in the model; the same planners in the simulator
itself, forked before each decision; the clone after practice in the model, and after as much
practice in the simulator. Real steps are counted beyond the model's own recordings: those that are
played to measure are `played`, those that it took to decide or to learn are `real_steps`.
Results: results/video_plan.json. One core, OMP_NUM_THREADS=1; `reach` takes 18 CPU minutes.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import common
import numpy as np
import torch

from terrella.core.run_folder import read_manifest
from terrella.core.types import Split
from terrella.evals.policy_eval import evaluate_policy
from terrella.pipelines.video.inside import InsideVideo, steps_of
from terrella.pipelines.video.practice import PixelPractice
from terrella.pipelines.video.recorded import recorded_model
from terrella.policies.basic import Expert, Random
from terrella.policies.pixels import Pixels
from terrella.world_models.forked import ForkedWorld
from terrella.world_models.planner_continuous import ContinuousPlanner

common.quiet_trl()
torch.set_num_threads(1)
METHODS = ("cem", "mppi")
BASE = "clone"
WHAT = "success on held-out starts in the simulator, and the real steps that it took"


class Arms:
    """What plays one task with one seed, and what it takes."""

    def __init__(self, inside, arguments):
        self.inside, self.arguments = inside, arguments
        self.world = inside.config.world
        self.clone = inside.clone(arguments.clone_updates)
        self.rows = {}

    def run(self):
        self.measure("random", Random.Config().build())
        self.measure("expert", Expert.Config().build())
        self.measure(BASE, Pixels(self.clone.read, BASE))
        for method in METHODS:
            self.plan_in_model(method)
            self.plan_in_simulator(method)
        self.practise("practice in the model", self.inside.imagined_world)
        self.practise("practice in the simulator", self.world.build)
        clone = self.rows[BASE]["won"]
        return {
            name: {**row, **common.won_more(row["won"], than=clone, name=BASE)}
            for name, row in self.rows.items()
        }

    def measure(self, name, policy, make_world=None, **taken):
        """Play the held-out starts, one after the other."""
        played = evaluate_policy(
            make_world or self.world.build,
            policy,
            seeds=range(self.arguments.starts),
            split=Split.TEST,
            num_envs=1,
        )
        row = {"won": played.successes, "played": played.steps}
        self.rows[name] = {**row, "real_steps": 0, "imagined_steps": 0, **taken}
        print(f"{name}: {np.mean(played.successes):.3f}", flush=True)

    # --- planning ---------------------------------------------------------------------------------

    def plan_in_model(self, method):
        name, planner = f"{method} in the model", self.planner(method)
        self.measure(name, planner)
        self.rows[name] |= {"imagined_steps": planner.cost.queries, "plans": planner.cost.plans}

    def plan_in_simulator(self, method):
        world = self.world.build()
        model = ForkedWorld(world)
        name, planner = f"{method} in the simulator", self.planner(method, model)
        self.measure(name, planner, lambda: world)
        self.rows[name] |= {"real_steps": model.steps, "plans": planner.cost.plans}

    def planner(self, method, model=None):
        settings = self.arguments
        config = ContinuousPlanner.Config(
            size=self.inside.codec.bins.size,
            method=method,
            depth=settings.depth,
            candidates=settings.candidates,
            iterations=settings.iterations,
            elite_share=settings.elite_share,
            temperature=settings.mppi_temperature,
        )
        return self.inside.planner(config, model)

    # --- practice ---------------------------------------------------------------------------------

    def practise(self, name, make_world):
        settings = self.arguments
        config = PixelPractice.Config(
            rounds=settings.rounds,
            episodes=settings.episodes,
            noise=settings.noise,
            updates=settings.updates,
        )
        practised = PixelPractice(config).run(self.clone, make_world, seed=settings.seed)
        steps = "imagined_steps" if make_world == self.inside.imagined_world else "real_steps"
        taken = {steps: practised.steps, "rounds": [asdict(each) for each in practised.rounds]}
        self.measure(name, Pixels(practised.net.read, name), **taken)


# --- one task -------------------------------------------------------------------------------------


def recorded_world(arguments, task):
    """The world of a task as it was recorded."""
    recorded = read_manifest(arguments.run).config
    worlds = recorded_model(recorded, arguments.run, videos=arguments.videos).videos.worlds
    named = [world for world in worlds if world.task == task]
    if not named:
        raise SystemExit(f"{arguments.videos} has no recordings of {task}: choose other --tasks")
    return named[0]


def measure_task(arguments, task):
    inside = InsideVideo(
        InsideVideo.Config(
            run=arguments.run,
            videos=arguments.videos,
            world=recorded_world(arguments, task),
            model=arguments.model,
            window=arguments.window,
            temperature=arguments.temperature,
            value=arguments.value,
            fit_steps=arguments.fit_steps,
            risk_share=arguments.risk_share,
            seed=arguments.seed,
        )
    )
    with common.Timer() as timer:
        arms = Arms(inside, arguments).run()
    return {
        "task": task,
        "seed": arguments.seed,
        "settings": settings_of(arguments),
        "recorded_steps": {
            "of the task": steps_of(inside.recordings(Split.TRAIN)),
            "of the model": inside.videos.shards(Split.TRAIN).transitions,
        },
        "recorded_success": float(np.mean([each.success.any() for each in inside.examples])),
        "most_risk": inside.model.most,
        "cpu_s": timer.cpu_seconds,
        "arms": arms,
    }


def settings_of(arguments):
    """All settings but where things are."""
    paths = ("run", "videos", "tasks")
    return {name: value for name, value in vars(arguments).items() if name not in paths}


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["push", "reach"])
    parser.add_argument("--model", choices=("fitted", "model"), default="model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.5, help="of imagined frames")
    parser.add_argument("--risk-share", type=float, default=0.99)
    parser.add_argument("--value", choices=("progress", "logit"), default="progress")
    parser.add_argument("--fit-steps", type=int, default=800, help="of classifier and value")
    parser.add_argument("--clone-updates", type=int, default=150)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--elite-share", type=float, default=0.3)
    parser.add_argument("--mppi-temperature", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=4, help="of practice")
    parser.add_argument("--episodes", type=int, default=48, help="of a round")
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--updates", type=int, default=150, help="after a round")
    return parser


def main(words=None):
    arguments = options().parse_args(words)
    for task in arguments.tasks:
        row = measure_task(arguments, task)
        named = ("model", "seed", "starts")
        flags = [f"--tasks {task}", *(f"--{name} {getattr(arguments, name)}" for name in named)]
        command = common.command("RUN --videos FOLDER", *flags, OMP_NUM_THREADS=1)
        before_rlvr = ", before RLVR" if arguments.model == "fitted" else ""
        part = f"{task} seed {arguments.seed}{before_rlvr}"
        common.write_part("video_plan", part, row, command=command, what=WHAT)
        print(json.dumps({n: arm["success"]["mean"] for n, arm in row["arms"].items()}), flush=True)


if __name__ == "__main__":
    main()
