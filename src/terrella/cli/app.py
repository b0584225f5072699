"""What all commands share: the app they register with, the console, and `--set`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from tyro.conf import UseAppendAction, arg

from terrella.core.errors import ConfigError

if TYPE_CHECKING:
    from terrella.core.world import World

console = Console()
Assignments = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="A.B=C")]
app = tyro.extras.SubcommandApp()


def world_of(folder: Path, name: str | None) -> World.Config:
    """The world that a folder's model was fitted to, set up as it was then.

    A config file may not import what the user has not: a world of yours is named, which imports it. A preset, or the
    name of another world, replaces it.
    """
    from terrella.show.runs import read_run
    from terrella.worlds import world_config

    named = world_config(name) if name else None
    fitted = read_run(folder).world
    if named is not None and (fitted is None or type(named) is not type(fitted) or ":" in str(name)):
        return named
    if fitted is None:
        raise ConfigError(str(folder), "its world cannot be built here", "name the world it is a model of")
    return fitted
