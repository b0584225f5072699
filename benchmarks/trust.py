"""Measures how far world models can be trusted and writes results/trust_*.json, part by part.

    python benchmarks/trust.py models coverage certificates gate gate_sokoban plan
Any subset can be named; the same command resumes. Models are trained into `--runs` (default:
runs/trust) and reused. On two CPU cores, OMP_NUM_THREADS=1.
"""

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

import common
import numpy as np
import torch
from trust_estimators import CachingRiskEstimator, CountingRiskEstimator

from terrella.core.types import Split
from terrella.data.store import EpisodeStore
from terrella.evals.policy_eval import evaluate_policy
from terrella.pipelines.certify.pipeline import Certify, summary
from terrella.pipelines.certify.records import Evidence
from terrella.pipelines.certify.sections import Sections
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Expert, Random
from terrella.recipes import trust as recipes
from terrella.show.progress import SilentProgress
from terrella.trust.certificate import Certificate
from terrella.trust.gate import Gate
from terrella.trust.nearness import NearestData
from terrella.trust.risk import fit_risk
from terrella.world_models.certified import CertifiedModel, load_certified_model
from terrella.world_models.imagine import imagine
from terrella.world_models.imagine_gate import gated
from terrella.world_models.language import load_world_model
from terrella.world_models.planner import Planner

common.quiet_trl()
torch.set_num_threads(1)
SEEDS = range(5)
RECIPES = {
    "counter": recipes.counter_model,
    "lake_thin": recipes.lake_thin_model,
    "lake_slip": recipes.lake_slip_model,
    "lake": recipes.lake_model,
    "sokoban": recipes.sokoban_model,
}
SAMPLES = {"lake": 4, "lake_slip": 12, "counter": 4, "sokoban": 6, "lake_thin": 4}


def write(part, metrics):
    command = common.command(part, OMP_NUM_THREADS=1)
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


RISK_METRICS = (
    "coverage",
    "set_sizes",
    "mean_wrong",
    "mean_risk",
    "ordering",
    "trusted_share",
    "trusted_wrong",
    "threshold",
)
STEPS_PER_SEED = {"lake": 600, "counter": 600, "sokoban": 400, "lake_slip": 600}
"""Calibration steps, and as many held-out ones; small worlds have fewer distinct instances."""
RESPLITS = 200


def coverage():
    """Conformal coverage at 90%: one model per world, new steps for each seed.

    `coverage` is the certificate's: calibrated on validation instances, measured on test instances.
    Small worlds have few of both, and all seeds share one random assignment of instances to splits.
    `resplit` therefore pools them and splits them again, many times.
    """
    worlds = common.read_results("trust_coverage").get("worlds", {})
    for name in STEPS_PER_SEED:
        by_seed = worlds.setdefault(name, {"seeds": {}})["seeds"]
        for seed in SEEDS:
            if str(seed) in by_seed or not (folder(name) / "manifest.json").exists():
                continue
            row = measure_coverage(name, seed)
            by_seed[str(seed)] = row
            if len(by_seed) > 1:
                for kind in ("coverage", "resplit"):
                    means = [each[kind]["mean"] for each in by_seed.values()]
                    worlds[name][kind] = with_interval(means)
            print(name, seed, row["coverage"], row["resplit"], row["set_sizes"], flush=True)
            write("coverage", {"level": 0.9, "models_per_world": 1, "worlds": worlds})


def measure_coverage(name, seed):
    config = Certify.Config(
        world=RECIPES[name]().world,
        folder=folder(name),
        samples=SAMPLES[name],
        seed=seed,
        calibration=STEPS_PER_SEED[name],
        held_out=STEPS_PER_SEED[name],
    )
    model = load_world_model(folder(name) / "model", samples=SAMPLES[name])
    data = NearestData(EpisodeStore.open(folder(name) / "data").transitions())
    sections = Sections(config, Evidence(config.world.build(), model, data))
    risk = sections.risk()
    return {
        **{key: risk[key] for key in RISK_METRICS},
        "calibration": risk["calibration"],
        "resplit": resplit(sections, seed),
    }


def resplit(sections, seed):
    """Mean coverage over random halves of all instances: calibrate on one, measure on the other."""
    rng, level = np.random.default_rng(seed), sections.config.level
    both = (sections.calibration, sections.held_out)
    signals, wrong, probs = (
        np.concatenate([getattr(steps, name) for steps in both])
        for name in ("signals", "wrong", "probs")
    )
    covered = []
    for _ in range(RESPLITS):
        order = rng.permutation(len(wrong))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        model = fit_risk(signals[first], wrong[first], probs[first], level=level)
        risks = model.risks(signals[second])
        covered.append(
            np.mean([model.inside(r, p) for r, p in zip(risks, probs[second], strict=True)])
        )
    return {
        "mean": float(np.mean(covered)),
        "sd_of_a_split": float(np.std(covered)),
        "n": len(wrong),
    }


FULL = {
    "calibration": 600,
    "held_out": 600,
    "exploited_on": 40,
    "ranked_on": 80,
    "horizon_episodes": 100,
}


def certificates():
    """A good model and an under-trained one: every section, and what the gate makes of each."""
    certified = common.read_results("trust_certificates").get("models", {})
    for name in ("lake", "lake_thin", "sokoban", "lake_slip", "counter"):
        if name in certified:
            continue
        certificate = certify(name, **FULL)
        certified[name] = {**certificate.sections, "gate": gate_counts(name)}
        write("certificates", {"models": certified})


def gate_counts(name):
    """Steps of the data's policy behind the gate: how many of them are imagined."""
    recipe = RECIPES[name]()
    certified_model = load_certified_model(folder(name), SAMPLES[name])
    gate = Gate(Gate.Config(audit_share=0.1), certified_model.certificate)
    make_world = partial(gated, recipe.world, certified_model=certified_model, gate=gate)
    evaluate_policy(make_world, recipe.policy.build(), seeds=range(100), split=Split.TEST)
    return gate.ledger.counts()


LEAN = {
    "calibration": 500,
    "held_out": 300,
    "horizon_episodes": 150,
    "policies": (),
    "exploited_on": 0,
}
"""What the gate needs of a certificate: risk and horizon, but no ranking or exploitability."""
STEPS = 100_000
GATES = {"lake": "gate", "sokoban": "gate_sokoban"}
"""World models behind a gate, and the part of the results for each."""
GATE_WORLDS = {
    "lake": recipes.lake_model().world,
    "sokoban": recipes.sokoban_model().world.replace(longest=5, max_steps=6),
}
"""What the agent plays.

The sokoban model knows all rooms of 6x6; this learner masters those of five steps.
"""
NUM_ENVS = {"lake": 32, "sokoban": 128}
"""Episodes at once; 128 were meant to make batches of ever new rooms cheaper, and did not."""


def gate(name="lake"):
    """The same DQN: real, behind the gate, imagined only, and real with as few real steps.

    One world model and one certificate serve all seeds; each seed is charged for them in full.
    """
    GateExperiment(name).run()


class GateExperiment:
    """Real and gated training of one learner, seed by seed."""

    def __init__(self, name):
        self.name = name
        self.part = GATES[name]
        self.world = GATE_WORLDS[name]
        self.rows = common.read_results(f"trust_{self.part}").get("seeds", {})
        self.model_steps = asdict(train(name).real_steps)
        self.certificate = self.lean_certificate()
        base = load_certified_model(folder(name), SAMPLES[name]).risk_estimator
        estimator = CachingRiskEstimator(base.model, base.data, self.certificate.risk)
        self.certified_model = CertifiedModel(estimator, self.certificate)

    def lean_certificate(self):
        path = folder(self.name) / "certificate/lean.json"
        if not path.exists():
            config = Certify.Config(
                world=self.world,
                folder=folder(self.name),
                samples=SAMPLES[self.name],
                seed=100,
                **LEAN,
            )
            Certificate(Certify(config).measure()).save(path)
        return Certificate.load(path)

    def run(self):
        for seed in SEEDS:
            if str(seed) not in self.rows:
                self.save(seed, self.compare(seed))
        # Is the gate needed, and could real training do with half of the steps?
        for seed in SEEDS:
            row = self.rows[str(seed)]
            if "imagined_only" not in row:
                row["real_half"] = self.score(self.world.build, STEPS // 2, seed)
                make_world = partial(imagine, self.world, certified_model=self.certified_model)
                row["imagined_only"] = self.score(make_world, STEPS, seed)
                self.save(seed, row)

    def compare(self, seed):
        certificate = self.certificate
        gate = Gate(Gate.Config(audit_share=0.02), certificate)
        make_gated = partial(gated, self.world, certified_model=self.certified_model, gate=gate)
        row = {"certified": certificate.certified, "safe_horizon": certificate.safe_horizon}
        row["real"] = self.score(self.world.build, STEPS, seed)
        row["gated"] = self.score(make_gated, STEPS, seed)
        row["ledger"] = gate.ledger.counts()
        row["paid"] = {
            **self.model_steps,
            "certificate": sum(certificate.sections["real_steps"].values()),
            "behind_the_gate": row["ledger"]["real_steps"],
        }
        row["real_steps_gated"] = sum(row["paid"].values())
        row["factor"] = STEPS / row["real_steps_gated"]
        row["real_as_few"] = self.score(self.world.build, row["real_steps_gated"], seed)
        return row

    def score(self, make_world, steps, seed):
        """Success of the learner in the real world after training in `make_world`."""
        from trust_learner import Greedy, learn

        num_envs = NUM_ENVS[self.name]
        learned = learn(make_world, steps=steps, seed=seed, learning_rate=1e-3, num_envs=num_envs)
        played = evaluate_policy(
            self.world.build, Greedy(*learned), seeds=range(1000), split=Split.TEST, num_envs=1
        )
        return float(np.mean(played.successes))

    def save(self, seed, row):
        self.rows[str(seed)] = row
        print(seed, row, flush=True)
        metrics = {
            "world": str(self.world),
            "learner": "benchmarks/trust_learner.py",
            "steps": STEPS,
            "evaluated_on": "1000 real test instances, greedy",
            "summary": gate_summary(self.rows),
            "seeds": self.rows,
        }
        write(self.part, metrics)


def gate_summary(rows):
    if len(rows) < 2:
        return None
    names = (
        "real",
        "gated",
        "real_as_few",
        "factor",
        "real_steps_gated",
        "imagined_only",
        "real_half",
    )
    complete = [name for name in names if all(name in row for row in rows.values())]
    difference = [row["gated"] - row["real"] for row in rows.values()]
    return {
        "gated_minus_real": with_interval(difference),
        **{name: with_interval([row[name] for row in rows.values()]) for name in complete},
    }


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
    "coverage": coverage,
    "certificates": certificates,
    "gate": gate,
    "gate_sokoban": partial(gate, "sokoban"),
    "plan": plan,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"))
    arguments = parser.parse_args()
    RUNS = arguments.runs
    for part in arguments.parts:
        PARTS[part]()
