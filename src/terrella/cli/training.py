"""Commands that train and measure: recipes, world models, certificates, plans, reproductions."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from terrella.cli.app import Assignments, app, console, world_of
from terrella.core.config import dump, override
from terrella.core.errors import ConfigError
from terrella.core.types import canonical_json


@app.command(name="rlvr")
def rlvr(
    recipe: Positional[str], /, *, out: Path | None = None, assignments: Assignments = (), dry_run: bool = False
) -> None:
    """Train a model with verifiable rewards; the same command resumes after a kill.

    Args:
        recipe: a recipe by name, such as tiny_counter.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as rlvr.steps=20 or seed=1.
        dry_run: print the resolved config and stop.
    """
    from terrella.stages import rlvr, self_evolving

    kinds = (rlvr.Rlvr.Config, self_evolving.SelfEvolving.Config)
    config = _configured(recipe, kinds, "is not a recipe for rlvr", out, assignments)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
    elif isinstance(config, rlvr.Rlvr.Config):
        rlvr.run(config)
    else:
        self_evolving.run(config)


@app.command(name="train-world-model")
def train_world_model(
    recipe: Positional[str], /, *, out: Path | None = None, assignments: Assignments = (), dry_run: bool = False
) -> None:
    """Fit a model to real steps of a world; the folder is what `certify` and `plan` take.

    Args:
        recipe: a recipe by name, such as lake_model.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as transitions=20000 or rlvr_steps=50.
        dry_run: print the resolved config and stop.
    """
    from terrella.stages import train_world_model as texts
    from terrella.stages import video_model as videos

    kinds = (texts.TrainWorldModel.Config, videos.VideoModel.Config)
    config = _configured(recipe, kinds, "is not a recipe for a world model", out, assignments)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
    elif isinstance(config, videos.VideoModel.Config):
        videos.run(config)
    else:
        texts.run(config)


def _configured(
    recipe: str, kinds: tuple[type, ...], otherwise: str, out: Path | None, assignments: tuple[str, ...]
) -> Any:
    """The config of a recipe of one of these kinds, with its folder and what was set."""
    from terrella.recipes import find_recipe

    config = find_recipe(recipe)()
    if not isinstance(config, kinds):
        raise ConfigError(recipe, otherwise)
    return override(config.replace(out=out or Path("runs") / recipe.rpartition(".")[2]), assignments)


@app.command(name="certify")
def certify(
    model: Positional[Path], world: Positional[str | None] = None, /, *, assignments: Assignments = ()
) -> None:  # fmt: skip
    """Measure how far a world model may be believed; exit 1 if it is not certified.

    Args:
        model: the folder that `train-world-model` wrote; the certificate and its report go into it.
        world: the world, if it is one of yours, or a preset; as it was when the model was fitted unless given.
        assignments: config overrides, such as world.size=3, held_out=3000 or step_error=0.01.
    """
    from terrella.stages.certify import Certify, run

    certificate = run(override(Certify.Config(world=world_of(model, world), folder=model), assignments))
    sys.exit(0 if certificate.certified else 1)


@app.command(name="plan")
def plan(
    model: Positional[Path], world: Positional[str | None] = None, /, *, assignments: Assignments = ()
) -> None:  # fmt: skip
    """Play a world by looking ahead in a model of it, beside the random policy and the expert.

    Args:
        model: the folder that `train-world-model` wrote.
        world: the world, if it is one of yours, or a preset; as it was when the model was fitted unless given.
        assignments: config overrides, such as planner.depth=8 or planner.method=beam.
    """
    from terrella.stages.plan import Plan, run

    run(override(Plan.Config(world=world_of(model, world), folder=model), assignments))


@app.command(name="reproduce")
def reproduce(
    recipe: Positional[str], /, *, quick: bool = False, seeds: int | None = None, jobs: int = 1,
    out: Path | None = None, results: Path | None = None, dry_run: bool = False,
) -> None:  # fmt: skip
    """Run a published comparison, arms x seeds, and say whether it holds; exit 1 if not. The same command resumes.

    Args:
        recipe: a reproduction by name, such as spa_frozen_lake.
        quick: only the first arms, with one seed.
        seeds: how many seeds; the recipe's unless given.
        jobs: how many run together, a core each.
        out: the folder; `runs/RECIPE` unless given.
        results: also write the table here.
        dry_run: print the resolved config and stop.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: small models lose by sharing cores
    from terrella.recipes import find_recipe
    from terrella.stages.reproduce import Reproduce
    from terrella.stages.reproduce_report import show_table

    config = find_recipe(recipe)()
    if not isinstance(config, Reproduce.Config):
        raise ConfigError(recipe, "is not a reproduction")
    config = config.quick() if quick else config
    config = config.replace(out=out or config.out, seeds=seeds or config.seeds, at_once=jobs)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
        return
    table = Reproduce(config).run(console.print)
    if results:
        command = " ".join(["terrella", *sys.argv[1:]])
        results.write_text(json.dumps({"command": command, **table}, indent=1) + "\n", "utf-8")
    sys.exit(0 if show_table(table) else 1)
