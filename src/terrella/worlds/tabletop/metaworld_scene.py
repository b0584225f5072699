"""A Meta-World task as a scene: its simulator, scripted expert and success flag; our camera.

It needs `metaworld` (which pins mujoco 3.3.0). Shadows and multisampling are switched off before
the first frame, which makes software renderers twenty times as fast. One action lasts several of
Meta-World's steps, so that a video of sixteen frames shows a whole episode.
    scene = MetaWorldScene("drawer-open", size=64)
    scene.start(rng)
    scene.move(scene.expert())
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from typing import Any

import numpy as np

from terrella.core.errors import ConfigError, MissingExtraError
from terrella.worlds.tabletop.scene import Frame, Vector, downsample, make_renderer, mujoco_module

REPEAT = 6
"""Meta-World steps per action."""
CAMERA = "corner2"
"""This camera of Meta-World renders upside down."""


class MetaWorldScene:
    """A Meta-World task behind the `Scene` protocol."""

    action_size = 4

    def __init__(self, task: str, size: int) -> None:
        """`task` is Meta-World's name without the version: drawer-open, push, reach."""
        self.mujoco = mujoco_module()
        if importlib.util.find_spec("metaworld") is None:
            raise MissingExtraError("metaworld", "Meta-World's tasks")
        import metaworld
        from metaworld.policies import ENV_POLICY_MAP

        name = f"{task}-v3"
        if name not in ENV_POLICY_MAP:
            known = ", ".join(sorted(ENV_POLICY_MAP))
            raise ConfigError("task", f"Meta-World has no {name}", f"tasks: {known}")
        self.name = name
        self.size = size
        self.env: Any = metaworld.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"]()
        self.env.max_path_length = 10**9  # the world ends episodes by its own `max_steps`
        self.policy = ENV_POLICY_MAP[name]()
        self.observation: Any = None
        self.done = False

    def start(self, rng: np.random.Generator) -> list[float]:
        """Draw an instance: Meta-World's own generator gets a seed from `rng`."""
        seed = int(rng.integers(2**31))
        self.env.seed(seed)
        # Draw from its own generator, not from numpy's global one.
        self.env._freeze_rand_vec = False
        self.env.seeded_rand_vec = True
        self.observation, _ = self.env.reset()
        self.done = False
        return [round(float(number), 4) for number in self.observation]

    def move(self, action: Vector) -> None:
        """Repeat the action for a few Meta-World steps; success in any of them counts."""
        clipped = np.clip(action, -1.0, 1.0).astype(np.float32)
        for _ in range(REPEAT):
            self.observation, _, _, _, info = self.env.step(clipped)
            self.done = self.done or bool(info["success"])

    def succeeded(self) -> bool:
        """Meta-World's own success flag."""
        return self.done

    def render(self) -> Frame:
        """The table from a corner, upright."""
        renderer = _renderer(self.env.fullpath, self.size, threading.get_ident())
        renderer.update_scene(self.env.data, camera=CAMERA)
        return downsample(renderer.render())[::-1].copy()

    def expert(self) -> Vector:
        """The action of the scripted policy, which reads the state."""
        return np.clip(np.asarray(self.policy.get_action(self.observation), float), -1.0, 1.0)

    def save(self) -> Vector:
        """The simulator's state, without the part that Meta-World keeps in Python."""
        kind = self.mujoco.mjtState.mjSTATE_INTEGRATION
        saved = np.empty(self.mujoco.mj_stateSize(self.env.model, kind))
        self.mujoco.mj_getState(self.env.model, self.env.data, saved, kind)
        return saved

    def restore(self, saved: Vector) -> None:
        """Not supported: the goal and the last position are not part of the simulator's state."""
        raise ConfigError("task", f"{self.name} cannot be forked", "use the tasks push or reach")


@functools.lru_cache(maxsize=8)
def _renderer(path: str, size: int, thread: int) -> Any:
    """One renderer per thread for all scenes of a task: its meshes and textures fill 90 MB.

    It has a model of its own. The scenes' models differ in where bodies and sites are, and that is
    drawn from each scene's data.
    """
    model = mujoco_module().MjModel.from_xml_path(path)
    model.light_castshadow[:] = 0
    model.vis.quality.shadowsize = 1
    model.vis.quality.offsamples = 0
    return make_renderer(model, size)
