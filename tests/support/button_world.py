"""A page with buttons, without a browser: tasks in words, actions in every web language.

`Press Ok.` is won by a click on that button. The world writes such tasks and checks them.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np

from terrella.codecs.web_language import parse_action
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Tree
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.core.written_tasks import Draft
from terrella.verify.tree import Node, write
from terrella.verify.tree_diff import TreeDiff

BUTTONS = ("Ok", "No", "Save", "Send")


class ButtonWorld(World):
    """Which button, and how often: one press is enough, another one loses a step."""

    name: ClassVar[str] = "buttons"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        max_steps: int = 3
        view: str = "tree"

    config: Config
    rules = "Do the task on the page."
    view_names = ("tree",)
    verifier = TreeDiff.Config().build()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.wanted, self.order = BUTTONS[0], BUTTONS
        self.pressed = ""
        self.observation_space = Observations(Kind.TREE, Tree('[1] task "Press Ok."'))
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    def _start(self, rng: np.random.Generator) -> Any:
        self.order = tuple(str(name) for name in rng.permutation(BUTTONS))
        self.wanted = str(rng.choice(BUTTONS[:2]))
        self.pressed = ""
        return [self.wanted, list(self.order)]

    def _observe(self) -> Observation:
        buttons = [Node(0, number, "button", name) for number, name in enumerate(self.order, 2)]
        said = [Node(0, 0, "text", f"You pressed {self.pressed}.")] if self.pressed else []
        return Tree(write([Node(0, 1, "task", f"Press {self.wanted}."), *buttons, *said]))

    def _act(self, action: str) -> Step:
        parsed = parse_action(action)
        if parsed is None or parsed.verb != "click" or not 2 <= parsed.id < 2 + len(self.order):
            return Step(0.0, False, False, valid=False, effective=False)
        self.pressed = self.order[parsed.id - 2]
        won = self.pressed == self.wanted
        return Step(float(won), won, won, valid=True, effective=True)

    def actions(self) -> tuple[str, ...]:
        return tuple(f"click {number}" for number in range(2, 2 + len(self.order)))

    @property
    def state(self) -> int:
        return self.order.index(self.wanted) + 2

    def expert(self, state: int, steps_left: int, rng: np.random.Generator) -> str:
        return f"click {state}"

    # --- tasks in words ---------------------------------------------------------------------------

    def known_instructions(self) -> Sequence[str]:
        return ("Press Ok.", "Press No.")

    def write_instructions(self, count: int, rng: np.random.Generator) -> list[str]:
        return [f"Press {rng.choice(BUTTONS)}." for _ in range(count)]

    def draft(self, instruction: str, like: str) -> Draft:
        match = re.fullmatch(r"Press (\w+)\.", instruction)
        if match is None or match[1] not in BUTTONS:
            return Draft(reason="no such button")
        return Draft(task=json.dumps({"wanted": match[1]}), checked=True)

    def _take(self, written: str) -> Any:
        self.wanted, self.order, self.pressed = json.loads(written)["wanted"], BUTTONS, ""
        return {"written": written}
