"""Measures how far world models can be trusted and writes results/trust_*.json, part by part.

    python benchmarks/trust.py models certificates gate gate_sokoban gate_elevator plan [--seeds 5]
Any subset can be named; the same command resumes. Models are trained into `--runs` (default:
runs/trust) and reused. On two CPU cores, OMP_NUM_THREADS=1. Coverage has a script of its own
(trust_coverage.py).
"""

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import common
import torch
from trust_estimators import CachingRiskEstimator, CountingRiskEstimator

from terrella.core.seeds import instance_seed
from terrella.core.types import Split
from terrella.evals.policy_eval import evaluate_policy
from terrella.pipelines.certify.pipeline import Certify, summary
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Expert, Random
from terrella.recipes import trust as recipes
from terrella.rollout.tasks import distinct_instances
from terrella.show.progress import SilentProgress
from terrella.trust.certificate import Certificate
from terrella.trust.gate import Gate
from terrella.trust.nearness import NearestData
from terrella.world_models.certified import (
    CertifiedModel,
    load_certified_model,
    read_certificate,
)
from terrella.world_models.imagine import imagine
from terrella.world_models.imagine_gate import gated
from terrella.world_models.language import load_world_model
from terrella.world_models.planner import Planner

sys.path.insert(0, str(common.ROOT / "examples"))
from elevator import elevator_model

common.quiet_trl()
torch.set_num_threads(1)
RECIPES = {
    "counter": recipes.counter_model,
    "lake_thin": recipes.lake_thin_model,
    "lake_slip": recipes.lake_slip_model,
    "lake": recipes.lake_model,
    "sokoban": recipes.sokoban_model,
    "elevator": elevator_model,
}
SAMPLES = {"lake": 4, "lake_slip": 12, "counter": 4, "sokoban": 6, "lake_thin": 4, "elevator": 4}


def write(part, metrics):
    seeds = [f"--seeds {SEEDS}"] if part in GATES.values() else []
    command = common.command(part, *seeds, OMP_NUM_THREADS=1)
    common.write_results(f"trust_{part}", metrics, command=command, replace=True)


def folder(name, seed=0):
    return RUNS / f"{name}-{seed}"


def train(name, seed=0):
    config = RECIPES[name]().replace(out=folder(name, seed), seed=seed)
    with common.Timer() as timer:
        result = TrainWorldModel(config).run(SilentProgress())
    print("trained", name, seed, f"{timer.cpu_seconds:.0f} CPU s", flush=True)
    return result


def certify(name, seed=0, **changes):
    config = Certify.Config(
        world=RECIPES[name]().world, folder=folder(name, seed), samples=SAMPLES[name], **changes
    )
    with common.Timer() as timer:
        certificate = Certify(config).run(SilentProgress())
    seconds = f"{timer.cpu_seconds:.0f} CPU s"
    print("certified", name, seed, seconds, summary(certificate), flush=True)
    return certificate


def with_interval(values):
    return {**common.mean_row(values), "seeds": list(map(float, values))}


# --- parts ----------------------------------------------------------------------------------------


def models():
    """Train one model of each recipe."""
    for name in RECIPES:
        train(name)


FULL = {
    "calibration": 1000,
    "held_out": 600,
    "exploited_on": 40,
    "ranked_on": 80,
    "horizon_episodes": 150,
}
# What the thin model predicts scatters, so that each of its plans takes 800 questions.
FEWER = {"lake_thin": {"exploited_on": 4}}


def certificates():
    """A good model and an under-trained one: every section, and what the gate makes of each."""
    certified = common.read_results("trust_certificates").get("models", {})
    for name in ("lake", "lake_thin", "sokoban", "lake_slip", "counter"):
        if name in certified:
            continue
        certificate = certify(name, **FULL | FEWER.get(name, {}))
        certified[name] = {**certificate.sections, "gate": gate_counts(name)}
        write("certificates", {"models": certified})


def gate_counts(name):
    """Steps of the data's policy behind the gate: how many of them are imagined."""
    recipe = RECIPES[name]()
    certified_model = load_certified_model(folder(name), SAMPLES[name], recipe.world)
    gate = Gate(Gate.Config(audit_share=0.1), certified_model.certificate)
    make_world = partial(gated, recipe.world, certified_model=certified_model, gate=gate)
    evaluate_policy(make_world, recipe.policy.build(), seeds=range(100), split=Split.TEST)
    return gate.ledger.counts()


LEAN = {"calibration": 1000, "held_out": 300, "policies": (), "exploited_on": 0}
"""What the gate needs of a certificate: risk and horizon, but no ranking or exploitability."""
LEAN_NAME = "certificate/lean.json"
STEPS = 100_000
TEST_INSTANCES = 1000
GATES = {"lake": "gate", "sokoban": "gate_sokoban", "elevator": "gate_elevator"}
"""World models behind a gate, and the part of the results for each."""
NUM_ENVS = {"lake": 32, "sokoban": 128, "elevator": 32}
"""Episodes at once; 128 were meant to make batches of ever new rooms cheaper, and did not."""


def gate_world(name):
    """What the agent plays.

    The sokoban model knows all rooms of 6x6; this learner masters those of five steps.
    """
    world = RECIPES[name]().world
    return world.replace(longest=5, max_steps=6) if name == "sokoban" else world


def gate(name="lake"):
    """The same DQN: real, behind the gate, imagined only, and real with as few real steps.

    A seed repeats everything: its own data, world model, certificate and learner.
    """
    GateExperiment(name).run()


class GateExperiment:
    """Real and gated training of one learner, seed by seed."""

    def __init__(self, name):
        self.name = name
        self.part = GATES[name]
        self.world = gate_world(name)
        record = common.read_results(f"trust_{self.part}").get("seeds", {})
        kept = common.read_rows(f"trust_{self.part}").get("seeds", {})
        self.rows = {seed: record[seed] for seed in kept}
        self.successes = kept

    def run(self):
        for seed in range(SEEDS):
            if str(seed) not in self.rows:
                self.save(seed, *self.compare(seed))
        # Is the gate needed, and could real training do with half of the steps?
        for seed in range(SEEDS):
            row, played = self.rows[str(seed)], self.successes[str(seed)]
            if "imagined_only" not in row:
                imagined = partial(imagine, self.world, certified_model=self.certified(seed))
                played["real_half"] = self.play(self.world.build, STEPS // 2, seed)
                played["imagined_only"] = self.play(imagined, STEPS, seed)
                self.save(seed, row, played)

    def certified(self, seed):
        """The world model of this seed with its certificate."""
        certificate = self.lean_certificate(seed)
        place, samples = folder(self.name, seed), SAMPLES[self.name]
        base = load_certified_model(place, samples, self.world).risk_estimator
        estimator = CachingRiskEstimator(base.model, base.data, certificate.risk)
        return CertifiedModel(estimator, certificate)

    def lean_certificate(self, seed):
        """That of the world that is played; a void one would leave the gate closed."""
        place, samples = folder(self.name, seed), SAMPLES[self.name]
        if not (place / LEAN_NAME).exists():
            config = Certify.Config(
                world=self.world, folder=place, samples=samples, seed=100 + seed, **LEAN
            )
            Certificate(Certify(config).measure()).save(place / LEAN_NAME)
        certificate = read_certificate(place, samples, self.world, name=LEAN_NAME)
        if certificate.void:
            raise SystemExit(f"{place / LEAN_NAME}: {'; '.join(certificate.void)}")
        return certificate

    def compare(self, seed):
        """One seed from its data on: figures, and the successes on the test instances."""
        model_steps = asdict(train(self.name, seed).real_steps)
        certified_model = self.certified(seed)
        certificate = certified_model.certificate
        gate = Gate(Gate.Config(audit_share=0.02), certificate)
        make_gated = partial(gated, self.world, certified_model=certified_model, gate=gate)
        played = {
            "real": self.play(self.world.build, STEPS, seed),
            "gated": self.play(make_gated, STEPS, seed),
        }
        row = {"model": seed, "certified": certificate.certified, "verdict": certificate.headline}
        row["ledger"] = gate.ledger.counts()
        row["paid"] = {
            **model_steps,
            "certificate": sum(certificate.sections["real_steps"].values()),
            "behind_the_gate": row["ledger"]["real_steps"],
        }
        row["real_steps_gated"] = sum(row["paid"].values())
        row["factor"] = STEPS / row["real_steps_gated"]
        played["real_as_few"] = self.play(self.world.build, row["real_steps_gated"], seed)
        return row, played

    def play(self, make_world, steps, seed):
        """Successes of the learner in the real world after training in `make_world`."""
        from trust_learner import Greedy, learn

        num_envs = NUM_ENVS[self.name]
        learned = learn(make_world, steps=steps, seed=seed, learning_rate=1e-3, num_envs=num_envs)
        world = self.world.build()
        first = instance_seed(seed, 0)  # each seed is tested on instances of its own
        seeds = distinct_instances(world, range(first, first + 4 * TEST_INSTANCES), Split.TEST)
        played = evaluate_policy(
            self.world.build,
            Greedy(*learned),
            seeds=seeds[:TEST_INSTANCES],
            split=Split.TEST,
            num_envs=1,
        )
        return [int(success) for success in played.successes]

    def save(self, seed, row, played):
        row |= {arm: sum(successes) / len(successes) for arm, successes in played.items()}
        self.rows[str(seed)], self.successes[str(seed)] = row, played
        print(seed, row, flush=True)
        common.write_rows(f"trust_{self.part}", {"seeds": self.successes})
        metrics = {
            "world": str(self.world),
            "learner": "benchmarks/trust_learner.py",
            "steps": STEPS,
            "evaluated_on": "distinct real test instances, greedy",
            "n": len(played["real"]),
            "seeds": self.rows,
        }
        write(self.part, metrics)


ROOMS = 30
PLANNERS = (
    ("enumerate", 1),
    ("enumerate", 2),
    ("enumerate", 4),
    ("enumerate", 6),
    ("enumerate", 8),
    ("enumerate", 10),
    ("beam", 8),
    ("best_of_n", 8),
)
"""Method and depth."""


def plan():
    """MPC on sokoban 6x6 test rooms: depth, method and cost, between random and optimal."""
    from pictures import draw_plan

    world = recipes.sokoban_model().world
    model = load_world_model(folder("sokoban") / "model", samples=1)

    def score(policy):
        played = evaluate_policy(
            world.build, policy, seeds=range(ROOMS), split=Split.TEST, num_envs=1
        )
        return {
            "success": with_interval(played.successes),
            "return": with_interval(played.returns),
        }

    metrics = {"rooms": ROOMS, "samples": 1, "rows": []}
    for policy in (Random.Config().build(), Expert.Config().build()):
        metrics[policy.name] = score(policy)
    for method, depth in PLANNERS:
        estimator = CountingRiskEstimator(model, NearestData([]), None)
        planner = Planner(Planner.Config(method=method, depth=depth, width=32), estimator)
        row = {
            "method": method,
            "depth": depth,
            **score(planner),
            "plans": planner.cost.plans,
            "questions": planner.cost.queries,
            "different_questions": len(estimator.distinct),
        }
        metrics["rows"].append(row)
        print(row, flush=True)
        write("plan", metrics)
    draw_plan()


PARTS = {
    "models": models,
    "certificates": certificates,
    "gate": gate,
    "gate_sokoban": partial(gate, "sokoban"),
    "gate_elevator": partial(gate, "elevator"),
    "plan": plan,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5, help="of each gate")
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"))
    arguments = parser.parse_args()
    RUNS, SEEDS = arguments.runs, arguments.seeds
    for part in arguments.parts:
        PARTS[part]()
