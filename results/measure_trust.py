"""Measures how far world models may be believed and writes results/trust_*.json, part by part.

    python results/measure_trust.py models coverage certificates gate gate_sokoban plan        (any subset; resumes)
Models are trained into `--runs` (default: runs/trust) and reused. On two CPU cores, OMP_NUM_THREADS=1.
"""

import json
import os
import platform
import sys
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "results")]

# isort: off
import tests.support.quiet_trl  # noqa: E402, F401  before anything else imports TRL

# isort: on
import numpy as np  # noqa: E402
import torch  # noqa: E402

from terrella.core.stats import mean_interval  # noqa: E402
from terrella.core.types import Split  # noqa: E402
from terrella.data.store import EpisodeStore  # noqa: E402
from terrella.policies.basic import Expert, Random  # noqa: E402
from terrella.recipes import trust as recipes  # noqa: E402
from terrella.show.certificate import write_report  # noqa: E402
from terrella.show.progress import SilentProgress  # noqa: E402
from terrella.stages.certify import Certify, summary  # noqa: E402
from terrella.stages.certify_sections import Evidence, Sections  # noqa: E402
from terrella.stages.train_world_model import TrainWorldModel  # noqa: E402
from terrella.trust.certificate import Certificate  # noqa: E402
from terrella.trust.gate import Gate  # noqa: E402
from terrella.trust.nearness import NearestData  # noqa: E402
from terrella.trust.risk import Assessor, fit_risk  # noqa: E402
from terrella.use.imagine import Imagination, imagine, load_imagination  # noqa: E402
from terrella.use.imagine_gate import gated  # noqa: E402
from terrella.use.plan import Planner  # noqa: E402
from terrella.use.policy_eval import evaluate_policy  # noqa: E402
from terrella.use.world_models import load_world_model  # noqa: E402

torch.set_num_threads(1)
SEEDS = range(5)
RECIPES = {"counter": recipes.counter_model, "lake_thin": recipes.lake_thin_model, "lake_slip": recipes.lake_slip_model,
           "lake": recipes.lake_model, "sokoban": recipes.sokoban_model}  # fmt: skip
SAMPLES = {"lake": 4, "lake_slip": 12, "counter": 4, "sokoban": 6, "lake_thin": 4}
COMMAND = "OMP_NUM_THREADS=1 python results/measure_trust.py "


def write(part, found):
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    path = ROOT / f"results/trust_{part}.json"
    path.write_text(json.dumps({"command": COMMAND + part, "machine": machine, **found}, indent=1) + "\n")
    print(part, "written", flush=True)


def folder(name, seed=0):
    return RUNS / f"{name}-{seed}"


def train(name, seed=0):
    began = time.process_time()
    config = RECIPES[name]().replace(out=folder(name, seed), seed=seed)
    manifest = TrainWorldModel(config).run(SilentProgress())
    print("trained", name, seed, f"{time.process_time() - began:.0f} CPU s", flush=True)
    return manifest


def certify(name, seed=0, **changes):
    began = time.process_time()
    config = Certify.Config(world=RECIPES[name]().world, folder=folder(name, seed), samples=SAMPLES[name], **changes)
    certificate = Certify(config).run(SilentProgress())
    print("certified", name, seed, f"{time.process_time() - began:.0f} CPU s", summary(certificate), flush=True)
    return certificate


def with_interval(values):
    low, high = mean_interval(values)
    return {"mean": float(np.mean(values)), "low": low, "high": high, "seeds": list(map(float, values))}


# --- parts --------------------------------------------------------------------------------------------------------


def models():
    """One of each."""
    for name in RECIPES:
        train(name)


KEPT = ("coverage", "set_sizes", "mean_wrong", "mean_risk", "ordering", "trusted_share", "trusted_wrong", "threshold")
DRAWN = {"lake": 600, "counter": 600, "sokoban": 400, "lake_slip": 600}
"""Calibration steps wanted, and as many held-out ones, for each seed; small worlds have fewer different instances."""
RESPLITS = 200


def coverage():
    """Conformal coverage at 90%: one model per world, new steps for each seed.

    `coverage` is the certificate's: calibrated on validation instances, read on test instances. Small worlds have few
    of both, and which fell where is one throw for all seeds; so `resplit` pools them and throws again, many times.
    """
    path = ROOT / "results/trust_coverage.json"
    found = json.loads(path.read_text())["worlds"] if path.exists() else {}
    for name, count in DRAWN.items():
        done = found.setdefault(name, {"seeds": {}})["seeds"]
        for seed in SEEDS:
            if str(seed) in done or not (folder(name) / "manifest.json").exists():
                continue
            model = load_world_model(folder(name) / "model", samples=SAMPLES[name])
            data = NearestData(EpisodeStore.open(folder(name) / "data").transitions())
            config = Certify.Config(world=RECIPES[name]().world, folder=folder(name), samples=SAMPLES[name], seed=seed,
                                    calibration=count, held_out=count)  # fmt: skip
            sections = Sections(config, Evidence(config.world.build(), model, data))
            risk = sections.risk()
            done[str(seed)] = {**{key: risk[key] for key in KEPT}, "calibration": risk["calibration"],
                               "resplit": resplit(sections, seed)}  # fmt: skip
            if len(done) > 1:
                rows = list(done.values())
                found[name]["coverage"] = with_interval([row["coverage"]["mean"] for row in rows])
                found[name]["resplit"] = with_interval([row["resplit"]["mean"] for row in rows])
            print(name, seed, risk["coverage"], done[str(seed)]["resplit"], risk["set_sizes"], flush=True)
            write("coverage", {"level": 0.9, "models_per_world": 1, "worlds": found})


def resplit(sections, seed):
    """Mean coverage over random halves of all held-out instances: one to calibrate, one to read."""
    rng, level = np.random.default_rng(seed), sections.config.level
    both = (sections.calibration, sections.held_out)
    signals, wrong, held = (np.concatenate([getattr(asked, n) for asked in both]) for n in ("signals", "wrong", "held"))
    covered = []
    for _ in range(RESPLITS):
        order = rng.permutation(len(wrong))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        model = fit_risk(signals[first], wrong[first], held[first], level=level)
        risks = model.risks(signals[second])
        covered.append(np.mean([model.inside(r, h) for r, h in zip(risks, held[second], strict=True)]))
    return {"mean": float(np.mean(covered)), "sd_of_a_split": float(np.std(covered)), "n": len(wrong)}


FULL = {"calibration": 600, "held_out": 600, "exploited_on": 40, "ranked_on": 80, "horizon_episodes": 100}


def certificates():
    """A good model and an under-trained one: every section, and what the gate makes of each."""
    path = ROOT / "results/trust_certificates.json"
    found = json.loads(path.read_text())["models"] if path.exists() else {}
    for name in ("lake", "lake_thin", "sokoban", "lake_slip", "counter"):
        if name in found:
            continue
        certificate = certify(name, **FULL)
        write_report(certificate, folder(name) / "certificate")
        found[name] = {**certificate.sections, "gate": gate_trusts(name)}
        write("certificates", {"models": found})


def gate_trusts(name):
    """Steps of the training policy behind the gate: how many it imagines."""
    recipe, imagination = RECIPES[name](), load_imagination(folder(name), SAMPLES[name])
    door = Gate(Gate.Config(audit_share=0.1), imagination.certificate)
    make = partial(gated, recipe.world, imagination=imagination, gate=door)
    evaluate_policy(make, recipe.policy.build(), seeds=range(100), split=Split.TEST)
    return door.ledger.counts()


LEAN = {"calibration": 500, "held_out": 300, "horizon_episodes": 150, "policies": (), "exploited_on": 0}
"""What the gate needs of a certificate: risk and horizon. Ranking and exploitability are measured elsewhere."""
STEPS = 100_000
GATES = {"lake": "gate", "sokoban": "gate_sokoban"}
"""World models behind a gate, and the part of the results that tells of them."""
GATE_WORLDS = {"lake": recipes.lake_model().world,
               "sokoban": recipes.sokoban_model().world.replace(longest=5, max_steps=6)}  # fmt: skip
"""What the agent plays. The sokoban model knows all rooms of 6x6; this learner masters those of five steps."""
SIDE_BY_SIDE = {"lake": 32, "sokoban": 128}
"""Episodes at once; 128 were meant to make batches of ever new rooms cheaper, and did not."""


class Remembering(Assessor):
    """Keeps risks too: the interleaved format shows a model no history, so a pair is all there is to a question."""

    def assess(self, questions):
        new = [q for q in questions if (q.situation.observation, q.action) not in self.known]
        for question, told in zip(new, super().assess(new), strict=True):
            self.known[question.situation.observation, question.action] = told
        return [self.known[q.situation.observation, q.action] for q in questions]

    def believe(self, questions):
        return [belief for belief, _ in self.assess(questions)]


def gate(name="lake"):
    """The same DQN in the real world, behind the gate, in imagination alone, and real with as few real steps.

    One world model and one certificate serve all seeds of the agent; each seed is charged for them in full.
    """
    from trust_learner import Greedy, learn

    part = GATES[name]
    path = ROOT / f"results/trust_{part}.json"
    rows = json.loads(path.read_text())["seeds"] if path.exists() else {}
    world, kept = GATE_WORLDS[name], folder(name) / "certificate/lean.json"
    paid = train(name)["real_steps"]
    if not kept.exists():
        config = Certify.Config(world=world, folder=folder(name), samples=SAMPLES[name], seed=100, **LEAN)
        Certificate(Certify(config).measure()).save(kept)
    certificate = Certificate.load(kept)
    base = load_imagination(folder(name), SAMPLES[name]).assessor
    assessor = Remembering(base.model, base.data, certificate.risk)
    assessor.known = {}
    imagination = Imagination(assessor, certificate)

    def score(make, steps, seed):
        agent = Greedy(*learn(make, steps=steps, seed=seed, learning_rate=1e-3, side_by_side=SIDE_BY_SIDE[name]))
        played = evaluate_policy(world.build, agent, seeds=range(1000), split=Split.TEST, side_by_side=1)
        return float(np.mean(played.successes))

    def keep(seed, row):
        rows[str(seed)] = row
        print(seed, row, flush=True)
        write(part, {"world": str(world), "learner": "results/trust_learner.py", "steps": STEPS,
                     "evaluated_on": "1000 real test instances, greedy", "summary": gate_summary(rows),
                     "seeds": rows})  # fmt: skip

    for seed in SEEDS:
        if str(seed) in rows:
            continue
        door = Gate(Gate.Config(audit_share=0.02), certificate)
        row = {"certified": certificate.certified, "safe_horizon": certificate.safe_horizon}
        row["real"] = score(world.build, STEPS, seed)
        row["gated"] = score(partial(gated, world, imagination=imagination, gate=door), STEPS, seed)
        row["ledger"] = door.ledger.counts()
        row["paid"] = {**paid, "certificate": sum(certificate.sections["real_steps"].values()),
                       "behind_the_gate": row["ledger"]["real_steps"]}  # fmt: skip
        row["real_steps_gated"] = sum(row["paid"].values())
        row["factor"] = STEPS / row["real_steps_gated"]
        row["real_as_few"] = score(world.build, row["real_steps_gated"], seed)
        keep(seed, row)
    for seed in SEEDS:  # what else one would ask: is the gate needed, and could the real arm do with half?
        row = rows[str(seed)]
        if "imagined_only" not in row:
            row["real_half"] = score(world.build, STEPS // 2, seed)
            row["imagined_only"] = score(partial(imagine, world, imagination=imagination), STEPS, seed)
            keep(seed, row)


def gate_summary(rows):
    if len(rows) < 2:
        return None
    pick = lambda name: [row[name] for row in rows.values()]  # noqa: E731
    difference = [row["gated"] - row["real"] for row in rows.values()]
    names = ("real", "gated", "real_as_few", "factor", "real_steps_gated", "imagined_only", "real_half")
    whole = [name for name in names if all(name in row for row in rows.values())]
    return {"gated_minus_real": with_interval(difference), **{name: with_interval(pick(name)) for name in whole}}


class Counting(Assessor):
    """Counts different questions: what a planner needs of the model, whatever was kept from before."""

    def assess(self, questions):
        self.different |= {(q.situation.observation, q.action) for q in questions}
        return super().assess(questions)


def plan():
    """MPC on sokoban 6x6 test rooms: depth, method and cost, between random and optimal."""
    rooms, world = 30, recipes.sokoban_model().world
    model = load_world_model(folder("sokoban") / "model", samples=1)
    seeds, split = range(rooms), Split.TEST
    found = {"rooms": rooms, "samples": 1, "rows": []}
    for policy in (Random.Config().build(), Expert.Config().build()):
        played = evaluate_policy(world.build, policy, seeds=seeds, split=split, side_by_side=1)
        found[policy.name] = {"success": with_interval(played.successes), "return": with_interval(played.returns)}
    for method, depth in (("enumerate", 1), ("enumerate", 2), ("enumerate", 4), ("enumerate", 6), ("enumerate", 8),
                          ("enumerate", 10), ("beam", 8), ("best_of_n", 8)):  # fmt: skip
        assessor = Counting(model, NearestData([]), None)
        assessor.different = set()
        planner = Planner(Planner.Config(method=method, depth=depth, width=32), assessor)
        played = evaluate_policy(world.build, planner, seeds=seeds, split=split, side_by_side=1)
        row = {"method": method, "depth": depth, "success": with_interval(played.successes),
               "return": with_interval(played.returns), "plans": planner.spent.plans,
               "questions": planner.spent.questions, "different_questions": len(assessor.different)}  # fmt: skip
        found["rows"].append(row)
        print(row, flush=True)
        write("plan", found)
    draw_plan(found)


def draw_plan(found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = [row for row in found["rows"] if row["method"] == "enumerate"]
    depths, means = [r["depth"] for r in rows], [r["success"]["mean"] for r in rows]
    left.plot(depths, means, color="#0072B2", marker="o", label="MPC, enumeration")
    left.fill_between(depths, [r["success"]["low"] for r in rows], [r["success"]["high"] for r in rows], alpha=0.15)
    left.axhline(found["random"]["success"]["mean"], color="#777777", linestyle=":", label="random")
    left.axhline(found["expert"]["success"]["mean"], color="#009E73", linestyle="--", label="optimal")
    marks = {"beam": ("^", "#D55E00"), "best_of_n": ("s", "#CC79A7")}
    for row in found["rows"]:
        if row["method"] in marks:
            mark, colour = marks[row["method"]]
            left.plot(row["depth"], row["success"]["mean"], mark, color=colour, label=row["method"])
    left.set(xlabel="depth", ylabel="success", ylim=(0, 1.05), title=f"sokoban 6x6, {found['rooms']} test rooms")
    left.legend(fontsize=8)
    right.plot(depths, [r["different_questions"] / found["rooms"] for r in rows], color="#0072B2", marker="o")
    right.set(xlabel="depth", ylabel="different questions per room", title="cost", yscale="log")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "results/trust_plan.png", dpi=110)


if __name__ == "__main__":
    words = sys.argv[1:]
    RUNS = Path("runs/trust")
    if words and words[0] == "--runs":
        RUNS, words = Path(words[1]), words[2:]
    for word in words:
        {
            "models": models,
            "coverage": coverage,
            "certificates": certificates,
            "gate": gate,
            "gate_sokoban": partial(gate, "sokoban"),
            "plan": plan,
        }[word]()
