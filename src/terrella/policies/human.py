"""A person at the keyboard, used by `terrella play`.

Actions are entered by name, unique prefix, number or arrow key.
    Human.Config().build()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.console import Console

from terrella.core.config import Configurable
from terrella.core.types import Moment, show_text

ARROWS = {"\x1b[A": "Up", "\x1b[B": "Down", "\x1b[C": "Right", "\x1b[D": "Left"}
"""Escape sequences that terminals send for the arrow keys."""
MENU_SIZE = 12
"""Actions listed in the prompt; the others can still be entered."""


class PlayerLeftError(EOFError):
    """The player closed the input or typed quit."""


class Human(Configurable):
    """Asks the player until they enter a legal action (any text in a free-text world)."""

    name = "human"
    reaches: ClassVar[str] = "the keyboard"

    def __init__(
        self, config: Any, ask: Callable[[str], str] = input, console: Console | None = None
    ) -> None:
        """Tests replace `ask` (reads a line) and `console` (shows the observation)."""
        super().__init__(config)
        self.ask = ask
        self.console = console or Console()

    def act(self, moment: Moment) -> str:
        self.console.print(show_text(moment.observation), markup=False, highlight=False)
        listed = moment.actions[:MENU_SIZE]
        menu = "  ".join(f"{number}={name}" for number, name in enumerate(listed, 1))
        hidden = len(moment.actions) - len(listed)
        more = f"  ... {hidden} more" if hidden else ""
        while True:
            typed = self.ask(f"{menu}{more}  q=quit ({moment.steps_left} left) > ").strip()
            if typed in ("q", "quit"):
                raise PlayerLeftError("the player left")
            chosen = choose(typed, moment.actions)
            if chosen is not None:
                return chosen
            self.console.print(
                f"no action {typed!r}; type a name, its beginning or its number", markup=False
            )


def choose(typed: str, actions: Sequence[str]) -> str | None:
    """The action that the input stands for, or None; without a list, any text but the empty one."""
    typed = ARROWS.get(typed, typed)
    if not actions:
        return typed or None
    if typed in actions:
        return typed
    if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(actions):
        return actions[int(typed) - 1]
    matches = [name for name in actions if typed and name.lower().startswith(typed.lower())]
    return matches[0] if len(matches) == 1 else None
