"""`terrella new-world NAME`: a folder with a world that already passes `terrella check NAME`.

new_world("thermostat", Path.cwd())   # then edit thermostat/__init__.py
"""

from __future__ import annotations

import keyword
from pathlib import Path

from terrella.core.errors import ConfigError
from terrella.worlds import builtin_names

TEMPLATE = '''"""{title}: say in a line what this world is."""

from dataclasses import dataclass, replace

import numpy as np

from terrella.core.types import Outcome
from terrella.core.world import StateWorld
from terrella.verify.state import StateDiff


@dataclass(frozen=True)
class {title}State:
    """Everything that can change, and what must be known to predict it. Frozen and hashable."""

    level: int
    target: int


class {title}(StateWorld[{title}State]):
    """Move the level to the target."""

    rules = "Bring the level to the target. 'raise' adds one, 'lower' takes one, 'wait' does nothing."
    state_type = {title}State
    verifier = StateDiff.Config().build()

    def draw(self, rng: np.random.Generator) -> {title}State:
        """An initial state; a few hundred distinct ones at least, so that every split has some."""
        target = int(rng.integers(5, 60))
        return {title}State(level=target + int(rng.choice((-1, 1))) * int(rng.integers(1, 8)), target=target)

    def legal(self, state: {title}State) -> tuple[str, ...]:
        """The names of the actions."""
        return ("raise", "lower", "wait")

    def outcomes(self, state: {title}State, action: str) -> list[Outcome]:
        """All results of an action; several with probabilities, if chance plays a part."""
        after = replace(state, level=state.level + {{"raise": 1, "lower": -1, "wait": 0}}[action])
        won = after.level == after.target
        return [Outcome(state=after, reward=float(won), terminated=won, success=won)]
'''


def new_world(name: str, parent: Path) -> Path:
    """Write `parent/name/__init__.py`; refuse a name that is taken or cannot be a package."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(name, "cannot be the name of a world", "use lower_case_with_underscores")
    if name in builtin_names():
        raise ConfigError(name, "is a world that ships with terrella", "choose another name")
    folder = parent / name
    if folder.exists():
        raise ConfigError(str(folder), "exists already", "choose another name, or remove it")
    folder.mkdir(parents=True)
    title = "".join(part.capitalize() for part in name.split("_"))
    (folder / "__init__.py").write_text(TEMPLATE.format(title=title))
    return folder
