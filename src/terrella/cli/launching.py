"""`terrella launch`: one way to start any recipe on any hardware."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from tyro.conf import Positional

from terrella.cli.app import Assignments, app, console, named_parts, recipe_config
from terrella.cli.kinds import command_of
from terrella.cli.memory_plan import dry_run_config, show_plan
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.engines.launcher import Launch


@app.command(name="launch")
def launch(
    recipe: Positional[str],
    /,
    *,
    devices: int = 1,
    nodes: int = 1,
    on: str | None = None,
    sharding: Literal["auto", "ddp", "fsdp2"] = "auto",
    jobs: int = 1,
    out: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Start a recipe on several devices: here, or by a job file for a scheduler.

    Args:
        recipe: any recipe by name; `terrella recipes` lists them.
        devices: GPUs of each node; without a GPU, processes.
        nodes: how many nodes.
        on: slurm, kuberay or skypilot writes a job file and says how to submit it. With --dry-run
            it may be hardware, such as 8xH100, 2x24GB or cpu: memory per device, and whether it
            fits.
        sharding: ddp: every device holds the whole model; fsdp2: they share it; auto: what the
            memory plan says.
        jobs: of a comparison: how many run at the same time, with equal shares of the devices.
        out: the folder; `runs/RECIPE` unless given. All nodes must see it.
        assignments: config overrides, such as rlvr.steps=20.
        dry_run: print what would be started and stop.
    """
    from terrella.commands.launch import SCHEDULERS

    for name, count in {"devices": devices, "nodes": nodes, "jobs": jobs}.items():
        if count < 1:
            raise ConfigError(f"--{name} {count}", "is too few", f"set --{name} 1 or more")
    config = _config(recipe, out, jobs, assignments)
    # Here, because an error of a launched process comes with torchrun's own report.
    config.build().check_settings(ranks=devices * nodes, machines=nodes)
    scheduler = on if on in SCHEDULERS else None
    if on is not None and scheduler is None:
        if not dry_run:
            known = " or ".join(SCHEDULERS)
            raise ConfigError(f"--on {on}", "is not a scheduler", f"{known}; add --dry-run to plan")
        dry_run_config(config, on)
        return
    chosen = Launch(
        devices=devices,
        nodes=nodes,
        sharding=_sharding(recipe, config, devices, nodes, sharding),
        engine=_engine(config),
    )
    words = [command_of(config), recipe, "--out", str(_folder(config, out, scheduler, recipe))]
    words += [word for each in assignments for word in ("--set", each)]
    words += ["--jobs", str(jobs)] if jobs > 1 else []
    if scheduler is not None:
        _write_job(scheduler, config, recipe, chosen, words, dry_run)
        return
    _start_here(chosen, words, dry_run)


def _config(recipe: str, out: Path | None, jobs: int, assignments: tuple[str, ...]) -> Any:
    from terrella.pipelines.reproduce.pipeline import Reproduce

    config = recipe_config(recipe, (Configurable.Config,), "launch", out, ())
    if isinstance(config, Reproduce.Config):
        config = config.replace(at_once=jobs)
        return config.with_overrides(assignments, named_parts())
    if jobs > 1:
        raise ConfigError("--jobs", "this recipe is one job", "it is for comparisons of arms")
    return recipe_config(recipe, (Configurable.Config,), "launch", out, assignments)


def _sharding(
    recipe: str, config: Any, devices: int, nodes: int, asked: str
) -> Literal["ddp", "fsdp2"]:
    """The sharding asked for; `auto` plans the memory on the hardware that the recipe is for."""
    from terrella.engines.hardware import CPU
    from terrella.recipes import find_recipe, recipe_info

    if asked != "auto":
        return "fsdp2" if asked == "fsdp2" else "ddp"
    kind = recipe_info(find_recipe(recipe)).on.rpartition("x")[2]
    if kind in ("", CPU):
        return "ddp"
    return "fsdp2" if show_plan(config, f"{nodes}x{devices}x{kind}") == "fsdp2" else "ddp"


def _engine(config: Any) -> Literal["trl", "verl"]:
    arms = getattr(config, "arms", {"": config}).values()
    return "verl" if any(getattr(arm, "engine", "") == "verl" for arm in arms) else "trl"


def _folder(config: Any, out: Path | None, scheduler: str | None, recipe: str) -> Path:
    """Pods and cloud nodes share the volume /runs."""
    if out is None and scheduler in ("kuberay", "skypilot"):
        return Path("/runs") / recipe.rpartition(".")[2]
    return Path(config.out)


def _start_here(chosen: Launch, words: list[str], dry_run: bool) -> None:
    if chosen.nodes > 1 and not {"HEAD", "NODE_RANK"} <= os.environ.keys():
        raise ConfigError(
            "--nodes",
            f"this is one of {chosen.nodes} nodes, but which one?",
            "set HEAD and NODE_RANK on each node, or use --on slurm, kuberay or skypilot",
        )
    command = chosen.words(words)
    if dry_run:
        settings = f"DEVICES={chosen.devices} NODES={chosen.nodes} SHARDING={chosen.sharding}"
        console.print(escape(f"{settings} {' '.join(command)}"), soft_wrap=True)
        return
    sys.stdout.flush()
    os.execvpe(command[0], command, dict(chosen.environment()))


def _write_job(
    scheduler: str, config: Any, recipe: str, chosen: Launch, words: list[str], dry_run: bool
) -> None:
    from terrella.commands.launch import SUFFIX, Job, job_file, submit_command
    from terrella.recipes import find_recipe, recipe_info

    gpu = recipe_info(find_recipe(recipe)).on.rpartition("x")[2]
    arms = getattr(config, "arms", {"": config}).values()
    job = Job(
        words=tuple(words),
        name=recipe.rpartition(".")[2],
        launch=chosen,
        gpu="H100" if gpu in ("", "cpu") else gpu.split("-")[0],
        worlds_on_ray=all(hasattr(arm, "env_pool") for arm in arms),
    )
    text = job_file(scheduler, job)  # type: ignore[arg-type]
    file = Path("runs") / f"{job.name}.{scheduler}{SUFFIX[scheduler]}"
    if dry_run:
        sys.stdout.write(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    console.print(f"wrote {escape(str(file))}")
    console.print(f"submit it: {escape(submit_command(scheduler, job, file))}", soft_wrap=True)  # type: ignore[arg-type]
