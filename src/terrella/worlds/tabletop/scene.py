"""The table of our own: a hand that moves, a block that can be pushed, a goal. Physics and pictures by MuJoCo.

Shadows and multisampling are off before the first picture: a software renderer then draws hundreds of frames a second,
and a few otherwise. The hook is `Scene`, which a Meta-World task also is.
    scene = Table("push", size=64); scene.start(rng); scene.move(np.array([1.0, 0.0])); scene.picture()
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import threading
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import MissingExtraError

Vector = NDArray[np.float64]
Picture = NDArray[np.uint8]

REACH_WITHIN, PUSH_WITHIN = 0.055, 0.06
"""Metres from the goal at which a task is done."""
SUBSTEPS, LOOK_EVERY, SPEED = 20, 5, 0.3
"""Physics steps of 0.01 s in one action, how often the edge is looked at, and full speed (m/s): 6 cm an action."""
EDGE = 0.24
"""The hand does not leave the square of this half width."""

XML = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0" integrator="implicitfast"/>
  <visual>
    <quality shadowsize="1" offsamples="0"/><global offwidth="256" offheight="256"/>
    <headlight ambient=".45 .45 .45" diffuse=".35 .35 .35" specular="0 0 0"/>
  </visual>
  <worldbody>
    <light pos="0.3 -0.5 1.2" dir="-0.2 0.4 -1" diffuse=".35 .35 .35" specular="0 0 0" castshadow="false"/>
    <camera name="eye" pos="0 -0.40 0.56" xyaxes="1 0 0 0 0.82 0.57" fovy="48"/>
    <geom type="plane" size="2 2 .01" rgba=".80 .76 .68 1" contype="0" conaffinity="0"/>
    <body name="goal" mocap="true"><geom type="cylinder" size=".05 .002" rgba=".15 .65 .3 1" contype="0" conaffinity="0"/></body>
    <body name="block" pos="0 0 .03">
      <joint type="slide" axis="1 0 0" damping="2" frictionloss=".4" range="-.26 .26" limited="true"/>
      <joint type="slide" axis="0 1 0" damping="2" frictionloss=".4" range="-.26 .26" limited="true"/>
      <joint type="hinge" axis="0 0 1" damping=".01" frictionloss=".004"/>
      <geom type="box" size=".045 .045 .03" mass=".2" rgba=".85 .25 .2 1" friction=".4"/>
    </body>
    <body name="hand" pos="0 0 .05">
      <joint type="slide" axis="1 0 0" damping="1" name="hand_x"/><joint type="slide" axis="0 1 0" damping="1" name="hand_y"/>
      <geom type="capsule" fromto="0 0 -.025 0 0 .06" size=".025" mass=".5" rgba=".2 .3 .85 1" friction=".4"/>
    </body>
  </worldbody>
  <actuator><velocity joint="hand_x" kv="40"/><velocity joint="hand_y" kv="40"/></actuator>
</mujoco>
"""  # noqa: E501


class Scene(Protocol):
    """What a tabletop world is played on."""

    action_size: int

    def start(self, rng: np.random.Generator) -> Any:
        """Draw an instance; returns its canonical key."""
        ...

    def move(self, action: Vector) -> None:
        """One action, each number in [-1, 1]."""
        ...

    def succeeded(self) -> bool:
        """Whether the task is done, by the simulator's own state."""
        ...

    def picture(self) -> Picture:
        """What the camera sees: (height, width, 3)."""
        ...

    def expert(self) -> Vector:
        """What the script that knows the state would do."""
        ...

    def save(self) -> Vector:
        """The whole simulator state."""
        ...

    def restore(self, saved: Vector) -> None:
        """Back to a saved state."""
        ...


@functools.cache
def mujoco_module() -> Any:
    """MuJoCo, told to draw without a window; the error says how to install it."""
    if importlib.util.find_spec("mujoco") is None:
        raise MissingExtraError("video", "the tabletop's physics and pictures")
    os.environ.setdefault("MUJOCO_GL", "egl")  # read at import; osmesa draws as fast where there is no EGL
    os.environ.setdefault("LP_NUM_THREADS", "0")  # a software renderer's own threads cost more than such pictures
    if importlib.util.find_spec("triton") is not None:
        # Triton and Mesa each bring an LLVM. Mesa's second is fine; Triton's second (torch imports it late) crashes.
        importlib.import_module("triton")
    try:
        import mujoco
    except (ImportError, AttributeError) as error:  # PyOpenGL's way of saying that a library is not there
        how = f"MUJOCO_GL={os.environ['MUJOCO_GL']}"
        raise MissingExtraError(
            "video", f"pictures ({how}: {error}; apt-get install libegl1, or another MUJOCO_GL)"
        ) from error
    return mujoco


def renderer(model: Any, size: int) -> Any:
    """Draws twice as large as the picture will be; closed before the interpreter takes OpenGL apart."""
    made = mujoco_module().Renderer(model, 2 * size, 2 * size)
    atexit.register(made.close)
    return made


def smooth(drawn: Picture) -> Picture:
    """Half the size, each pixel a mean of four: edges without multisampling, which software renderers pay dearly."""
    height, width, _ = drawn.shape
    blocks = drawn.reshape(height // 2, 2, width // 2, 2, 3).astype(np.uint16)
    halved: Picture = ((blocks.sum(axis=(1, 3)) + 2) // 4).astype(np.uint8)
    return halved


@functools.lru_cache(maxsize=8)
def _table_renderer(size: int, thread: int) -> Any:
    """One per thread for all tables: OpenGL contexts belong to the thread that made them, and are few."""
    return renderer(_table_model(), size)


@functools.cache
def _table_model() -> Any:
    return mujoco_module().MjModel.from_xml_string(XML)


class Table:
    """See the module's docstring."""

    action_size = 2

    def __init__(self, task: Literal["push", "reach"], size: int) -> None:
        """All tables share one model; each has data of its own."""
        self.mujoco, self.model, self.task, self.size = mujoco_module(), _table_model(), task, size
        self.data = self.mujoco.MjData(self.model)

    def start(self, rng: np.random.Generator) -> list[float]:
        """Hand, block and goal somewhere, not upon each other; numbers of three decimals name the instance."""
        while True:
            hand, block, goal = (rng.uniform(-limit, limit, size=2).round(3) for limit in (0.2, 0.13, 0.19))
            apart = (np.linalg.norm(a - b) for a, b in ((hand, block), (hand, goal), (block, goal)))
            if all(distance > 0.12 for distance in apart):
                break
        turn = round(float(rng.uniform(-0.7, 0.7)), 3)
        self.mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = [*block, turn, *hand]
        self.data.mocap_pos[0] = [*goal, 0.003]
        self.mujoco.mj_forward(self.model, self.data)
        return [*map(float, hand), *map(float, block), *map(float, goal), turn]

    @property
    def hand(self) -> Vector:
        """Where the hand is."""
        return np.array(self.data.qpos[3:5])

    @property
    def block(self) -> Vector:
        """Where the block is."""
        return np.array(self.data.qpos[:2])

    @property
    def goal(self) -> Vector:
        """Where the goal is."""
        return np.array(self.data.mocap_pos[0][:2])

    def move(self, action: Vector) -> None:
        """Full speed is 1. At the edge of the table the hand stops."""
        wanted = SPEED * np.clip(action, -1.0, 1.0)
        for _ in range(0, SUBSTEPS, LOOK_EVERY):
            ahead = self.hand + 0.01 * LOOK_EVERY * wanted
            self.data.ctrl[:] = np.where(np.abs(ahead) > EDGE, 0.0, wanted)
            self.mujoco.mj_step(self.model, self.data, nstep=LOOK_EVERY)

    def succeeded(self) -> bool:
        """The hand (reach) or the block (push) is at the goal."""
        if self.task == "reach":
            return bool(np.linalg.norm(self.hand - self.goal) < REACH_WITHIN)
        return bool(np.linalg.norm(self.block - self.goal) < PUSH_WITHIN)

    def picture(self) -> Picture:
        """The table from the front, above."""
        drawer = _table_renderer(self.size, threading.get_ident())
        drawer.update_scene(self.data, camera="eye")
        return smooth(drawer.render())

    def expert(self) -> Vector:
        """Straight to the goal (reach); behind the block, then through it (push)."""
        if self.task == "reach":
            return _towards(self.hand, self.goal)
        way = self.goal - self.block
        way = way / max(float(np.linalg.norm(way)), 1e-6)
        behind = self.block - 0.085 * way
        offset = self.hand - self.block
        along = float(offset @ way)
        beside = offset - along * way
        if along < -0.05 and float(np.linalg.norm(beside)) < 0.03:
            return _towards(self.hand, self.hand + 0.5 * way - 1.5 * beside)
        if along > -0.05 and float(np.linalg.norm(offset)) < 0.16:  # in front of the block: around it
            side = np.array([-way[1], way[0]]) * (1.0 if beside @ np.array([-way[1], way[0]]) >= 0 else -1.0)
            behind = self.block + 0.11 * side - 0.06 * way
        return _towards(self.hand, behind)

    def save(self) -> Vector:
        """Everything the next step depends on, solver warm start included."""
        kind = self.mujoco.mjtState.mjSTATE_INTEGRATION
        saved = np.empty(self.mujoco.mj_stateSize(self.model, kind))
        self.mujoco.mj_getState(self.model, self.data, saved, kind)
        return saved

    def restore(self, saved: Vector) -> None:
        """As it was."""
        self.mujoco.mj_setState(self.model, self.data, saved, self.mujoco.mjtState.mjSTATE_INTEGRATION)
        self.mujoco.mj_forward(self.model, self.data)
        self.mujoco.mj_setState(self.model, self.data, saved, self.mujoco.mjtState.mjSTATE_INTEGRATION)


def _towards(start: Vector, end: Vector) -> Vector:
    """The action that goes there in one step, or as far as one step goes."""
    wanted = (end - start) / (SPEED * 0.01 * SUBSTEPS)
    moved: Vector = wanted / max(1.0, float(np.abs(wanted).max()))
    return moved
