"""A Meta-World task as a scene: its simulator, its scripted expert, its success; our camera settings.

Needs `metaworld` (which pins mujoco 3.3.0). Shadows and multisampling are switched off before the first picture:
software renderers then draw twenty times as fast. One action lasts several of Meta-World's steps, so that a film of
sixteen frames shows a whole episode.
    scene = MetaWorldScene("drawer-open", size=64); scene.start(rng); scene.move(scene.expert())
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from typing import Any

import numpy as np

from terrella.core.errors import ConfigError, MissingExtraError
from terrella.worlds.tabletop.scene import Picture, Vector, mujoco_module, renderer, smooth

REPEAT = 6
"""Meta-World steps in one action."""
CAMERA = "corner2"
"""Its pictures come upside down."""


class MetaWorldScene:
    """See the module's docstring."""

    action_size = 4

    def __init__(self, task: str, size: int) -> None:
        """`task` is Meta-World's name without its version: drawer-open, push, reach."""
        self.mujoco = mujoco_module()
        if importlib.util.find_spec("metaworld") is None:
            raise MissingExtraError("metaworld", "Meta-World's tasks")
        import metaworld
        from metaworld.policies import ENV_POLICY_MAP

        name = f"{task}-v3"
        if name not in ENV_POLICY_MAP:
            raise ConfigError("task", f"Meta-World has no {name}", f"it has {', '.join(sorted(ENV_POLICY_MAP))}")
        self.name, self.size = name, size
        self.env: Any = metaworld.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"]()
        self.env.max_path_length = 10**9  # episodes are ended by the world, after its own number of steps
        self.policy = ENV_POLICY_MAP[name]()
        model = self.env.model
        model.light_castshadow[:] = 0
        model.vis.quality.shadowsize = 1
        model.vis.quality.offsamples = 0
        self.seen: Any = None
        self.done = False

    @functools.cached_property
    def drawers(self) -> dict[int, Any]:
        """A renderer for each thread: OpenGL contexts belong to threads."""
        return {}

    def start(self, rng: np.random.Generator) -> list[float]:
        """Meta-World draws goal and objects from its own generator, which gets a seed of ours."""
        seed = int(rng.integers(2**31))
        self.env.seed(seed)
        self.env._freeze_rand_vec, self.env.seeded_rand_vec = False, True  # from its generator, not numpy's global one
        self.seen, _ = self.env.reset()
        self.done = False
        return [round(float(number), 4) for number in self.seen]

    def move(self, action: Vector) -> None:
        """The same action, held for a few of Meta-World's steps; success at any of them is success."""
        for _ in range(REPEAT):
            self.seen, _, _, _, info = self.env.step(np.clip(action, -1.0, 1.0).astype(np.float32))
            self.done = self.done or bool(info["success"])

    def succeeded(self) -> bool:
        """Meta-World's own flag."""
        return self.done

    def picture(self) -> Picture:
        """From a corner of the table, upright."""
        drawer = self.drawers.setdefault(threading.get_ident(), None)
        if drawer is None:
            drawer = self.drawers[threading.get_ident()] = renderer(self.env.model, self.size)
        drawer.update_scene(self.env.data, camera=CAMERA)
        return smooth(drawer.render())[::-1].copy()

    def expert(self) -> Vector:
        """The scripted policy, which reads the state."""
        return np.clip(np.asarray(self.policy.get_action(self.seen), float), -1.0, 1.0)

    def save(self) -> Vector:
        """The simulator's state; Meta-World keeps more of it in Python, so a fork is played again instead."""
        kind = self.mujoco.mjtState.mjSTATE_INTEGRATION
        saved = np.empty(self.mujoco.mj_stateSize(self.env.model, kind))
        self.mujoco.mj_getState(self.env.model, self.env.data, saved, kind)
        return saved

    def restore(self, saved: Vector) -> None:
        """Refused: the goal and the last position live outside the simulator."""
        raise ConfigError("task", f"{self.name} cannot be forked", "use push or reach of our own table")
