"""The command line: `terrella worlds | check | collect | rlvr | certify | view | serve | ...`; a module per group.

A command parses its words, calls one stage and shows the result; knobs belong in configs (`--set a.b=c`).
    terrella collect frozen_lake:6x6 --policy random --transitions 100000 --out runs/lake
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

from terrella.cli.app import app
from terrella.core.errors import TerrellaError

# The order of `terrella --help`:
# isort: off
from terrella.cli import worlds as worlds
from terrella.cli import training as training
from terrella.cli import showing as showing
from terrella.cli import machine as machine

# isort: on


def main() -> None:
    """Run a command; an error of ours is three lines for a person, not a traceback."""
    try:
        app.cli(prog="terrella", description="World models with verifiable rewards.")
    except TerrellaError as error:
        Console(stderr=True).print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
