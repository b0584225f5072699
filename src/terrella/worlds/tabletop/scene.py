"""Our own table: a hand that moves, a block that can be pushed, a goal, all simulated by MuJoCo.

Shadows and multisampling are switched off before the first frame: a software renderer then draws
hundreds of frames per second instead of a few. The hook is `Scene`, which Meta-World tasks
implement as well.
    scene = Table("push", size=64)
    scene.start(rng)
    scene.move(np.array([1.0, 0.0]))
    scene.render()
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

from terrella.core.errors import MissingExtraError, MissingProgramError

Vector = NDArray[np.float64]
Frame = NDArray[np.uint8]

REACH_WITHIN = 0.055
"""Largest distance (m) between hand and goal at which `reach` is done."""
PUSH_WITHIN = 0.06
"""Largest distance (m) between block and goal at which `push` is done."""
TIMESTEP = 0.01
"""Seconds per physics step."""
SUBSTEPS = 20
"""Physics steps per action."""
EDGE_CHECK_STEPS = 5
"""Physics steps between two checks of the table's edge."""
SPEED = 0.3
"""Full speed in m/s, which is 6 cm per action."""
EDGE = 0.24
"""Half the width (m) of the square that the hand does not leave."""

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
    """The simulator behind a tabletop world."""

    action_size: int

    def start(self, rng: np.random.Generator) -> Any:
        """Draw an instance and return its canonical key."""
        ...

    def move(self, action: Vector) -> None:
        """Apply one action, each number in [-1, 1]."""
        ...

    def succeeded(self) -> bool:
        """Whether the simulator's state fulfils the task."""
        ...

    def render(self) -> Frame:
        """The camera's view: (height, width, 3)."""
        ...

    def expert(self) -> Vector:
        """The action of a script that reads the state."""
        ...

    def save(self) -> Vector:
        """The whole simulator state."""
        ...

    def restore(self, saved: Vector) -> None:
        """Return to a saved state."""
        ...


@functools.cache
def mujoco_module() -> Any:
    """Import MuJoCo for rendering without a window; the error says how to install it."""
    if importlib.util.find_spec("mujoco") is None:
        raise MissingExtraError("video", "the tabletop's physics and frames")
    # Without EGL, osmesa is as fast.
    chosen = "MUJOCO_GL" in os.environ
    os.environ.setdefault("MUJOCO_GL", "egl")
    # The threads of a software renderer cost more than frames of this size.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    if importlib.util.find_spec("triton") is not None:
        # Triton and Mesa each bring an LLVM. It works when Mesa's is loaded second; when Triton's
        # is (torch imports it late), the process crashes.
        importlib.import_module("triton")
    try:
        import mujoco

        if not chosen:
            # Read at import: somebody who imported MuJoCo first, for windows, got another backend.
            importlib.reload(importlib.import_module("mujoco.gl_context"))
    except (ImportError, AttributeError) as error:  # PyOpenGL's errors for a missing library
        backend = f"MUJOCO_GL={os.environ['MUJOCO_GL']}"
        remedy = "apt-get install libegl1, or libosmesa6 with MUJOCO_GL=osmesa"
        raise MissingProgramError("rendering", f"{backend}: {error}", remedy) from error
    return mujoco


def make_renderer(model: Any, size: int) -> Any:
    """Create a renderer at twice the size of a frame; `downsample` halves its output.

    It is closed at exit, before the interpreter tears down OpenGL.
    """
    drawn = model.vis.global_  # MuJoCo draws no larger picture than this
    drawn.offwidth = max(drawn.offwidth, 2 * size)
    drawn.offheight = max(drawn.offheight, 2 * size)
    renderer = mujoco_module().Renderer(model, 2 * size, 2 * size)
    atexit.register(renderer.close)
    return renderer


def downsample(rendered: Frame) -> Frame:
    """Halve the size; each pixel is the mean of four.

    This smooths edges without multisampling, which is slow in software renderers.
    """
    height, width, _ = rendered.shape
    blocks = rendered.reshape(height // 2, 2, width // 2, 2, 3).astype(np.uint16)
    halved: Frame = ((blocks.sum(axis=(1, 3)) + 2) // 4).astype(np.uint8)
    return halved


@functools.lru_cache(maxsize=8)
def _table_renderer(size: int, thread: int) -> Any:
    """One renderer per thread, shared by all tables.

    OpenGL contexts belong to the thread that created them, and their number is limited.
    """
    return make_renderer(_table_model(), size)


@functools.cache
def _table_model() -> Any:
    return mujoco_module().MjModel.from_xml_string(XML)


class Table:
    """Our own scene for the tasks `push` and `reach`."""

    action_size = 2

    def __init__(self, task: Literal["push", "reach"], size: int) -> None:
        """All tables share one model; each has its own data."""
        self.mujoco = mujoco_module()
        self.model = _table_model()
        self.task = task
        self.size = size
        self.data = self.mujoco.MjData(self.model)

    def start(self, rng: np.random.Generator) -> list[float]:
        """Place hand, block and goal at random, apart from each other.

        The key of the instance is their coordinates, rounded to three decimals.
        """
        while True:
            hand = rng.uniform(-0.2, 0.2, size=2).round(3)
            block = rng.uniform(-0.13, 0.13, size=2).round(3)
            goal = rng.uniform(-0.19, 0.19, size=2).round(3)
            gaps = (hand - block, hand - goal, block - goal)
            if all(np.linalg.norm(gap) > 0.12 for gap in gaps):
                break
        turn = round(float(rng.uniform(-0.7, 0.7)), 3)
        self.mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = [*block, turn, *hand]
        self.data.mocap_pos[0] = [*goal, 0.003]
        self.mujoco.mj_forward(self.model, self.data)
        return [*map(float, hand), *map(float, block), *map(float, goal), turn]

    @property
    def hand(self) -> Vector:
        return np.array(self.data.qpos[3:5])

    @property
    def block(self) -> Vector:
        return np.array(self.data.qpos[:2])

    @property
    def goal(self) -> Vector:
        return np.array(self.data.mocap_pos[0][:2])

    def move(self, action: Vector) -> None:
        """Move the hand; 1 is full speed. The hand stops at the edge of the table."""
        velocity = SPEED * np.clip(action, -1.0, 1.0)
        for _ in range(0, SUBSTEPS, EDGE_CHECK_STEPS):
            ahead = self.hand + TIMESTEP * EDGE_CHECK_STEPS * velocity
            self.data.ctrl[:] = np.where(np.abs(ahead) > EDGE, 0.0, velocity)
            self.mujoco.mj_step(self.model, self.data, nstep=EDGE_CHECK_STEPS)

    def succeeded(self) -> bool:
        """Whether the hand (`reach`) or the block (`push`) is at the goal."""
        if self.task == "reach":
            return bool(np.linalg.norm(self.hand - self.goal) < REACH_WITHIN)
        return bool(np.linalg.norm(self.block - self.goal) < PUSH_WITHIN)

    def render(self) -> Frame:
        """The table from above, seen from the front."""
        renderer = _table_renderer(self.size, threading.get_ident())
        renderer.update_scene(self.data, camera="eye")
        return downsample(renderer.render())

    def expert(self) -> Vector:
        """Straight to the goal (`reach`), or behind the block and then through it (`push`)."""
        if self.task == "reach":
            return _towards(self.hand, self.goal)
        way = self.goal - self.block
        way = way / max(float(np.linalg.norm(way)), 1e-6)
        target = self.block - 0.085 * way
        offset = self.hand - self.block
        along = float(offset @ way)
        beside = offset - along * way
        if along < -0.05 and float(np.linalg.norm(beside)) < 0.03:
            return _towards(self.hand, self.hand + 0.5 * way - 1.5 * beside)
        if along > -0.05 and float(np.linalg.norm(offset)) < 0.16:  # in front of the block
            side = np.array([-way[1], way[0]])
            if beside @ side < 0:
                side = -side
            target = self.block + 0.11 * side - 0.06 * way  # go around it
        return _towards(self.hand, target)

    def save(self) -> Vector:
        """Everything on which the next step depends, including the solver's warm start."""
        kind = self.mujoco.mjtState.mjSTATE_INTEGRATION
        saved = np.empty(self.mujoco.mj_stateSize(self.model, kind))
        self.mujoco.mj_getState(self.model, self.data, saved, kind)
        return saved

    def restore(self, saved: Vector) -> None:
        kind = self.mujoco.mjtState.mjSTATE_INTEGRATION
        self.mujoco.mj_setState(self.model, self.data, saved, kind)
        self.mujoco.mj_forward(self.model, self.data)  # computes derived values
        # Once more, so that nothing that `mj_forward` writes is left in the restored state.
        self.mujoco.mj_setState(self.model, self.data, saved, kind)


def _towards(start: Vector, end: Vector) -> Vector:
    """The action that reaches `end` in one step, or goes as far as one step can."""
    wanted = (end - start) / (SPEED * TIMESTEP * SUBSTEPS)
    limited: Vector = wanted / max(1.0, float(np.abs(wanted).max()))
    return limited
