"""`terrella new-world NAME`: write a package with a world that passes `terrella check NAME`.

The generated world is a small working example, meant to be edited.
    new_world("thermostat", Path.cwd())   # then edit thermostat/__init__.py
"""

from __future__ import annotations

import keyword
from pathlib import Path

from terrella.core.errors import ConfigError
from terrella.worlds import taken_name

TEMPLATE = '''"""{title}: describe this world in one line."""

from dataclasses import dataclass, replace

import numpy as np

from terrella.core.types import Outcome
from terrella.core.world import StateWorld
from terrella.verify.state import StateDiff


@dataclass(frozen=True)
class {title}State:
    """The full state: all that changes, and all that a prediction needs. Frozen and hashable."""

    level: int
    target: int


class {title}(StateWorld[{title}State]):
    """Move the level to the target."""

    rules = (
        "Bring the level to the target. "
        "'raise' adds one, 'lower' subtracts one, 'wait' does nothing."
    )
    state_type = {title}State
    verifier = StateDiff.Config().build()

    def draw(self, rng: np.random.Generator) -> {title}State:
        """Draw an initial state; have at least a few hundred, so that every split gets some."""
        target = int(rng.integers(5, 60))
        offset = int(rng.choice((-1, 1))) * int(rng.integers(1, 8))
        return {title}State(level=target + offset, target=target)

    def legal(self, state: {title}State) -> tuple[str, ...]:
        """Return the names of the legal actions."""
        return ("raise", "lower", "wait")

    def outcomes(self, state: {title}State, action: str) -> list[Outcome]:
        """Return all results of an action, with probabilities if the world is stochastic."""
        after = replace(state, level=state.level + {{"raise": 1, "lower": -1, "wait": 0}}[action])
        won = after.level == after.target
        return [Outcome(state=after, reward=float(won), terminated=won, success=won)]
'''


def new_world(name: str, parent: Path) -> Path:
    """Write `parent/name/__init__.py`; refuse a name that is taken or not a package name."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(name, "cannot be the name of a world", "use lower_case_with_underscores")
    if taken_name(name):
        raise ConfigError(name, taken_name(name), "choose another name")
    folder = parent / name
    if folder.exists():
        raise ConfigError(str(folder), "exists already", "choose another name, or remove it")
    folder.mkdir(parents=True)
    title = "".join(part.capitalize() for part in name.split("_"))
    (folder / "__init__.py").write_text(TEMPLATE.format(title=title))
    return folder
