"""The command line: one module per group of commands.

A command parses its arguments, calls one pipeline or command and shows the result. Settings belong
in configs (`--set a.b=c`), not in options.
    terrella collect frozen_lake:6x6 --policy random --transitions 100000 --out runs/episodes
"""

from __future__ import annotations

import sys

import terrella
from terrella.cli.app import app
from terrella.cli.failures import reported_to_user
from terrella.engines.ranks import end_rank

# The order of `terrella --help`:
# isort: off
from terrella.cli import worlds as worlds
from terrella.cli import importing as importing
from terrella.cli import training as training
from terrella.cli import plan as plan
from terrella.cli import sft as sft
from terrella.cli import evaluate as evaluate
from terrella.cli import launching as launching
from terrella.cli import showing as showing
from terrella.cli import exporting as exporting
from terrella.cli import machine as machine

# isort: on


def main() -> None:
    """Run a command. What a user can fix is reported in a few lines, not as a traceback."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"terrella {terrella.__version__}\n")
        return
    with reported_to_user():
        app.check_name(sys.argv[1:])
        app.cli(description="World models with verifiable rewards.")
    end_rank()
