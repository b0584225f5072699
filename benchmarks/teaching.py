"""The recipes that teach, on ten fresh seeds each: results/teaching.json and its rows.

    OMP_NUM_THREADS=1 python benchmarks/teaching.py [RECIPE ...] [--seeds 10] [--runs runs/teaching]
The bar was stated before: after RLVR at least 0.85 on distinct validation instances, and the last
tenth of the curve above what needs no model. Seeds count from `FIRST_SEEDS`: no recipe was tuned
on them. Those before showed that recipes failed, and are spent (results/jobs/teaching). The same
command resumes, seed by seed. A seed of `tiny_lake_agent` takes 13 minutes or more, one of the
others about five.
"""

import argparse
import os
import statistics
import subprocess
from pathlib import Path

import common
from recompute import teaching

from terrella.core.files import read_json_lines
from terrella.core.run_folder import read_manifest, read_part

FIRST_SEEDS = {"tiny_counter": 2000, "tiny_lake_model": 2000, "tiny_lake_agent": 5000}
LEAST_SEEDS = 10
LEAST_AFTER = 0.85
BAR = f"after >= {LEAST_AFTER:g} and the curve above its baseline, every seed"


def run(recipe, seed, chosen):
    """Run or resume one seed as a user would, and read its rows."""
    out = chosen.runs / f"{recipe}-{seed}"
    changes = common.settings(f"seed={seed}", *chosen.set)
    with common.Timer() as timer:
        subprocess.run(
            common.terrella("rlvr", recipe, "--out", out, *changes), check=True, env=os.environ
        )
    metrics = read_manifest(out).metrics
    known = [value for value in metrics["baselines"].values() if value is not None]
    baseline = metrics["baselines"].get("no_change", known[0])
    return {
        "commit": common.commit(),
        "before": read_part(out / "before.json")["instances"],
        "after": read_part(out / "after.json")["instances"],
        "curve": [round(row["reward"], 6) for row in read_json_lines(out / "curve.jsonl")],
        "baseline": baseline,
        "seconds": round(timer.seconds),
    }


def write(result, rows, arguments):
    """The result from its rows, by the same function as `tables.py --recompute`."""
    common.write_rows(result, rows)
    metrics = {"bar": BAR, "least_after": LEAST_AFTER, "least_seeds": LEAST_SEEDS}
    metrics |= teaching(metrics, rows)
    command = common.command(*arguments, OMP_NUM_THREADS=1)
    common.write_results(result, metrics, command=command, replace=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=list(FIRST_SEEDS))
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS)
    parser.add_argument("--set", nargs="*", default=[], help="overrides, to see that it runs")
    parser.add_argument("--runs", type=Path, default=Path("runs/teaching"))
    parser.add_argument("--result", default="teaching")
    chosen = parser.parse_args()
    rows = common.read_rows(chosen.result) or {"recipes": {}}
    for name in chosen.recipes:
        for seed in range(FIRST_SEEDS[name], FIRST_SEEDS[name] + chosen.seeds):
            if str(seed) in rows["recipes"].get(name, {}):
                continue
            rows["recipes"].setdefault(name, {})[str(seed)] = run(name, seed, chosen)
            changes = ["--set", *chosen.set] if chosen.set else []
            write(chosen.result, rows, (*chosen.recipes, "--seeds", chosen.seeds, *changes))
            after = rows["recipes"][name][str(seed)]["after"].values()
            print(name, seed, f"after {statistics.fmean(after):.3f}", flush=True)


if __name__ == "__main__":
    main()
