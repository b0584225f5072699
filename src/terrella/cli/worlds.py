"""Commands about worlds: what there is, whether it keeps its promises, episodes of it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Table
from tyro.conf import EnumChoicesFromValues, Positional

from terrella.cli.app import Assignments, app, console, print_config
from terrella.core.config import Configurable
from terrella.core.config_override import override
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.types import Split

if TYPE_CHECKING:
    from terrella.commands.check import CheckResult, CheckStatus
    from terrella.core.world import World


@app.command(name="worlds")
def worlds() -> None:
    """List the worlds, their presets and views."""
    from terrella.worlds import builtin_names, find_world

    table = Table("world", "what", "presets", "views")
    for name in builtin_names():
        world = find_world(name)
        what = (world.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, what, " ".join(world.presets), " ".join(world.view_names))
    console.print(table)


@app.command(name="check")
def check(
    names: Positional[tuple[str, ...]] = (),
    /,
    *,
    all: bool = False,
    assignments: Assignments = (),
) -> None:
    """Prove the properties every world must keep; exit 1 if one does not hold.

    Args:
        names: worlds or presets (`sokoban`, `sokoban:two_box`, a package in this folder).
        all: every world that ships, with every preset.
        assignments: config overrides.
    """
    from terrella.worlds import builtin_names, find_world, world_config

    named = names
    if all:
        names += tuple(
            spec
            for name in builtin_names()
            for spec in (name, *(f"{name}:{p}" for p in find_world(name).presets))
        )
    if not names:
        raise ConfigError("check", "no world named", "terrella check NAME, or terrella check --all")
    # A mistyped name or setting is refused before the first check.
    configs = [(name, world_config(name, assignments)) for name in names]
    counts: Counter[str] = Counter()
    errors: dict[str, TerrellaError] = {}
    for name, config in configs:
        try:
            counts.update(_check(name, config))
        except TerrellaError as error:
            errors[name] = error
            _show_not_checked(name, error)
    _show_counts(len(names), counts, len(errors))
    for name in named:
        if name in errors:
            raise errors[name]
    sys.exit(1 if counts["BROKEN"] else 0)


MARKS = {"ok": "[green]ok[/]", "BROKEN": "[bold red]BROKEN[/]", "n/a": "[dim]n/a[/]"}


def _check(name: str, config: World.Config) -> list[CheckStatus]:
    """Check a world and show the results; one that cannot be made here is an error."""
    from terrella.commands.check import check_world

    results = check_world(config, name)
    _show_checks(name, results)
    return [result.status for result in results]


def _show_not_checked(name: str, error: TerrellaError) -> None:
    remedy = f" -> {error.remedy}" if error.remedy else ""
    console.print(
        f"{name}: not checked: {error.what}{remedy}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _show_counts(worlds: int, counts: Counter[str], not_checked: int) -> None:
    left_out = f", {not_checked} not checked" if not_checked else ""
    console.print(
        f"{worlds} world{'s' * (worlds > 1)}, {counts['BROKEN']} broken properties, "
        f"{counts['n/a']} that do not apply{left_out}",
        highlight=False,
        soft_wrap=True,
    )


def _show_checks(label: str, results: list[CheckResult]) -> None:
    table = Table("property", "", "detail", "s", title=label, title_justify="left")
    for result in results:
        mark = MARKS[result.status]
        table.add_row(
            result.name.replace("_", " "),
            mark,
            escape(result.detail[:300]),
            f"{result.seconds:.2f}",
        )
    console.print(table)


@app.command(name="play")
def play(world: Positional[str], /, *, seed: int = 0, assignments: Assignments = ()) -> None:
    """Play a world by hand in the terminal."""
    from terrella.commands.play import play_by_hand
    from terrella.worlds import world_config

    play_by_hand(world_config(world, assignments), seed=seed, console=console)


@app.command(name="new-world")
def new_world(name: Positional[str], /) -> None:
    """Write a folder with a new world that already passes `terrella check NAME`."""
    from terrella.commands.new_world import new_world as write

    folder = write(name, Path.cwd())
    console.print(f"wrote {folder}/__init__.py; now: terrella check {name}")


@app.command(name="wrap")
def wrap(env: Positional[str], /, *, name: str = "") -> None:
    """Write a world around a Gymnasium env, with a recipe for a model of it.

    Args:
        env: an id that `gymnasium.make` takes, such as CliffWalking-v1; MODULE:ENV imports the
            module that registers it first.
        name: of the module to write; derived from the id unless given.
    """
    from terrella.commands.wrap import wrap as write

    done = write(env, Path.cwd(), name)
    console.print(
        f"wrote {done.path.name}: {done.starts}\n"
        f"the env took {done.resets:,} resets and {done.steps:,} steps\n"
        f"now: terrella check {done.module}\n"
        f"then: terrella train-world-model {done.module}.{done.module}_model "
        f"--out runs/{done.module}" + (f"\nwarning: {done.warning}" if done.warning else ""),
        highlight=False,
        soft_wrap=True,
    )


@app.command(name="collect")
def collect(
    world: Positional[str],
    /,
    *,
    out: Path | None = None,
    policy: str = "random",
    transitions: int = 0,
    episodes: int = 0,
    seed: int = 0,
    split: Annotated[Split, EnumChoicesFromValues] = Split.TRAIN,
    workers: int = 0,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Play episodes into a store.

    The same command resumes after a kill, and a larger target extends it.

    Args:
        world: a world or preset.
        out: the folder; `runs/collect-WORLD-POLICY` unless given.
        policy: random, expert, mixture or endpoint.
        transitions: how many steps to collect (or give --episodes).
        episodes: how many episodes to collect.
        seed: the first seed; episode i is the same in every run.
        split: where instances come from.
        workers: 0 plays in this process, n > 0 on n Ray actors.
        assignments: config overrides, such as world.max_steps=20 or policy.share=0.3.
        dry_run: print the resolved config and stop.
    """
    from terrella.pipelines.collect.pipeline import Collect, run
    from terrella.worlds import world_config

    config = Collect.Config(
        world=world_config(world),
        policy=policy_config(policy),
        out=out or Path("runs") / f"collect-{world.replace(':', '-')}-{policy}",
        transitions=transitions,
        episodes=episodes,
        seed=seed,
        split=split,
        workers=workers,
    )
    config = override(config, assignments)
    if dry_run:
        print_config(config)
        return
    run(config)


def policy_config(name: str) -> Configurable.Config:
    """The default config of a policy by its short name."""
    from terrella.policies.basic import Expert, Mixture, Random
    from terrella.policies.endpoint import Endpoint

    known: dict[str, type[Configurable]] = {
        "random": Random,
        "expert": Expert,
        "mixture": Mixture,
        "endpoint": Endpoint,
    }
    if name not in known:
        raise ConfigError(name, "no such policy", f"policies: {', '.join(known)}")
    return known[name].Config()
