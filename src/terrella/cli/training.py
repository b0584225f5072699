"""Commands that train and measure: recipes, world models, certificates, plans, reproductions."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional

from terrella.cli.app import (
    Assignments,
    app,
    console,
    recipe_config,
    with_overrides,
    world_of,
)
from terrella.cli.kinds import command_of, rlvr_kinds, world_model_kinds
from terrella.cli.memory_plan import dry_run_config, only_with_dry_run
from terrella.core.errors import ConfigError
from terrella.core.known_names import near_names

if TYPE_CHECKING:
    from terrella.pipelines.reproduce.pipeline import Reproduce


@app.command(name="recipes")
def recipes(filter: Positional[str] = "", /) -> None:
    """List the recipes by command, with hardware, time and the figure to expect.

    Args:
        filter: only recipes whose name contains this.
    """
    from terrella.recipes import all_recipes, recipe_info

    known = all_recipes()
    commands: dict[str, list[tuple[str, ...]]] = {}
    for name, function in sorted(known.items()):
        if filter in name:
            info = recipe_info(function)
            row: tuple[str, ...] = (name, info.hardware, info.time, info.expect)
            commands.setdefault(command_of(function()), []).append(row)
    if not commands:
        remedy = f"{near_names(filter, known)}`terrella recipes` lists all"
        raise ConfigError(filter, "no recipe's name contains this", remedy)
    for command, rows in sorted(commands.items()):
        _show_recipes(f"terrella {command}", rows)


def _show_recipes(title: str, rows: list[tuple[str, ...]]) -> None:
    # A name is typed or copied, so it stays whole; the other columns share the rest.
    longest = max(len(row[0]) for row in rows)
    names = Column("recipe", no_wrap=True, min_width=longest)
    others = [Column(head, overflow="fold") for head in ("hardware", "time", "expect")]
    table = Table(names, *others, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


@app.command(name="rlvr")
def rlvr(
    recipe: Positional[str],
    /,
    *,
    out: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
    on: str | None = None,
) -> None:
    """Train a model with verifiable rewards; the same command resumes after a kill.

    Args:
        recipe: a recipe by name, such as tiny_counter.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as rlvr.steps=20, seed=1 or world=sokoban.
        dry_run: print the resolved config and stop.
        on: with --dry-run: also print the memory that it needs on this hardware, such as 8xH100,
            2x24GB or cpu, and refuse what does not fit.
    """
    from terrella.pipelines.base import run_pipeline

    config = recipe_config(recipe, rlvr_kinds(), "rlvr", out, assignments)
    only_with_dry_run(on, dry_run)
    dry_run_config(config, on) if dry_run else run_pipeline(config)


@app.command(name="train-world-model")
def train_world_model(
    recipe: Positional[str],
    /,
    *,
    out: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
    on: str | None = None,
) -> None:
    """Fit a model to real steps of a world, and measure it.

    `certify`, `plan` and `serve` take the folder of a model of states or text. Models of pages,
    videos and recorded text games have no certificate; `plan` also takes one of pages.

    Args:
        recipe: a recipe by name, such as lake_model.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as transitions=20000 or rlvr.steps=50.
        dry_run: print the resolved config and stop.
        on: with --dry-run: also print the memory that it needs on this hardware, such as 8xH100,
            2x24GB or cpu, and refuse what does not fit.
    """
    from terrella.pipelines.base import run_pipeline

    kinds = world_model_kinds()
    config = recipe_config(recipe, kinds, "train-world-model", out, assignments)
    only_with_dry_run(on, dry_run)
    dry_run_config(config, on) if dry_run else run_pipeline(config)


@app.command(name="certify")
def certify(
    model: Positional[Path],
    world: Positional[str | None] = None,
    /,
    *,
    policy: str | None = None,
    assignments: Assignments = (),
) -> None:
    """Measure how far a world model may be believed; exit 1 if it is not certified.

    Args:
        model: the folder that `train-world-model` wrote; the certificate is written into it.
        world: a world of yours or a preset; the world of the model unless given.
        policy: takes the steps that are predicted: random, expert, mixture or endpoint; the one
            that took the steps of the model's data unless given.
        assignments: config overrides, such as world.size=3, held_out=3000 or step_error=0.01.
    """
    from terrella.cli.worlds import policy_config
    from terrella.pipelines.certify.pipeline import Certify, run
    from terrella.show.runs import require_world_model

    require_world_model(model)
    config = Certify.Config(
        world=world_of(model, world),
        folder=model,
        policy=policy_config(policy) if policy else None,
    )
    certificate = run(with_overrides(config, assignments))
    sys.exit(0 if certificate.certified else 1)


@app.command(name="reproduce")
def reproduce(
    recipe: Positional[str],
    /,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    looks: int | None = None,
    out: Path | None = None,
    results: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
    on: str | None = None,
    devices: int = 0,
    only: str | None = None,
    table: bool = False,
) -> None:
    """Run a published comparison, arms x seeds, and decide its claims.

    The same command resumes. It exits with 0 if every claim holds, with 1 if one fails, with 3 if
    none fails and one is undecided.

    Args:
        recipe: a reproduction by name, such as spa_frozen_lake.
        quick: only the first arms, with one seed.
        seeds: how many seeds; the recipe's unless given.
        jobs: how many run at the same time, one core each.
        looks: how often the claims are to be decided as seeds are added, stated before the first
            time. Each p-value is multiplied by it.
        out: the folder; `runs/RECIPE` unless given.
        results: also write the table here, and its rows to `rows/` beside it.
        assignments: overrides of every arm that has the field, such as rlvr.steps=100; one arm is
            named by arms.NAME.FIELD=VALUE.
        dry_run: print the resolved config and stop.
        on: with --dry-run: the memory on this hardware, such as 8xH100.
        devices: GPUs, or processes on a CPU, that the jobs share.
        only: run this job alone, such as spa-0, in this process.
        table: run nothing; write and show the table of the jobs that are finished.
    """
    from terrella.pipelines.base import run_pipeline
    from terrella.pipelines.reproduce.pipeline import Reproduce
    from terrella.pipelines.reproduce.report import show_table

    options = {"seeds": seeds, "looks": looks, "out": out}
    config = _comparison(recipe, options, assignments, quick=quick).replace(at_once=jobs)
    only_with_dry_run(on, dry_run)
    job = None if only is None else Reproduce(config).find_job(only)
    if job is None and not table and config.shortfall:
        from rich.console import Console

        Console(stderr=True).print(config.shortfall, highlight=False, soft_wrap=True)
    if dry_run:
        dry_run_config(job or config, on)
        return
    _one_thread_for_small_models(config)
    if job is not None:
        run_pipeline(job)
        return
    comparison = Reproduce(config)
    if table:
        found = comparison.collect()
    else:
        words = ["reproduce", recipe, *["--quick"] * quick, "--out", str(config.out)]
        words += [word for each in assignments for word in ("--set", each)]
        words += ["--seeds", str(config.seeds), "--looks", str(config.looks)]
        processes = _processes(comparison, devices, words)
        found = comparison.run(console.print, processes=processes)
    if results:
        comparison.write_results(results, found, " ".join(["terrella", *sys.argv[1:]]))
    sys.exit(_exit_code(show_table(found)))


def _comparison(
    recipe: str, options: Mapping[str, Any], assignments: Sequence[str], *, quick: bool
) -> Reproduce.Config:
    """The recipe's comparison with the options that were given and the overrides of its arms."""
    from terrella.cli.app import named_parts
    from terrella.pipelines.reproduce.pipeline import Reproduce

    config: Reproduce.Config = recipe_config(recipe, (Reproduce.Config,), "reproduce", None, ())
    config = config.quick() if quick else config
    given = {name: value for name, value in options.items() if value is not None}
    config = config.replace(**given)
    return config.with_overrides(assignments, named_parts())


def _one_thread_for_small_models(config: Reproduce.Config) -> None:
    """Set the number of threads before torch is imported: small models lose by sharing."""
    from terrella.models.names import is_pretrained

    if not any(is_pretrained(getattr(arm, "model", "")) for arm in config.arms.values()):
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _processes(comparison: Reproduce, devices: int, words: list[str]) -> Any:
    """The processes of jobs that share devices or nodes; None where the jobs run by themselves."""
    from terrella.engines.launcher import Launch

    if devices <= 1 and os.environ.get("NODES", "1") == "1":
        return None
    return comparison.processes(Launch.from_environment(max(devices, 1)), words)


def _exit_code(verdicts: Collection[str]) -> int:
    return 1 if "fails" in verdicts else 3 if "undecided" in verdicts else 0
