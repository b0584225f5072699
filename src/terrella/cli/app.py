"""What all commands share: the app, the console, `--set`, and recipes with overrides."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro
from rich.console import Console
from tyro.conf import UseAppendAction, arg

from terrella.cli.kinds import command_of
from terrella.core.config import Configurable, dump
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.run_folder import rank
from terrella.core.types import canonical_json
from terrella.models.names import check_model_name

if TYPE_CHECKING:
    from terrella.core.world import World

C = TypeVar("C", bound=Configurable.Config)
F = TypeVar("F", bound=Callable[..., Any])

console = Console(quiet=rank() > 0)
"""Standard output; of several ranks only the first prints."""
Assignments = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="A.B=C")]


BAD_ARGUMENTS = 2
"""Tyro's exit code for arguments that it cannot read."""


class App:
    """The commands, with a list of their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._commands = tyro.extras.SubcommandApp()

    def command(self, *, name: str) -> Callable[[F], F]:
        """Register a function as a command."""
        self.names.append(name)
        return self._commands.command(name=name)

    def cli(self, *, args: Sequence[str] | None = None, description: str | None = None) -> None:
        """Run the command that the arguments name, those of this process unless given."""
        try:
            self._commands.cli(prog="terrella", description=description, args=args)
        except SystemExit as ended:
            if ended.code == BAD_ARGUMENTS:
                _tell_settings(sys.argv[1:] if args is None else args)
            raise

    def check_name(self, words: Sequence[str]) -> None:
        """Refuse a mistyped command with the nearest ones; tyro lists all of them."""
        if not words or words[0].startswith("-") or words[0] in self.names:
            return
        near = difflib.get_close_matches(words[0], self.names, n=3)
        start = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(words[0], "no such command", f"{start}`terrella --help` lists them")


def _tell_settings(words: Sequence[str]) -> None:
    """Below tyro's message: an option that is unknown may be meant as a setting."""
    from terrella.cli.mistaken_options import as_settings

    if settings := as_settings(words):
        told = Console(stderr=True)
        told.print(f"a setting? -> {' or '.join(settings)}", highlight=False, soft_wrap=True)


app = App()


def named_parts() -> Mapping[type[Any], Callable[[str], Any]]:
    """Parts of a config that `--set` takes by name: `--set world=sokoban:two_box`."""
    from terrella.core.world import World
    from terrella.worlds import world_config

    return {World.Config: world_config}


def with_overrides(config: C, assignments: Iterable[str]) -> C:
    """The config with `--set` applied; worlds may be given by name."""
    return override(config, assignments, named=named_parts())


def recipe_config(
    name: str,
    kinds: tuple[type[Configurable.Config], ...],
    command: str,
    out: Path | None,
    assignments: Iterable[str],
) -> Any:
    """The config of a recipe for this command, with its folder and its overrides."""
    from terrella.recipes import find_recipe

    config = find_recipe(name)()
    if not isinstance(config, kinds):
        raise _wrong_command(name, config, command)
    folder = out or Path("runs") / name.rpartition(".")[2]
    config = with_overrides(config.replace(out=folder), assignments)
    model = getattr(config, "model", None)
    if isinstance(model, str) and model not in getattr(config, "own_models", ()):
        check_model_name(model)
    return config


def _wrong_command(name: str, config: object, command: str) -> ConfigError:
    """The recipe is for another command, or for none."""
    if not isinstance(config, Configurable.Config):
        kind = type(config).__name__
        return ConfigError(name, f"returned {kind}, not a config", "return a config from it")
    return ConfigError(
        name,
        f"is not a recipe for `terrella {command}`",
        f"use `terrella {command_of(config)} {name}`",
    )


def print_config(config: Configurable.Config) -> None:
    """The config as JSON, coloured on a terminal only: rich lays out a long one slowly."""
    text = json.dumps(json.loads(canonical_json(dump(config))), indent=2, ensure_ascii=False)
    if console.is_terminal:
        console.print_json(text)
    else:
        console.file.write(text + "\n")


def world_of(folder: Path, name: str | None) -> World.Config:
    """The world that a folder's model was fitted to, configured as it was then.

    With a name, of several worlds the named one, and of an imagined world the real one.

    A file may neither import a module nor start a program: a world of the user's own, and one with
    a browser, must be named. A preset, or the name of another world, replaces the fitted one.
    """
    from terrella.show.runs import read_run
    from terrella.worlds import world_config

    run = read_run(folder)
    if name is None:
        try:
            return run.load_world()
        except ConfigError as error:
            raise ConfigError(
                str(folder), f"its world cannot be built here: {error.what}", "name the world"
            ) from error
    named = world_config(name)
    try:
        fitted = run.load_world(named.owner).real
    except ConfigError:  # the manifest holds no such world, and the named one needs none
        return named
    return fitted if type(named) is type(fitted) and ":" not in name else named
