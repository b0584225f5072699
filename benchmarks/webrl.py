"""Measures WebRL: one job of a table, the table, kills, the outcome model.

    python benchmarks/webrl.py job webrl_sokoban webrl_paper 0 --runs runs   one arm and seed
    python benchmarks/webrl.py table webrl_sokoban --runs runs     results/webrl_sokoban.json
    python benchmarks/webrl.py practice webrl_sokoban --runs runs  results/webrl_practice.json
    python benchmarks/webrl.py pages webrl_miniwob                 results/webrl_pages.json
    python benchmarks/webrl.py kills --runs runs                   results/webrl_kills.json
    python benchmarks/webrl.py outcome webrl_sokoban --runs runs   results/webrl_outcome.json
A job that was stopped is resumed by the same command.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import common
from recompute import reproduction as recomputed

from terrella.core.config_override import override
from terrella.core.run_folder import read_part
from terrella.core.types import Split
from terrella.data.attempts import read_attempts
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.webrl.metrics import SuccessScores
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.webrl.results import WebRlResult
from terrella.recipes import webrl, webrl_language
from terrella.rollout.batch_rollout import BatchRollout

TRAIN_PAGES = 30
"""Train instances of each family that test pages are compared with."""


class LineProgress:
    """Prints one line per phase."""

    def phase(self, name: str, total: int) -> None:
        """Nothing is known yet."""

    def advance(self, done: int, **metrics: float) -> None:
        print(done, metrics, flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


def write(name: str, metrics: Mapping[str, Any]) -> None:
    """Update a results file; the folder after `--runs` is not recorded."""
    pairs = pairwise(sys.argv)
    arguments = ["runs" if before == "--runs" else argument for before, argument in pairs]
    common.write_results(name, metrics, command=common.command(*arguments))


def find(recipe: str) -> Any:
    """The recipe's config; `find_recipe` would import the engines of all recipes."""
    return getattr(webrl if hasattr(webrl, recipe) else webrl_language, recipe)()


# --- arms x seeds ---------------------------------------------------------------------------------


def job(options: argparse.Namespace) -> None:
    """Run or resume one arm with one seed."""
    table: Any = find(options.recipe)
    folder = options.runs / options.recipe
    arm = table.arms[options.arm].replace(
        seed=options.seed, out=folder / f"{options.arm}-{options.seed}", base_cache=folder / "bases"
    )
    result = WebRl(override(arm, options.set)).run(LineProgress())
    print(options.arm, options.seed, "test", result.test.mean, result.test.families)


def table(options: argparse.Namespace) -> None:
    """Write the table of all jobs that are finished so far."""
    recipe: Any = find(options.recipe)
    reproduction = Reproduce(recipe.replace(out=options.runs / options.recipe))
    metrics = reproduction.write_table()
    results: dict[str, dict[int, Any]] = {
        arm: {seed: job.result for seed, job in jobs.items()}
        for arm, jobs in reproduction.finished().items()
        if jobs
    }
    names = list(next(iter(recipe.arms.values())).families)
    curves = {
        arm: {str(seed): curve(result, names) for seed, result in by_seed.items()}
        for arm, by_seed in results.items()
    }
    moved = {
        str(seed): moves(result, names) for seed, result in results.get("webrl_paper", {}).items()
    }
    details = {
        "budget": {arm: budget(recipe.arms[arm]) for arm in results},
        "success_by_phase": curves,
        "curriculum": moved,
        "test_by_family": {
            arm: mean_families([result.test.families for result in by_seed.values()])
            for arm, by_seed in results.items()
        },
    }
    rows = {**reproduction.rows(), "unseen": unseen_rows(results)}
    fresh = recomputed(metrics, rows)
    details |= {key: value for key, value in fresh.items() if key != "arms"}
    common.write_rows(options.recipe, rows)
    write(options.recipe, {**metrics, **details})
    if options.recipe == "webrl_sokoban" and moved:
        picture(moved, curves)


def unseen_rows(results: Mapping[str, Mapping[int, Any]]) -> dict[str, dict[str, Any]]:
    """What each arm and seed won on families that were neither shown nor practised."""
    rows: dict[str, dict[str, Any]] = {}
    for arm, by_seed in results.items():
        for seed, result in by_seed.items():
            if scores := result.unseen:
                row = {"successes": scores.successes, "samples": scores.samples}
                row |= {"judged": scores.judged} if scores.judged else {}
                rows.setdefault(arm, {})[str(seed)] = row
    return rows


def practice(options: argparse.Namespace) -> None:
    """Attempts in practice and how many were won, by family; of unfinished jobs, too."""
    jobs: dict[str, dict[str, dict[str, int]]] = {}
    for path in sorted((options.runs / options.recipe).glob("*/phase-*/attempts.jsonl")):
        families = jobs.setdefault(path.parent.parent.name, {})
        for attempt in read_attempts(path):
            counts = families.setdefault(attempt.task.family, {"attempts": 0, "won": 0})
            counts["attempts"] += 1
            counts["won"] += attempt.success is True
    command = common.command("practice", options.recipe, "--runs", "runs")
    common.write_part("webrl_practice", options.recipe, {"jobs": jobs}, command=command)


def pages(options: argparse.Namespace) -> None:
    """Different test pages of each family, and how many of them train instances show as well."""
    config = find(options.recipe).arms["sft"]
    families = {**config.families, **config.unseen}
    found: dict[str, dict[str, Any]] = {}
    with BatchRollout(families) as rollout:
        for name in families:
            with rollout.world(name) as world:
                tested = {world.start_of(seed, Split.TEST) for seed in range(config.test)}
                shown = {world.start_of(seed, Split.TRAIN) for seed in range(TRAIN_PAGES)}
            found[name] = {
                "asked": config.test,
                "different": len(tested),
                "also_train": len(tested & shown),
                "unseen": name in config.unseen,
            }
    write("webrl_pages", {"families": found, "train_instances": TRAIN_PAGES})


def budget(config: WebRl.Config) -> dict[str, int]:
    return {"phases": config.phases, "phase_steps": config.phase_steps, "evaluate": config.test}


def curve(result: WebRlResult, names: Sequence[str]) -> dict[str, Any]:
    """Success on validation by phase: practised families and families never practised."""

    def mean(scores: SuccessScores, practised: bool) -> float | None:
        values = [value for name, value in scores.families.items() if (name in names) is practised]
        return round(sum(values) / len(values), 4) if values else None

    points = [result.base.validation, *(phase.validation for phase in result.phases)]
    known = [scores for scores in points if scores is not None]
    return {
        "practised": [mean(scores, True) for scores in known],
        "unseen": [mean(scores, False) for scores in known],
        "won_in_practice": [phase.practice.won for phase in result.phases],
        "judge_errors": errors_by_phase(result),
    }


def errors_by_phase(result: WebRlResult) -> list[dict[str, Any]]:
    return [asdict(phase.outcome_errors) for phase in result.phases if phase.outcome_errors]


def moves(result: WebRlResult, names: Sequence[str]) -> list[dict[str, Any]]:
    """Shares of the families among the admitted tasks, phase by phase."""
    rows = []
    for phase in result.phases:
        log = phase.curriculum
        assert log is not None
        total = sum(log.admitted.values())
        row = {
            "phase": phase.phase,
            "admitted": {name: round(log.admitted.get(name, 0) / total, 3) for name in names},
            "mean_value": log.mean_value,
            "too_easy": log.too_easy,
            "too_hard": log.too_hard,
            "resting": log.resting,
        }
        rows.append(row)
    return rows


def mean_families(rows: list[dict[str, float]]) -> dict[str, float]:
    """Test success by family, mean over the seeds with a verdict on it."""
    names = dict.fromkeys(name for row in rows for name in row)
    known = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: round(sum(values) / len(values), 4) for name, values in known.items()}


def picture(moved: Mapping[str, Any], curves: Mapping[str, Any]) -> None:
    """Admitted tasks by difficulty over the phases, and success by phase of the arms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    rows = next(iter(moved.values()))
    names = list(rows[0]["admitted"])
    means = [
        [
            sum(seed[p]["admitted"][name] for seed in moved.values()) / len(moved)
            for p in range(len(rows))
        ]
        for name in names
    ]
    left.stackplot(
        range(1, len(rows) + 1),
        means,
        labels=[name.replace("_", " ") for name in names],
        colors=pyplot.cm.viridis([n / len(names) for n in range(len(names))]),
    )
    left.set(xlabel="phase", ylabel="share of practice", title="what the curriculum admits")
    left.legend(fontsize=6, loc="upper left")
    for arm in [name for name in ("webrl_paper", "fixed", "grpo") if name in curves]:
        lines = [seed["practised"] for seed in curves[arm].values()]
        steps = [n * len(rows) / (len(lines[0]) - 1) for n in range(len(lines[0]))]
        right.plot(
            steps,
            [sum(line[n] for line in lines) / len(lines) for n in range(len(lines[0]))],
            label=arm,
        )
    right.set(
        xlabel="phase (equal real steps)", ylabel="validation success", title="mean over seeds"
    )
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(common.PICTURES / "webrl_sokoban.png", dpi=110)


# --- kills ----------------------------------------------------------------------------------------

SMALL = (
    "phases=3",
    "phase_steps=100",
    "validation=2",
    "test=2",
    "demonstrations=10",
    "imitation_updates=5",
    "slots=16",
    "width=16",
    "layers=1",
)


def digest(folder: Path) -> dict[str, str]:
    """Every file of a run: weights, optimiser, replay, curriculum, evaluations."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(folder)
    }


def files(folder: Path) -> list[Path]:
    """Complete files of a run, without the manifest and the log, which record the time it took."""
    paths = sorted(path for path in folder.rglob("*.*") if path.is_file())
    return [
        path
        for path in paths
        if path.suffix not in (".tmp", ".log") and path.name != "manifest.json"
    ]


def kills(options: argparse.Namespace) -> None:
    """One run is left alone, others are killed at random moments and resumed: the same bits?

    Children are forked, so that nothing needs to be imported again.
    """
    folder, rng = options.runs / "webrl_kills", random.Random(0)
    killed: list[dict[str, Any]] = []
    shutil.rmtree(folder, ignore_errors=True)
    start_job("whole", folder).join()
    expected, runs = digest(folder / "whole"), 0
    while len(killed) < options.count:
        runs += 1
        run = folder / f"killed-{runs}"
        while (child := start_job(run.name, folder)).exitcode is None:
            wait_for_files(child, run, len(files(run)) + rng.randint(1, 5))
            time.sleep(rng.uniform(0.0, 1.0))
            if child.exitcode is not None:
                break
            child.kill()  # SIGKILL
            child.join()
            killed.append({"run": runs, "after_files": len(files(run))})
        if digest(run) != expected:
            raise SystemExit(f"run {runs} differs")
    metrics = {
        "kills": len(killed),
        "runs": runs,
        "files_compared": len(expected),
        "identical": True,
        "killed": killed,
    }
    write("webrl_kills", metrics)


def start_job(name: str, folder: Path) -> BaseProcess:
    """Start or resume a small run in a process of its own."""
    options = argparse.Namespace(
        recipe="webrl_sokoban", arm="webrl_paper", seed=0, runs=folder / name, set=SMALL
    )
    child = multiprocessing.get_context("fork").Process(target=job, args=(options,))
    child.start()
    return child


def wait_for_files(child: BaseProcess, folder: Path, count: int) -> None:
    """Wait until the run has written `count` files, or has ended."""
    while child.exitcode is None and len(files(folder)) < count:
        time.sleep(0.05)


# --- the outcome model ----------------------------------------------------------------------------


def outcome(options: argparse.Namespace) -> None:
    """The outcome model compared with the world's verdicts, and agents trained with either."""
    recipe: Any = find(options.recipe)
    jobs: Any = Reproduce(recipe.replace(out=options.runs / options.recipe)).finished()
    judged, truth = jobs["judged"], jobs["webrl_paper"]
    models = sorted((options.runs / options.recipe / "bases").glob("judge-*/judge.json"))
    metrics = {
        "judges": {path.parent.name: outcome_model_row(path) for path in models},
        "errors_in_practice": {
            str(seed): errors_by_phase(job.result) for seed, job in judged.items()
        },
        "test_success": {
            str(seed): both(job.result.test, truth[seed].result.test)
            for seed, job in judged.items()
            if seed in truth
        },
    }
    write("webrl_outcome", {options.recipe: metrics})


def outcome_model_row(path: Path) -> dict[str, Any]:
    """An outcome model's metrics under the names of results/webrl_outcome.json."""
    row = dict(read_part(path))
    row["calibration"] = [
        {"said": part["predicted"], "was": part["actual"], "n": part["n"]}
        for part in row["calibration"]
    ]
    return row


def both(judged: SuccessScores, truth: SuccessScores) -> dict[str, Any]:
    """Test success of the two agents of one seed."""
    return {"judged_by_model": judged.mean, "judged_by_world": truth.mean, "n": judged.n}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for call in (job, table, practice, pages, kills, outcome):
        name = call.__name__
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        if name != "kills":
            command.add_argument("recipe")
        if name == "job":
            command.add_argument("arm")
            command.add_argument("seed", type=int)
            command.add_argument("--set", nargs="*", default=[])
        command.add_argument("--runs", type=Path, default=Path("runs"))
        command.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
