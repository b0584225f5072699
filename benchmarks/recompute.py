"""Computes published numbers again from their per-instance rows.

A result file NAME.json has its rows in results/rows/NAME.json.gz. Each function here takes the
record and the rows, and returns the part of the record that follows from the rows.
    differences, without_rows = recompute_all()
"""

import math
from dataclasses import asdict

import common
from table_rows import SECTIONS

from terrella.core.claims import Claim, decide, pass_grid, threshold
from terrella.core.result_rows import read_rows
from terrella.evals.arm_tables import InstanceRows, arm_passes, decide_claims

ROWS = common.RESULTS / "rows"


# --- from rows ------------------------------------------------------------------------------------


def reproduction(record, rows):
    """Arms and claims of `terrella reproduce`."""
    arms = {
        arm: {seed: InstanceRows(**job) for seed, job in seeds.items()}
        for arm, seeds in rows["arms"].items()
    }
    claims = [
        Claim(*(claim[key] for key in ("better", "worse", "k", "not_below")))
        for claim in record["claims"]
    ]
    return {
        "arms": {arm: arm_passes(seeds) for arm, seeds in arms.items()},
        "claims": decide_claims(arms, claims, margin=record["margin"]),
    }


def text_games(record, rows):
    """Shares of right answers by arm, seed and set of records."""
    arms = {}
    for arm, seeds in rows["arms"].items():
        arms[arm] = {"seeds": len(seeds)}
        for name, chosen in rows["sets"].items():
            values = [share(marks, chosen) for marks in seeds]
            arms[arm][name] = {
                "mean": round(sum(values) / len(values), 4),
                "per_seed": [round(value, 4) for value in values],
            }
    return {"arms": arms}


def share(marks, chosen):
    """The share of right answers (`1`) among the chosen records (`1`)."""
    picked = [mark == "1" for mark, wanted in zip(marks, chosen, strict=True) if wanted == "1"]
    return sum(picked) / len(picked)


def coverage(record, rows):
    """Coverage from validation to test: models are the unit, empty sets hold nothing."""
    worlds = {name: {"models": {}} for name in rows["worlds"]}
    for name, models in rows["worlds"].items():
        for model, steps in models.items():
            worlds[name]["models"][model] = {
                "coverage": instance_mean(steps["instances"], steps["covered"]),
                "empty_sets": steps["sizes"].count("0") / len(steps["sizes"]),
                "whole_sets": steps["sizes"].count("all") / len(steps["sizes"]),
                "n": len(set(steps["instances"])),
            }
    steps = {
        name: min(len(steps["sizes"]) for steps in models.values())
        for name, models in rows["worlds"].items()
    }
    return {"worlds": coverage_summary(worlds, record["level"], steps)}


def coverage_summary(worlds, level, steps):
    """The worlds with their mean over models, and whether coverage is above the promise.

    `steps` are the fewest steps on which a model of the world was measured.
    """
    values = [
        [model["coverage"] for model in world["models"].values()] for world in worlds.values()
    ]
    decided = decide(
        [[value - level for value in each] for each in values],
        thresholds=[0.0] * len(values),
        grids=[1 / steps[name] for name in worlds],
    )
    summary = {}
    for (name, world), each, claim in zip(worlds.items(), values, decided, strict=True):
        summary[name] = {
            "models": world["models"],
            "coverage": common.mean_row(each),
            **{
                kind: mean([model[kind] for model in world["models"].values()])
                for kind in ("empty_sets", "whole_sets")
            },
            "claim": asdict(claim),
        }
    return summary


def instance_mean(instances, values):
    """The mean over instances of the means over their steps."""
    by_name = {}
    for name, value in zip(instances, values, strict=True):
        by_name.setdefault(name, []).append(value)
    means = [sum(each) / len(each) for each in by_name.values()]
    return sum(means) / len(means)


def teaching(record, rows):
    """Ten fresh seeds of the recipes that teach: the mean of each, and whether the bar held."""
    recipes = {}
    for name, seeds in rows["recipes"].items():
        found = {}
        for seed, parts in seeds.items():
            means = {part: mean(parts[part].values()) for part in ("before", "after")}
            curve = parts["curve"]
            tenth = max(1, len(curve) // 10)
            last = mean(curve[-tenth:])
            held = means["after"] >= record["least_after"] and last > parts["baseline"]
            found[seed] = {**means, "n": len(parts["after"]), "last_tenth": last, "held": held}
        recipes[name] = {
            "seeds": found,
            "after": common.mean_row([row["after"] for row in found.values()]),
        }
    return {"recipes": recipes}


def textworld(record, rows):
    """Right answers of the model and of two baselines about questions of unseen games."""
    parts = {}
    for part, marks in rows.items():
        groups = {}
        for group, counts in group_counts(marks).items():
            groups[group] = {name: {"right": r, "n": n} for name, (r, n) in counts.items()}
        parts[part] = {"accuracy": groups}
    return parts


def group_counts(marks):
    """(right, n) by group and predictor; a question is in several groups."""
    counts = {}
    for number, groups in enumerate(marks["groups"]):
        for group in groups:
            row = counts.setdefault(group, dict.fromkeys(marks["right"], (0, 0)))
            for name, right in marks["right"].items():
                row[name] = (row[name][0] + (right[number] == "1"), row[name][1] + 1)
    return dict(sorted(counts.items()))


def video(record, rows):
    """Means over clips before and after RLVR, and the differences clip by clip."""
    seeds = []
    for row, clips in zip(record["seeds"], rows["seeds"], strict=True):
        figures = {}
        for name in row["figures"]:
            before, after = clips["before"][name], clips["after"][name]
            difference = [new - old for new, old in zip(after, before, strict=True)]
            values = {"before": before, "after": after, "difference": difference}
            figures[name] = {when: common.mean_row(each) for when, each in values.items()}
        seeds.append({"figures": figures})
    return {"seeds": seeds}


def gate(record, rows):
    """Success of the arms of each seed, from the instances that were played."""
    return {
        "seeds": {
            seed: {arm: mean(successes) for arm, successes in arms.items()}
            for seed, arms in rows["seeds"].items()
        }
    }


def pages(record, rows):
    """Scores of page models before and after each part of their training."""
    from terrella.pipelines.web.page_scores import PageRow, score_rows

    return {
        part: {
            stage: asdict(score_rows([PageRow(**row) for row in answers]))
            for stage, answers in stages.items()
        }
        for part, stages in rows.items()
    }


def judged(record, rows):
    """An outcome model before and after it was fitted: accuracy and calibration, seed by seed.

    The calibration is fitted to a set of its own.
    """
    from terrella.pipelines.webrl.outcome_model import (
        Calibration,
        OutcomeModel,
        prediction_metrics,
    )

    seeds = {}
    for seed, parts in rows["seeds"].items():
        won = {name: [truth for _, truth in each] for name, each in parts["sets"].items()}
        found = {"sets": {name: {"n": len(each), "won": sum(each)} for name, each in won.items()}}
        for model in ("untrained", "fitted"):
            calibration = Calibration.fit(parts[model]["calibrate"], won["calibrate"])
            found[model] = asdict(calibration)
            for name in ("test", "held_out_families"):
                probs = calibration.probs(parts[model][name])
                metrics = prediction_metrics(probs, won[name], OutcomeModel.Config())
                common_outcome = majority(parts["sets"]["train"], parts["sets"][name])
                found[model][name] = {**asdict(metrics), "majority_of_family": common_outcome}
        seeds[seed] = found
    return {"seeds": seeds}


def majority(known, asked):
    """Accuracy of what was more common in the family, or among all for a family never seen."""
    by_family = {}
    for family, truth in known:
        by_family.setdefault(family, []).append(truth)
    everything = [truth for _, truth in known]

    def guess(family):
        truths = by_family.get(family, everything)
        return 2 * sum(truths) >= len(truths)

    return mean(guess(family) == (truth > 0) for family, truth in asked)


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


REPRODUCTIONS = (
    "spa_frozen_lake",
    "spa_sokoban",
    "spa_sudoku",
    "spa_smollm2_lake",
    "webrl_sokoban",
    "webrl_miniwob",
    "webrl_smollm2_miniwob",
    "webrl_smollm2_arena",
)
FROM_ROWS = {
    **dict.fromkeys(REPRODUCTIONS, reproduction),
    "bytesized32_tiny": text_games,
    **dict.fromkeys(("trust_coverage", "trust_coverage_small"), coverage),
    "teaching": teaching,
    "textworld_unseen_games": textworld,
    "video_model": video,
    "web_pages": pages,
    "webrl_judge": judged,
    **dict.fromkeys(("trust_gate", "trust_gate_sokoban", "trust_gate_elevator"), gate),
}
"""Results that are computed from rows."""
NO_INSTANCES = (
    "foundation",
    "engine_verl",
    "engine_matrix",
    "engine_vllm",
    "engine_fsdp2",
    "engine_async",
    "engine_memory",
    "engine_tinker",
    "video_listens",
    "web_arena",
    "web_miniwob",
    "serve_load",
    "viewer",
)
"""Counts, timings and checks of one run: there is no claim over instances to compute again."""


# --- from the values of each seed -----------------------------------------------------------------


def claims_of_seeds(record, margin):
    """The claims of a table from its differences seed by seed: what rows would give first."""
    claims = record["claims"]
    decided = decide(
        [claim["per_seed"] for claim in claims],
        thresholds=[threshold(not_below=c["not_below"], margin=margin) for c in claims],
        grids=[claim_grid(record, claim) for claim in claims],
    )
    return {"claims": [asdict(claim) for claim in decided]}


def claim_grid(record, claim):
    """The step between two scores; an arm's largest k is as many samples as it had."""
    samples = [
        max(int(key.removeprefix("pass@")) for key in record["arms"][arm] if "pass@" in key)
        for arm in (claim["better"], claim["worse"])
        if arm in record["arms"]
    ]
    if not claim["n"]:
        return 0.0
    return pass_grid(instances=claim["n"], samples=min(samples), k=claim["k"])


# --- all ------------------------------------------------------------------------------------------


def recompute_all():
    """What differs, and the shown results that have no rows."""
    differences, without_rows = [], []
    shown = [name for names in SECTIONS.values() for name in names]
    for name in dict.fromkeys((*shown, *FROM_ROWS)):
        record = common.read_results(name)
        if not record or name in NO_INSTANCES:
            continue
        path = ROWS / f"{name}.json.gz"
        if not path.exists():
            without_rows.append(name)
            if "claims" in record:
                differences += compare(record, claims_of_seeds(record, record["margin"]), name)
        elif name not in FROM_ROWS:
            differences.append(f"{name}: has rows, but nothing computes it from them")
        else:
            differences += compare(record, FROM_ROWS[name](record, read_rows(path)), name)
    return differences, without_rows


def compare(record, fresh, path):
    """Where the record differs from what was computed; it may hold more."""
    if isinstance(fresh, dict) and isinstance(record, dict):
        found = []
        for key, value in fresh.items():
            if str(key) not in record:
                found.append(f"{path}.{key}: is missing")
            else:
                found += compare(record[str(key)], value, f"{path}.{key}")
        return found
    if isinstance(fresh, list | tuple) and isinstance(record, list):
        if len(fresh) != len(record):
            return [f"{path}: {len(record)} values there, {len(fresh)} computed"]
        pairs = enumerate(zip(record, fresh, strict=True))
        return [each for n, pair in pairs for each in compare(*pair, f"{path}[{n}]")]
    both = isinstance(record, int | float) and isinstance(fresh, int | float)
    same = math.isclose(record, fresh, rel_tol=1e-9, abs_tol=1e-9) if both else record == fresh
    return [] if same else [f"{path}: {record} there, {fresh} computed"]
