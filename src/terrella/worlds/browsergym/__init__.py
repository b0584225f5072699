"""Any BrowserGym environment as a world: its tasks and rewards, our trees and actions.

It is meant for users who have BrowserGym (`pip install browsergym-core` and one of its benchmarks)
in a separate Python environment: BrowserGym pins an old Playwright, so none of our extras installs
it. MiniWoB++ and WebArena run without it, and faster. The hooks that matter are `read_tree`, which
converts its trees to ours, and `write_code`, which converts our actions to its code.
    tasks, needs = ("browsergym/miniwob.click-test",), ("browsergym.miniwob",)
    world = BrowserGym.Config(tasks=tasks, needs=needs).build()
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from terrella.browser.actions import SCROLL_PIXELS, candidates, quoted_texts
from terrella.codecs.web_language import Action, parse_action
from terrella.core.config import Local
from terrella.core.errors import ConfigError, WorldError
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Tree
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.tree import Node, quote, write
from terrella.verify.tree_diff import TreeDiff

SILENT_ROLES = ("none", "generic", "InlineTextBox", "LineBreak")
"""Roles without meaning of their own; such nodes are replaced by their children."""
SHOWN_PROPERTIES = ("checked", "selected", "expanded", "disabled", "focused", "pressed", "required")
ROLES = {"RootWebArea": "page", "StaticText": "text", "LabelText": "text", "image": "img"}


class BrowserGym(World):
    """Tasks of BrowserGym benchmarks, one task per episode."""

    name: ClassVar[str] = "browsergym"
    reaches: ClassVar[str] = "BrowserGym's browser"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The environments, and how to create them."""

        max_steps: int = 30
        view: str = "tree"
        tasks: Local[tuple[str, ...]] = ()
        """Ids of Gymnasium environments, such as `browsergym/miniwob.click-test`."""
        needs: Local[tuple[str, ...]] = ()
        """Modules that register them, such as `browsergym.miniwob`."""
        seeds: int = 1000
        """Number of instances of each task."""
        options: Local[Mapping[str, Any]] = field(default_factory=dict[str, Any])
        """Keyword arguments of `gymnasium.make`: `headless`, `pw_chromium_kwargs`, ..."""

        def __post_init__(self) -> None:
            """Refuse ids by which Gymnasium would import a module: `needs` names those."""
            super().__post_init__()
            for task in self.tasks:
                if ":" in task:
                    raise ConfigError(
                        "browsergym.tasks", f"{task!r} names a module", "name it in `needs`"
                    )

    config: Config
    rules = (
        "Do the task on the web page, then stop with the answer. "
        "Elements are named by the number in brackets."
    )
    view_names = ("tree",)
    verifier = TreeDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Import the benchmarks; the environment is created by `reset`."""
        super().__init__(config)
        for module in config.needs:
            _import_benchmark(module)
        if not config.tasks:
            raise ConfigError(
                "browsergym.tasks", "no task is named", "for example browsergym/miniwob.click-test"
            )
        self.task = config.tasks[0]
        self.task_seed = 0
        self.goal = ""
        self.env: gymnasium.Env[Any, str] | None = None
        self.nodes: tuple[Node, ...] = ()
        self.element_ids: dict[int, str] = {}
        """Our numbers -> BrowserGym's ids, which contain letters inside frames."""
        self.observation_space = Observations(
            Kind.TREE, Tree('task "Click the button."\npage "Test"')
        )
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    def _start(self, rng: np.random.Generator) -> Any:
        self.task = self.config.tasks[int(rng.integers(len(self.config.tasks)))]
        self.task_seed = int(rng.integers(self.config.seeds))
        return {"task": self.task, "seed": self.task_seed}

    def _draw_instance(self) -> None:
        super()._draw_instance()  # draws until the split is right; only then is the page opened
        self.close()
        self.env = gymnasium.make(self.task, disable_env_checker=True, **self.config.options)
        native, _ = self.env.reset(seed=self.task_seed)
        self._read(native)

    def _read(self, native: Mapping[str, Any]) -> None:
        self.goal = str(native["goal"])
        self.nodes, self.element_ids = read_tree(
            native["axtree_object"], native.get("extra_element_properties", {})
        )

    def _observe(self) -> Observation:
        return Tree(write([Node(0, 0, "task", self.goal), *self.nodes]))

    def _act(self, action: str) -> Step:
        if self.env is None:
            raise WorldError(self.name, "has no page", "call reset first")
        parsed = parse_action(action)
        code = write_code(parsed, self.element_ids) if parsed is not None else None
        if code is None:
            return Step(0.0, False, False, valid=False, effective=False)
        before = self.nodes
        native, reward, terminated, truncated, _ = self.env.step(code)
        self._read(native)
        worked = not native.get("last_action_error")
        won = bool(terminated) and float(reward) > 0
        return Step(
            float(reward),
            bool(terminated),
            won,
            worked,
            worked and self.nodes != before,
            truncated=bool(truncated),
        )

    def actions(self) -> tuple[str, ...]:
        """Actions that make sense on this page; other well-formed actions work as well."""
        return candidates(self.nodes, quoted_texts(self.goal), keys=("Enter",))

    def fork(self) -> Self:
        """Not supported.

        A web site cannot be copied, and replaying the same actions need not give the same page.
        """
        raise WorldError(
            self.name,
            "cannot be forked",
            "use a world that can: miniwob, or webarena with the mini-arena",
        )

    def close(self) -> None:
        """Close the environment and its browser."""
        if self.env is not None:
            self.env.close()
        self.env = None


def _import_benchmark(module: str) -> None:
    """Import what registers the tasks; the error for a missing one says how to install it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        remedy = f"pip install {module.replace('.', '-')}"
        raise ConfigError("browsergym.needs", f"no module {error.name}", remedy) from error


def read_tree(
    tree: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Node, ...], dict[int, str]]:
    """Convert Chrome's accessibility nodes to ours, in reading order.

    Also returns BrowserGym's element id for each of our numbers.
    """
    by_id = {node["nodeId"]: node for node in tree["nodes"]}
    nodes: list[Node] = []
    element_ids: dict[int, str] = {}

    def visit(node: Mapping[str, Any], depth: int) -> None:
        element_id = node.get("browsergym_id")
        shown = _is_shown(node, extra)
        if shown:
            number = 0
            if element_id is not None:
                number = len(element_ids) + 1
                element_ids[number] = element_id
            role = _value(node, "role")
            name = " ".join(_value(node, "name").split())
            nodes.append(Node(depth, number, ROLES.get(role, role), name, _properties(node)))
        for child in node.get("childIds", ()):
            if child in by_id:
                visit(by_id[child], depth + shown)

    if tree["nodes"]:
        visit(tree["nodes"][0], 0)
    return tuple(nodes), element_ids


def _is_shown(node: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> bool:
    role = _value(node, "role")
    if role in SILENT_ROLES or node.get("ignored"):
        return False
    if role == "StaticText" and not _value(node, "name").split():
        return False
    element_id = node.get("browsergym_id")
    return element_id is None or extra.get(element_id, {}).get("visibility", 1.0) != 0


def _value(node: Mapping[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", ""))


def _properties(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    values = {entry["name"]: entry["value"].get("value") for entry in node.get("properties", ())}
    properties = []
    content = _value(node, "value")
    if content:
        properties.append(("value", content))
    for key in SHOWN_PROPERTIES:
        if values.get(key) not in (None, False, "false"):
            properties.append((key, str(values[key]).lower()))
    return tuple(properties)


ELEMENT_VERBS = ("click", "right_click", "hover", "type", "select")


def write_code(action: Action, element_ids: Mapping[int, str]) -> str | None:
    """Write an action as BrowserGym code; None without one, or when its element does not exist."""
    if action.verb in ELEMENT_VERBS and action.id not in element_ids:
        return None
    element = quote(element_ids.get(action.id, ""))
    pixels = SCROLL_PIXELS if action.text == "down" else -SCROLL_PIXELS
    return {
        "click": f"click({element})",
        "type": f"fill({element}, {quote(action.text)})",
        "select": f"select_option({element}, {quote(action.text)})",
        "scroll": f"scroll(0, {pixels})",
        "press": f"keyboard_press({quote(action.text)})",
        "goto": f"goto({quote(action.text)})",
        "back": "go_back()",
        "forward": "go_forward()",
        "hover": f"hover({element})",
        "right_click": f"click({element}, button='right')",
        "wait": "noop(1000)",
        "stop": f"send_msg_to_user({quote(action.text)})",
    }.get(action.verb)
