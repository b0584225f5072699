"""A world of web pages without a browser: two buttons in the right order; a bin ends it."""

from dataclasses import dataclass

import gymnasium

from terrella.core.spaces import Observations
from terrella.core.types import Kind, Tree
from terrella.core.world import Step, World
from terrella.verify.tree_diff import TreeDiff

BUTTONS = ("Left", "Right", "Bin")


class Buttons(World):
    """Press the buttons that the task names, in its order."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        max_steps: int = 4

    rules = "Do the task on the page."
    verifier = TreeDiff.Config().build()
    steps_taken = 0
    """Of all worlds of this class."""

    def __init__(self, config):
        super().__init__(config)
        self.order, self.pressed, self.number = BUTTONS[:2], (), 0
        self.observation_space = Observations(Kind.TREE, Tree('[1] task "x"'))
        self.action_space = gymnasium.spaces.Text(100)

    def _start(self, rng):
        self.order = BUTTONS[:2] if rng.random() < 0.5 else BUTTONS[1::-1]
        self.number, self.pressed = int(rng.integers(10**6)), ()
        return {"order": self.order, "number": self.number}

    def _observe(self):
        lines = [f'[1] task "Press {self.order[0]}, then {self.order[1]} ({self.number})."']
        for number, name in enumerate(BUTTONS, 2):
            pressed = " selected" if name in self.pressed else ""
            lines.append(f'[{number}] button "{name}"{pressed}')
        return Tree("\n".join(lines))

    def _act(self, action):
        Buttons.steps_taken += 1
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        if action in ("stop", "click 4"):
            return Step(0.0, True, False, valid=True, effective=False)
        self.pressed = (*self.pressed, BUTTONS[int(action[-1]) - 2])
        won = self.pressed == self.order
        return Step(float(won), won or len(self.pressed) == 2, won, valid=True, effective=True)

    def actions(self):
        return ("click 2", "click 3", "click 4", "stop")

    @property
    def state(self):
        return (self.order, self.pressed)

    def expert(self, state, steps_left, rng):
        order, pressed = state
        return f"click {BUTTONS.index(order[len(pressed)]) + 2}"
