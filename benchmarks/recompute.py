"""Computes published numbers again from their per-instance rows.

A result file NAME.json has its rows in results/rows/NAME.json.gz. Each function here takes the
record and the rows, and returns the part of the record that follows from the rows. Which function
reads which file, and what is left without rows: recompute_all.py. Coverage: recompute_coverage.py.
    fresh = teaching(record, rows)
"""

import math
from dataclasses import asdict

import common
import numpy as np
from families import decide_family, decide_table, unseen_claims

from terrella.core.claims import Claim
from terrella.core.metric import Metric
from terrella.evals.arm_tables import InstanceRows, arm_passes, decide_claims
from terrella.evals.pass_at_k import pass_metrics
from terrella.trust.ranking import compare_rankings

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
        if "on" not in claim
    ]
    unseen = unseen_shares(rows.get("unseen", {}))
    passes = {
        arm: {"seeds": sorted(map(int, seeds)), **arm_passes(seeds)} for arm, seeds in arms.items()
    }
    looks = record.get("looks", 1)
    decided = decide_claims(arms, claims, margin=record["margin"], looks=looks)
    table = {**record, **unseen, "arms": passes, "claims": decided}
    table["claims"] += unseen_claims(table)
    return {"arms": passes, **unseen, "claims": decide_table(table)}


def unseen_shares(arms):
    """Shares of successes on families that were neither shown nor practised, by arm and seed."""
    if not arms:
        return {}
    shares = {
        arm: [float(np.nanmean(InstanceRows(**job).passes(1))) for job in seeds.values()]
        for arm, seeds in arms.items()
    }
    attempts = min(len(job["successes"]) for seeds in arms.values() for job in seeds.values())
    return {"unseen_families": shares, "unseen_attempts": attempts}


def text_games(record, rows):
    """Shares of right answers by arm, seed and set of records."""
    arms = {"n": {name: chosen.count("1") for name, chosen in rows["sets"].items()}}
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
            found[seed] = {
                **means,
                "n": len(parts["after"]),
                "last_tenth": last,
                "held": held,
                "baseline": parts["baseline"],
                "seconds": parts["seconds"],
                # Earlier seeds were measured before each kept its commit.
                **{key: parts[key] for key in ("commit",) if key in parts},
            }
        recipes[name] = {
            "seeds": found,
            "after": common.mean_row([row["after"] for row in found.values()]),
            "slower_than_five_minutes": slow_seeds(found),
        }
    return {"recipes": recipes}


FIVE_MINUTES = 300
"""What a recipe that teaches may take on two quiet cores; shown, but no part of the bar."""


def slow_seeds(seeds):
    """Seeds that took longer; None where none was timed. `seconds` is None beside other jobs."""
    times = {seed: row["seconds"] for seed, row in seeds.items() if row["seconds"] is not None}
    return [seed for seed, seconds in times.items() if seconds > FIVE_MINUTES] if times else None


def textworld(record, rows):
    """Right answers of the model and of two baselines about questions of unseen games."""
    parts = {}
    for part, marks in rows.items():
        groups = {}
        for group, counts in group_counts(marks).items():
            groups[group] = {
                name: {"right": right, "n": n, "share": round(right / n, 4)}
                for name, (right, n) in counts.items()
            }
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


def policy_rankings(record, rows):
    """Policies in a video model and in its world, from the success of each at each start."""
    parts = {}
    for part, policies in rows.items():
        names = [each["policy"] for each in record[part]["policies"]]
        wins = [[policies[name][where] for name in names] for where in ("real", "imagined")]
        compared = compare_rankings(names, *wins, seed=int(part.rsplit(" ", 1)[1]))
        for each in compared["policies"]:
            del each["real_by_instance"], each["imagined_by_instance"]
        parts[part] = compared
    return parts


CHOICES = (1, 2, 4, 8, 16)
"""Numbers of replies from which one is chosen."""


def choices(record, rows):
    """How often the reply wins that is chosen by its prediction, and any of the replies."""
    return {
        part: choices_of(replies["won"], replies["predicted"]) for part, replies in rows.items()
    }


def choices_of(won, predicted):
    """Of one model; both lists have a row per instance with a 0 or 1 for each reply."""
    pairs = [list(zip(*each, strict=True)) for each in zip(won, predicted, strict=True)]
    claimed = [win for replies in pairs for win, claims in replies if claims]
    return {
        "instances": len(won),
        "predicted_wins": len(claimed),
        "predicted_wins_that_won": mean(claimed) if claimed else None,
        **{
            str(count): {
                "chosen": common.mean_row([chosen(replies[:count]) for replies in pairs]),
                "any": common.mean_row([max(wins[:count]) for wins in won]),
            }
            for count in CHOICES
        },
    }


def chosen(replies):
    """Whether the first reply that predicts to win has won; the first one if none does."""
    return next((won for won, predicted in replies if predicted), replies[0][0])


def web_parts(record, rows):
    """A web agent by its parts: success at each depth of looking ahead, and what it gains."""
    return {
        part: {"arms": arm_depths(arms), "claims": depth_claims(arms)}
        for part, arms in rows.items()
    }


def arm_depths(arms):
    return {
        arm: {
            f"depth {depth}": {**common.mean_row(values), "per_seed": values}
            for depth in depths_of(seeds)
            for values in [[mean(known(rows[depth])) for rows in seeds.values()]]
        }
        for arm, seeds in arms.items()
    }


def depth_claims(arms):
    """Looking ahead wins more than not looking, in each arm; decided together."""
    pairs = [(arm, depth) for arm, seeds in arms.items() for depth in depths_of(seeds)[1:]]
    if not pairs:
        return []
    first = depths_of(arms[pairs[0][0]])[0]
    gains = [
        [paired_gain(rows[depth], rows[first]) for rows in arms[arm].values()]
        for arm, depth in pairs
    ]
    instances = [min(len(rows[depth]) for rows in arms[arm].values()) for arm, depth in pairs]
    decided = decide_family(gains, grids=[1 / n for n in instances])
    return [
        {"arm": arm, "better": f"depth {depth}", "worse": f"depth {first}", "n": n, **claim}
        for (arm, depth), n, claim in zip(pairs, instances, decided, strict=True)
    ]


def depths_of(seeds):
    return sorted(next(iter(seeds.values())), key=int)


def known(values):
    """Without masked episodes."""
    return [value for value in values if value is not None]


def paired_gain(values, base):
    pairs = zip(values, base, strict=True)
    return mean([one - other for one, other in pairs if None not in (one, other)])


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


# --- from what the record itself holds of each instance -------------------------------------------


def evaluated_agent(record):
    """pass@k of an agent, and its intervals, from the successes of each instance."""
    scores = record["scores"]
    passes = pass_metrics(scores["successes"], scores["judged"], scores["samples"])
    return {"scores": {"passes": {k: asdict(metric) for k, metric in passes.items()}}}


def validated(record):
    """The figures before and after RLVR, from the value of each validation instance."""
    return {
        when: {"metric": asdict(Metric.of(list(record[when]["instances"].values())))}
        for when in ("before", "after")
    }


def planned(record):
    """Success of each arm, and its difference to the clone, from the starts that it won."""
    return {
        part: {
            "arms": {
                name: common.won_more(arm["won"], than=row["arms"]["clone"]["won"], name="clone")
                for name, arm in row["arms"].items()
            }
        }
        for part, row in record.items()
    }


# --- from other numbers of the record -------------------------------------------------------------


def claims(record):
    """The claims of a table from its differences seed by seed."""
    stated = [claim for claim in record["claims"] if "on" not in claim]
    return {"claims": decide_table({**record, "claims": stated + unseen_claims(record)})}


def flips(record):
    """Verdicts that injected lines turned: sums over lines. Those page by page were not kept."""
    return {
        "flips": {
            seed: {
                kind: {
                    "turned": sum(row["by_claim"]),
                    "asked": row["attempts"] * len(row["by_claim"]),
                }
                for kind, row in kinds.items()
            }
            for seed, kinds in record["flips"].items()
        }
    }
