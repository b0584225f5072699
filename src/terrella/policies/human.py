"""A person at the keyboard: shows the observation, reads an action by name, number, unique beginning or arrow.

Human.Config().build()    # used by `terrella play`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from terrella.core.config import Configurable
from terrella.core.types import Moment, show_text

ARROWS = {"\x1b[A": "Up", "\x1b[B": "Down", "\x1b[C": "Right", "\x1b[D": "Left"}
"""What a terminal sends for its arrow keys."""


class PlayerLeftError(EOFError):
    """The person closed the input or typed quit."""


class Human(Configurable):
    """Asks the person until they name a legal action (any text where the world takes free text)."""

    name = "human"

    def __init__(self, config: Any, ask: Callable[[str], str] = input, console: Console | None = None) -> None:
        """`ask` and `console` are where the person is; tests put themselves there."""
        super().__init__(config)
        self.ask, self.console = ask, console or Console()

    def act(self, moment: Moment) -> str:
        """Show, ask, repeat until it is an action."""
        self.console.print(show_text(moment.observation), markup=False, highlight=False)
        menu = "  ".join(f"{i}={name}" for i, name in enumerate(moment.actions[:12], 1))
        more = f"  ... {len(moment.actions) - 12} more" if len(moment.actions) > 12 else ""
        while True:
            typed = self.ask(f"{menu}{more}  q=quit ({moment.steps_left} left) > ").strip()
            if typed in ("q", "quit"):
                raise PlayerLeftError("the player left")
            chosen = choose(typed, moment.actions)
            if chosen is not None:
                return chosen
            self.console.print(f"no action {typed!r}; type a name, its beginning or its number", markup=False)


def choose(typed: str, actions: Sequence[str]) -> str | None:
    """The action meant by what was typed, or None. Free-text worlds take anything but nothing."""
    typed = ARROWS.get(typed, typed)
    if not actions:
        return typed or None
    if typed in actions:
        return typed
    if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(actions):
        return actions[int(typed) - 1]
    close = [name for name in actions if typed and name.lower().startswith(typed.lower())]
    return close[0] if len(close) == 1 else None
