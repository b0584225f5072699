"""What all commands share: the app they register with, the console, and `--set`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console
from tyro.conf import UseAppendAction, arg

console = Console()
Assignments = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="A.B=C")]
app = tyro.extras.SubcommandApp()
