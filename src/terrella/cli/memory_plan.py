"""`--dry-run --on HARDWARE`: the memory of a recipe on hardware that need not be here."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from terrella.cli.app import console, print_config
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError


def only_with_dry_run(on: str | None, dry_run: bool) -> None:
    """Refuse `--on` where it would do nothing: a run uses the hardware that is here."""
    if on is not None and not dry_run:
        raise ConfigError(
            f"--on {on}", "plans memory", "add --dry-run, or use `terrella launch --on slurm`"
        )


def dry_run_config(config: Configurable.Config, on: str | None = None) -> None:
    """Print the config; with hardware, also its memory plan. Refuses what cannot run."""
    print_config(config)
    config.build().check_settings()
    if on is not None:
        show_plan(config, on)


def show_plan(config: Configurable.Config, on: str) -> str:
    """Print memory per device and role, and return the sharding; refuse what does not fit."""
    from terrella.engines.hardware import parse_hardware

    hardware = parse_hardware(on)  # before torch is imported: a mistyped name fails at once
    from terrella.engines.memory.show import HEAD, plan_rows, verdict
    from terrella.pipelines.memory_plan import check_fits, plan_config

    plan = plan_config(config, hardware)
    if plan.phases:
        table = Table(*HEAD, title=f"memory per device on {hardware}", title_justify="left")
        for row in plan_rows(plan):
            table.add_row(*map(escape, row))
        console.print(table)
    check_fits(config, plan, hardware)
    console.print(escape(verdict(plan)))
    return plan.sharding
