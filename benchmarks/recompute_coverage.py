"""Coverage of certificates from the rows of each model: what `recompute.py` is for other results.

A certificate promises its coverage for each policy. So the coverage of a model is that of the
policy under which it is lowest.
    worlds = coverage({"level": 0.9}, rows)["worlds"]
"""

import math
from collections import Counter
from dataclasses import asdict

import common

from terrella.core.claims import decide

SEVERAL = "several alike"
"""In place of the worst policy where others have the same coverage."""


def coverage(record, rows):
    """Coverage from validation to test: models are the unit, empty sets hold nothing."""
    figures = {
        name: {model: model_figures(steps) for model, steps in models.items()}
        for name, models in rows["worlds"].items()
    }
    decided = decide(
        [
            [each["coverage"] - record["level"] for each in world.values()]
            for world in figures.values()
        ],
        thresholds=[0.0] * len(figures),
        grids=[1 / fewest_steps(models) for models in rows["worlds"].values()],
    )
    pairs = zip(figures.items(), decided, strict=True)
    return {"worlds": {name: world_figures(world, claim) for (name, world), claim in pairs}}


def world_figures(models, claim):
    """A world's mean over its models, and whether their coverage is above the promise."""
    return {
        "models": models,
        "coverage": common.mean_row([model["coverage"] for model in models.values()]),
        **{
            kind: mean([model[kind] for model in models.values()])
            for kind in ("empty_sets", "whole_sets")
        },
        "claim": asdict(claim),
    }


def model_figures(steps):
    """What follows from the steps of one model, under the worst policy and beside it."""
    by_policy = coverage_by_policy(steps)
    lowest = min(by_policy.values())
    worst = [name for name, value in by_policy.items() if value == lowest]
    sizes = steps["sizes"]
    return {
        "coverage": lowest,
        "worst_policy": worst[0] if len(worst) == 1 else SEVERAL,
        "coverage_by_policy": by_policy,
        "empty_sets": sizes.count("0") / len(sizes),
        "whole_sets": sizes.count("all") / len(sizes),
        "n": len(set(steps["instances"])),
        "mean_wrong": mean(steps["wrong"]),
        **trusted(steps),
        "has_lengths": "lengths" in steps,
        **{key: steps[key] for key in ("commit", "calibration", "quantile")},
        **{key: steps[key] for key in ("fit_share", "shuffled") if key in steps},
    }


def coverage_by_policy(steps):
    """For each policy the mean over instances."""
    found = {}
    for number, policy in enumerate(steps["policy_names"]):
        chosen = [index for index, whose in enumerate(steps["policies"]) if whose == number]
        instances, covered = (
            [steps[key][index] for index in chosen] for key in ("instances", "covered")
        )
        found[policy] = instance_mean(instances, covered)
    return found


def trusted(steps):
    """The steps that may be imagined, each step of an episode counted alike."""
    threshold = -1.0 if steps["threshold"] is None else steps["threshold"]
    # Rows that were measured before lengths were kept count every episode alike.
    lengths = steps.get("lengths", [1] * len(steps["risks"]))
    triples = zip(steps["risks"], steps["wrong"], lengths, strict=True)
    chosen = [(wrong, length) for risk, wrong, length in triples if risk <= threshold]
    count = sum(length for _, length in chosen)
    wrong = sum(wrong * length for wrong, length in chosen) / count if chosen else None
    return {
        "threshold": steps["threshold"],
        "trusted_share": count / sum(lengths),
        "trusted_wrong": wrong,
    }


def fewest_steps(models):
    """Of one policy, on which a model of the world was measured."""
    return min(min(Counter(steps["policies"]).values()) for steps in models.values())


def instance_mean(instances, values):
    """The mean over instances of the means over their steps."""
    by_name = {}
    for name, value in zip(instances, values, strict=True):
        by_name.setdefault(name, []).append(value)
    return mean([mean(each) for each in by_name.values()])


def mean(values):
    return math.fsum(values) / len(values)
