"""What is said of WebRL's loop: one job of a table, the table, kills, the outcome model.

python results/measure_webrl.py job webrl_sokoban webrl_paper 0 --runs runs   # resumable; one arm, one seed
python results/measure_webrl.py table webrl_sokoban --runs runs               # results/webrl_sokoban.json and a plot
python results/measure_webrl.py kills --runs runs                             # results/webrl_kills.json
python results/measure_webrl.py outcome webrl_sokoban --runs runs             # results/webrl_outcome.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from terrella.core.config import override
from terrella.recipes import webrl  # not by name: that would import every recipe's engine
from terrella.stages.reproduce import Reproduce
from terrella.stages.self_evolving import SelfEvolving

RESULTS = Path(__file__).parent
PICTURES = RESULTS.parent / "docs" / "pictures"


class Lines:
    """Progress as lines."""

    def phase(self, name: str, total: int) -> None:
        """Nothing to say yet."""

    def advance(self, done: int, **figures: float) -> None:
        """One line a phase."""
        print(done, figures, flush=True)


def write(name: str, found: Mapping[str, Any]) -> None:
    """A results file with the command that made it; parts that this command does not make stay."""
    words = ["runs" if before == "--runs" else word for before, word in pairwise(sys.argv)]
    command = " ".join(["python", "results/measure_webrl.py", *words])
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**before, "command": command, **found}, indent=1) + "\n", "utf-8")
    print(f"wrote {name}.json")


# --- arms x seeds -----------------------------------------------------------------------------------------------------


def job(options: argparse.Namespace) -> None:
    """One arm, one seed."""
    table: Any = getattr(webrl, options.recipe)()
    folder = options.runs / options.recipe
    arm = table.arms[options.arm].replace(
        seed=options.seed, out=folder / f"{options.arm}-{options.seed}", bases=folder / "bases"
    )
    found = SelfEvolving(override(arm, options.set)).run(Lines())
    print(
        options.arm, options.seed, "test", found["test"]["mean"], found["test"]["families"], f"{found['seconds']:.0f} s"
    )


def table(options: argparse.Namespace) -> None:
    """All that is done so far."""
    recipe: Any = getattr(webrl, options.recipe)()
    reproduction = Reproduce(recipe.replace(out=options.runs / options.recipe))
    found = reproduction.write_table()
    runs = reproduction.finished()
    curves = {arm: {str(seed): curve(run) for seed, run in seeds.items()} for arm, seeds in runs.items() if seeds}
    budget = {arm: {name: next(iter(seeds.values()))["config"][name] for name in ("phases", "phase_steps", "evaluate")}
              for arm, seeds in runs.items() if seeds}  # fmt: skip
    moved = {str(seed): moves(run) for seed, run in runs.get("webrl_paper", {}).items()}
    families = {
        arm: mean_families([run["test"]["families"] for run in seeds.values()]) for arm, seeds in runs.items() if seeds
    }
    unseen = {
        arm: [run["unseen"]["mean"] for run in seeds.values() if run["unseen"]] for arm, seeds in runs.items() if seeds
    }
    more = {"budget": budget, "success_by_phase": curves, "curriculum": moved, "test_by_family": families}
    write(options.recipe, {**found, **more, "unseen_families": unseen})
    if options.recipe == "webrl_sokoban" and moved:
        picture(moved, curves)


def curve(run: Mapping[str, Any]) -> dict[str, Any]:
    """Success on validation by phase: practised families and families never practised."""
    names = set(run["config"]["families"])

    def mean(figures: Mapping[str, Any], practised: bool) -> float | None:
        values = [value for name, value in figures["families"].items() if (name in names) is practised]
        return round(sum(values) / len(values), 4) if values else None

    points = [run["base"], *run["phases"]]
    seen = [point["validation"] for point in points if "validation" in point]
    return {"practised": [mean(one, True) for one in seen], "unseen": [mean(one, False) for one in seen],
            "won_in_practice": [phase["won"] for phase in run["phases"]],
            "judge_errors": [phase["judge_errors"] for phase in run["phases"] if "judge_errors" in phase]}  # fmt: skip


def moves(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How the curriculum moved: shares of families among what was admitted, phase by phase."""
    rows = []
    for phase in run["phases"]:
        log = phase["curriculum"]
        total = sum(log["admitted"].values())
        shares = {name: round(log["admitted"].get(name, 0) / total, 3) for name in run["config"]["families"]}
        rows.append({"phase": phase["phase"], "admitted": shares, "mean_value": log["mean_value"],
                     "too_easy": log["too_easy"], "too_hard": log["too_hard"], "resting": log["resting"]})  # fmt: skip
    return rows


def mean_families(rows: list[dict[str, float]]) -> dict[str, float]:
    """Test success by family, mean over seeds."""
    return {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in rows[0]}


def picture(moved: Mapping[str, Any], curves: Mapping[str, Any]) -> None:
    """Admitted tasks by difficulty over the phases, and success by phase of the arms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    rows = next(iter(moved.values()))
    names = list(rows[0]["admitted"])
    means = [
        [sum(seed[p]["admitted"][name] for seed in moved.values()) / len(moved) for p in range(len(rows))]
        for name in names
    ]
    left.stackplot(range(1, len(rows) + 1), means, labels=[name.replace("_", " ") for name in names],
                   colors=pyplot.cm.viridis([n / len(names) for n in range(len(names))]))  # fmt: skip
    left.set(xlabel="phase", ylabel="share of practice", title="what the curriculum admits")
    left.legend(fontsize=6, loc="upper left")
    for arm in [name for name in ("webrl_paper", "fixed", "grpo") if name in curves]:
        lines = [seed["practised"] for seed in curves[arm].values()]
        steps = [n * len(rows) / (len(lines[0]) - 1) for n in range(len(lines[0]))]
        right.plot(steps, [sum(line[n] for line in lines) / len(lines) for n in range(len(lines[0]))], label=arm)
    right.set(xlabel="phase (equal real steps)", ylabel="validation success", title="mean over seeds")
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(PICTURES / "webrl_sokoban.png", dpi=110)


# --- kills ------------------------------------------------------------------------------------------------------------

SMALL = ("phases=3", "phase_steps=100", "glance=2", "evaluate=2", "demonstrations=10", "imitation_updates=5",
         "slots=16", "width=16", "layers=1")  # fmt: skip


def digest(folder: Path) -> dict[str, str]:
    """Every file of a run: weights, optimiser, replay, curriculum, evaluations."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files(folder)}


def files(folder: Path) -> list[Path]:
    """What a run has written whole; its manifest also says how long it took, so it is left out."""
    found = sorted(folder.rglob("*.*"))
    return [path for path in found if path.is_file() and path.suffix != ".tmp" and path.name != "manifest.json"]


def kills(options: argparse.Namespace) -> None:
    """One run left alone, others killed at random moments and begun again: do they end with the same bits?

    Children are forked, so that what was imported here need not be imported again.
    """
    folder, rng, killed = options.runs / "webrl_kills", random.Random(0), list[dict[str, Any]]()
    shutil.rmtree(folder, ignore_errors=True)
    forked("whole", folder).join()
    wanted, runs = digest(folder / "whole"), 0
    while len(killed) < options.count:
        runs += 1
        while (child := forked(f"killed-{runs}", folder)).exitcode is None:
            there = len(files(folder / f"killed-{runs}"))
            wait_for_files(child, folder / f"killed-{runs}", there + rng.randint(1, 5))
            time.sleep(rng.uniform(0.0, 1.0))
            if child.exitcode is not None:
                break
            child.kill()  # SIGKILL
            child.join()
            killed.append({"run": runs, "after_files": len(files(folder / f"killed-{runs}"))})
        if digest(folder / f"killed-{runs}") != wanted:
            raise SystemExit(f"run {runs} differs")
    write("webrl_kills", {"kills": len(killed), "runs": runs, "files_compared": len(wanted), "identical": True,
                          "killed": killed})  # fmt: skip


def forked(name: str, folder: Path) -> BaseProcess:
    """A small run in a process of its own, begun or gone on with."""
    arguments = ["webrl_sokoban", "webrl_paper", "0"]
    options = argparse.Namespace(recipe=arguments[0], arm=arguments[1], seed=0, runs=folder / name, set=SMALL)
    child = multiprocessing.get_context("fork").Process(target=job, args=(options,))
    child.start()
    return child


def wait_for_files(child: BaseProcess, folder: Path, count: int) -> None:
    """Until the run has so many files, or has ended."""
    while child.exitcode is None and len(files(folder)) < count:
        time.sleep(0.05)


# --- the outcome model ------------------------------------------------------------------------------------------------


def outcome(options: argparse.Namespace) -> None:
    """The judge beside the world's truth, and agents trained by either."""
    recipe: Any = getattr(webrl, options.recipe)()
    runs = Reproduce(recipe.replace(out=options.runs / options.recipe)).finished()
    judged, truth = runs["judged"], runs["webrl_paper"]
    judges = sorted((options.runs / options.recipe / "bases").glob("judge-*/judge.json"))
    found = {
        "judges": {path.parent.name: json.loads(path.read_text("utf-8")) for path in judges},
        "errors_in_practice": {str(s): [phase["judge_errors"] for phase in run["phases"]] for s, run in judged.items()},
        "test_success": {str(seed): both(run, truth[seed]) for seed, run in judged.items() if seed in truth},
    }  # fmt: skip
    write("webrl_outcome", {options.recipe: found})


def both(judged: Mapping[str, Any], truth: Mapping[str, Any]) -> dict[str, Any]:
    """Test success of the two agents of one seed."""
    n = judged["test"]["n"]
    return {"judged_by_model": judged["test"]["mean"], "judged_by_world": truth["test"]["mean"], "n": n}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, call in (("job", job), ("table", table), ("kills", kills), ("outcome", outcome)):
        one = commands.add_parser(name)
        one.set_defaults(call=call)
        if name != "kills":
            one.add_argument("recipe")
        if name == "job":
            one.add_argument("arm")
            one.add_argument("seed", type=int)
            one.add_argument("--set", nargs="*", default=[])
        one.add_argument("--runs", type=Path, default=Path("runs"))
        one.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
