"""Any BrowserGym environment as a world: its tasks and verdicts, our trees and actions.

For users who have BrowserGym (`pip install browsergym-core` and a benchmark of its family, in an environment of their
own: it pins an old Playwright, which is why no extra of ours brings it). MiniWoB++ and WebArena run here without it,
and faster. The hooks that matter are `read_tree`, from its tree to ours, and `write_code`, from our actions to its.
    world = BrowserGym.Config(tasks=("browsergym/miniwob.click-test",), needs=("browsergym.miniwob",)).build()
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from terrella.browser.actions import SCROLL_PIXELS, Action, candidates, parse_action, quoted_texts
from terrella.core.errors import ConfigError, WorldError
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Tree
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.tree import Node, quote, write
from terrella.verify.tree_diff import TreeDiff

SILENT_ROLES = ("none", "generic", "InlineTextBox", "LineBreak")
"""Nodes that only hold others; their children stand where they stood."""
SHOWN_PROPERTIES = ("checked", "selected", "expanded", "disabled", "focused", "pressed", "required")
ROLES = {"RootWebArea": "page", "StaticText": "text", "LabelText": "text", "image": "img"}


class BrowserGym(World):
    """One task of a BrowserGym benchmark per episode."""

    name: ClassVar[str] = "browsergym"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Which environments, and how they are made."""

        max_steps: int = 30
        view: str = "tree"
        tasks: tuple[str, ...] = ()
        """Ids of Gymnasium environments, such as `browsergym/miniwob.click-test`."""
        needs: tuple[str, ...] = ()
        """Modules that register them, such as `browsergym.miniwob`."""
        seeds: int = 1000
        """Instances of each task."""
        options: Mapping[str, Any] = field(default_factory=dict[str, Any])
        """For `gymnasium.make`: `headless`, `pw_chromium_kwargs`, ..."""

        def __post_init__(self) -> None:
            """Refuse benchmarks that are not installed by naming what is missing."""
            super().__post_init__()
            for module in self.needs:
                try:
                    importlib.import_module(module)
                except ImportError as error:
                    wanted = f"pip install {module.replace('.', '-')}"
                    raise ConfigError("browsergym.needs", f"no module {error.name}", wanted) from error

    config: Config
    rules = "Do the task on the web page, then stop with the answer. Elements are named by the number in brackets."
    view_names = ("tree",)
    verifier = TreeDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Nothing is opened before `reset`."""
        super().__init__(config)
        if not config.tasks:
            raise ConfigError("browsergym.tasks", "no task is named", "such as browsergym/miniwob.click-test")
        self.task, self.task_seed, self.goal = config.tasks[0], 0, ""
        self.env: gymnasium.Env[Any, str] | None = None
        self.nodes: tuple[Node, ...] = ()
        self.names: dict[int, str] = {}
        """Our numbers -> BrowserGym's ids, which hold letters inside frames."""
        self.observation_space = Observations(Kind.TREE, Tree('task "Click the button."\npage "Test"'))
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    def _start(self, rng: np.random.Generator) -> Any:
        self.task = self.config.tasks[int(rng.integers(len(self.config.tasks)))]
        self.task_seed = int(rng.integers(self.config.seeds))
        return {"task": self.task, "seed": self.task_seed}

    def _draw_instance(self) -> None:
        super()._draw_instance()  # names it; the page is opened once the split is right
        self.close()
        self.env = gymnasium.make(self.task, disable_env_checker=True, **self.config.options)
        seen, _ = self.env.reset(seed=self.task_seed)
        self._read(seen)

    def _read(self, seen: Mapping[str, Any]) -> None:
        self.goal = str(seen["goal"])
        self.nodes, self.names = read_tree(seen["axtree_object"], seen.get("extra_element_properties", {}))

    def _observe(self) -> Observation:
        return Tree(write([Node(0, 0, "task", self.goal), *self.nodes]))

    def _act(self, action: str) -> Step:
        if self.env is None:
            raise WorldError(self.name, "has no page", "call reset first")
        read = parse_action(action)
        code = write_code(read, self.names) if read is not None else None
        if code is None:
            return Step(0.0, False, False, valid=False, effective=False)
        before = self.nodes
        seen, reward, terminated, truncated, _ = self.env.step(code)
        self._read(seen)
        worked = not seen.get("last_action_error")
        won = bool(terminated) and float(reward) > 0
        return Step(
            float(reward), bool(terminated), won, worked, worked and self.nodes != before, truncated=bool(truncated)
        )

    def actions(self) -> tuple[str, ...]:
        """What makes sense on this page; other well-formed actions are carried out as well."""
        return candidates(self.nodes, quoted_texts(self.goal), keys=("Enter",))

    def fork(self) -> Self:
        """Refuse: a web site cannot be copied, and nothing says that the same actions bring it to the same place."""
        raise WorldError(self.name, "cannot be forked", "use worlds that can: miniwob, webarena with the mini-arena")

    def close(self) -> None:
        """End its browser."""
        if self.env is not None:
            self.env.close()
        self.env = None


def read_tree(
    tree: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Node, ...], dict[int, str]]:
    """Chrome's accessibility nodes as ours, in reading order, and which element each of our numbers means."""
    nodes = {node["nodeId"]: node for node in tree["nodes"]}
    found: list[Node] = []
    names: dict[int, str] = {}

    def visit(node: Mapping[str, Any], depth: int) -> None:
        role, name = _value(node, "role"), " ".join(_value(node, "name").split())
        own = node.get("browsergym_id")
        hidden = own is not None and extra.get(own, {}).get("visibility", 1.0) == 0
        shown = not (role in SILENT_ROLES or node.get("ignored") or hidden or (role == "StaticText" and not name))
        if shown:
            number = len(names) + 1 if own is not None else 0
            if own is not None:
                names[number] = own
            found.append(Node(depth, number, ROLES.get(role, role), name, _properties(node)))
        for child in node.get("childIds", ()):
            if child in nodes:
                visit(nodes[child], depth + shown)

    if tree["nodes"]:
        visit(tree["nodes"][0], 0)
    return tuple(found), names


def _value(node: Mapping[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", ""))


def _properties(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    told = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
    flags = [(key, str(told[key]).lower()) for key in SHOWN_PROPERTIES if told.get(key) not in (None, False, "false")]
    value = _value(node, "value")
    return (*((("value", value),) if value else ()), *flags)


def write_code(action: Action, names: Mapping[int, str]) -> str | None:
    """The action in BrowserGym's high-level language; None for an element that is not there."""
    if action.verb in ("click", "type", "select") and action.id not in names:
        return None
    element = quote(names.get(action.id, ""))
    return {
        "click": f"click({element})",
        "type": f"fill({element}, {quote(action.text)})",
        "select": f"select_option({element}, {quote(action.text)})",
        "scroll": f"scroll(0, {SCROLL_PIXELS if action.text == 'down' else -SCROLL_PIXELS})",
        "press": f"keyboard_press({quote(action.text)})",
        "goto": f"goto({quote(action.text)})",
        "back": "go_back()",
        "stop": f"send_msg_to_user({quote(action.text)})",
    }[action.verb]
