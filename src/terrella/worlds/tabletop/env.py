"""A tabletop with a robot hand: observations are camera frames, actions are numbers.

The tasks `push` and `reach` use a small MuJoCo scene of our own (hundreds of frames per second).
Meta-World's tasks are named `metaworld/drawer-open` and so on. Success is read from the simulator's
state, never from pixels.
    world = Tabletop.Config(task="push").build()
    world.reset(seed=0)
    world.step("+1.00 -0.25")
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium
import numpy as np

from terrella.core.config import Configurable, Recorded
from terrella.core.errors import ConfigError
from terrella.core.spaces import Observations
from terrella.core.types import Frames, Kind, Observation
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.frames import FrameDistance
from terrella.worlds.tabletop.scene import Scene, Table, Vector

OWN_TASKS = ("push", "reach")
META_WORLD = "metaworld/"
LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def write_action(action: Sequence[float] | Vector) -> str:
    """Write numbers as the text of an action.

    They are signed, with two decimals, so that equal actions have equal texts.
    """
    clipped = [min(1.0, max(-1.0, float(number))) for number in action]
    return " ".join(f"{round(number, 2) + 0.0:+.2f}" for number in clipped)


def read_action(text: str, size: int) -> Vector | None:
    """Read the numbers of an action; None unless they are `size` finite numbers."""
    parts = text.split() if len(text) <= 16 * size else []
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    if len(numbers) != size or not all(map(math.isfinite, numbers)):
        return None
    return np.clip(np.array(numbers), -1.0, 1.0)


class Tabletop(World):
    """A robot hand on a table, seen by a camera: `push`, `reach` and Meta-World's tasks."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The task, the frame size, and how predicted frames are scored."""

        task: Recorded[str] = "push"
        size: int = 32
        """Width and height of a frame in pixels."""
        slip: float = 0.0
        """Standard deviation of the noise added to each number of an action."""
        distance: FrameDistance.Config = field(default_factory=FrameDistance.Config)
        max_steps: int = 16
        view: str = "camera"

        def __post_init__(self) -> None:
            """Reject unknown tasks."""
            super().__post_init__()
            if self.task not in OWN_TASKS and not self.task.startswith(META_WORLD):
                known = ", ".join((*OWN_TASKS, f"{META_WORLD}drawer-open", "..."))
                raise ConfigError("task", f"no task {self.task!r}", f"tasks: {known}")

    rules = "Move the hand: numbers between -1 and 1, separated by blanks, one for each direction."
    view_names = ("camera",)
    presets = {"reach": Config(task="reach")}
    config: Config

    @classmethod
    def preset(cls, name: str) -> Configurable.Config | None:
        """Also Meta-World's tasks: `tabletop:metaworld/drawer-open`."""
        return cls.Config(task=name) if name.startswith(META_WORLD) else super().preset(name)

    def __init__(self, config: Config) -> None:
        """Create the scene; frames are rendered on demand."""
        super().__init__(config)
        self.scene = _make_scene(config)
        self.verifier = config.distance.build()
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)
        self.observation_space = Observations(Kind.FRAMES, _blank(config.size))
        self._frames: Frames | None = None

    def _start(self, rng: np.random.Generator) -> Any:
        self._frames = None
        return self.scene.start(rng)

    def _observe(self) -> Observation:
        if self._frames is None:
            self._frames = Frames.of(self.scene.render()[None])
        return self._frames

    def _act(self, action: str) -> Step:
        numbers = read_action(action, self.scene.action_size)
        if numbers is None:
            return Step(0.0, False, False, valid=False, effective=False)
        if self.config.slip:
            numbers = numbers + self.config.slip * self.noise.standard_normal(len(numbers))
        before, self._frames = self._frames, None
        self.scene.move(numbers)
        done = self.scene.succeeded()
        return Step(float(done), done, done, valid=True, effective=self._observe() != before)

    def actions(self) -> tuple[str, ...]:
        """Empty, because an action consists of numbers."""
        return ()

    @property
    def state(self) -> Vector:
        """The simulator's whole state, for experts and checks."""
        return self.scene.save()

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The script's action in the current state."""
        return write_action(self.scene.expert())

    def proposals(self, state: Any) -> Sequence[str]:
        """The actions of the random policy: five speeds in each direction."""
        return _grid(self.scene.action_size)

    def fork(self) -> Self:
        """Create a second simulator in the same state."""
        saved = self.scene.save()
        twin = super().fork()
        twin.scene = _make_scene(self.config)
        twin.scene.start(np.random.default_rng(0))
        twin.scene.restore(saved)
        return twin


def _grid(size: int) -> list[str]:
    """All combinations of speeds in the plane; further numbers are -1, 0 or 1."""
    plane = list(itertools.product(LEVELS, LEVELS))
    rest = list(itertools.product((-1.0, 0.0, 1.0), repeat=size - 2))
    return [write_action((*first, *second)) for first in plane for second in rest]


def _make_scene(config: Tabletop.Config) -> Scene:
    if config.task in OWN_TASKS:
        return Table("push" if config.task == "push" else "reach", config.size)
    from terrella.worlds.tabletop.metaworld_scene import MetaWorldScene

    return MetaWorldScene(config.task.removeprefix(META_WORLD), config.size)


def _blank(size: int) -> Frames:
    return Frames.of(np.zeros((1, size, size, 3), np.uint8))
