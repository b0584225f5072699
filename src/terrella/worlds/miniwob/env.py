"""MiniWoB++ in real Chromium: 125 families of small web tasks with a programmatic verdict.

An instance is a family and a seed. The observation is the page's accessibility tree, with the task
as its first line; actions name elements by id (`browser/actions.py`); success is the page's own raw
reward. The page's clock stands still between actions, so an episode is a function of its seed and
its actions, and a browser that is killed in mid-episode is replaced and brought back to the same
page. The hook that matters is `_act`.
    world = MiniWob.Config(families=("login-user",)).build()
    observation, _ = world.reset(seed=0)
    world.step(world.actions()[0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import gymnasium
import numpy as np

from terrella.browser.actions import candidates, execute_action, quoted_texts
from terrella.browser.host import BrowserLostError, BrowserSettings, browser_for
from terrella.browser.tab import Tab
from terrella.codecs.web_language import PLAIN_ACTIONS, Action, parse_action
from terrella.core.config import Local, Recorded
from terrella.core.errors import ConfigError, WorldError
from terrella.core.instances import instance_id
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Split, Tree, show_text
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.tree import Node, write
from terrella.verify.tree_diff import TreeDiff
from terrella.worlds.miniwob.families import family_names, held_out, html_folder
from terrella.worlds.miniwob.scripts import SCRIPTS, best_action
from terrella.worlds.miniwob.views import VIEWS, VOCABULARY

HOST = "miniwob.test"
TASK_AREA = (160, 210)
"""The size of every task, in pixels; MiniWoB++ shows counters beside it."""
START = (
    "terrellaAdvance(100); Math.seedrandom({seed!r}); core.EPISODE_MAX_TIME = 1e12; "
    "core.startEpisodeReal(); terrellaAdvance({wait})"
)
ACTION_FORMS = (
    f"{PLAIN_ACTIONS}N, type N text, select N option, scroll up, scroll down, press KEY, back, "
    "stop."
)
ADVANCE = "terrellaAdvance({wait}); [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


class Page(NamedTuple):
    """The exact state, for experts: the task and the whole tree."""

    family: str
    task: str
    nodes: tuple[Node, ...]


class MiniWob(World):
    """MiniWoB++ web tasks in real Chromium, one task per episode."""

    name: ClassVar[str] = "miniwob"
    reaches: ClassVar[str] = "Chromium"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The families, their split and the browser."""

        view: str = "compact"
        families: Recorded[tuple[str, ...]] = ()
        """Empty for all families that have an expert script; `("all",)` for all 125."""
        by: Literal["seed", "family"] = "seed"
        """What the test split holds out: seeds of every family, or whole families as well."""
        step_milliseconds: int = 1000
        """Time by which each action advances the page's clock."""
        reload: bool = True
        """Whether to load the page anew for each episode.

        False restarts it in place, as MiniWoB++'s own environment does.
        """
        seconds: float = 20.0
        """Time limit for one action; a browser that takes longer is killed."""
        browser: int = 0
        """Worlds with the same number share a browser process."""
        executable: Local[str] = ""
        """Path of Chromium; found automatically when empty."""

    config: Config
    rules = "Do the task on the web page. Elements are named by the number in brackets."
    view_names = tuple(VIEWS)
    verifier = TreeDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Find the pages and the browser, which starts with the first reset."""
        super().__init__(config)
        self.families = _chosen_families(config)
        self.host = browser_for(
            BrowserSettings(
                folders=((HOST, str(html_folder())),),
                number=config.browser,
                executable=config.executable,
                width=500,
                height=400,
            )
        )
        self.tab: Tab | None = None
        self.family = ""
        self.page_seed = 0
        self.page = Page("", "", ())
        self._history: list[Action] = []
        self.observation_space = Observations(
            Kind.TREE, Tree('[1] task "Click the button."\n[2] button "Ok"')
        )
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    # --- the instance -----------------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        names = held_out(self.split, self.families) if self.config.by == "family" else self.families
        if not names:
            raise WorldError(
                self.name,
                f"none of its families belongs to {self.split}",
                'use by="seed", or name more families',
            )
        self.family = names[int(rng.integers(len(names)))]
        self.page_seed = int(rng.integers(2**31))
        return {"family": self.family, "seed": self.page_seed}

    def start_of(self, seed: int, split: Split) -> str:
        """The page: some families draw a few, or one, whatever the seed."""
        observation, _ = self.reset(seed=seed, options={"split": split})
        return instance_id({"family": self.family, "page": show_text(observation)})

    def _draw_instance(self) -> None:
        super()._draw_instance()  # draws until the split is right; only then is the page opened
        self._history = []
        try:
            self._open()
        except BrowserLostError:
            self.tab = None
            self._open()

    def _open(self) -> None:
        """Open the instance's page at its start, in a live browser."""
        if self.tab is None or not self.tab.context.browser.is_connected():
            self.tab = self.host.tab()
            self.host.run(self.tab.freeze_clock(), self.config.seconds)
        self.host.run(self._begin(self.tab), self.config.seconds)

    async def _begin(self, tab: Tab) -> None:
        address = f"http://{HOST}/miniwob/{self.family}.html"
        if self.config.reload or tab.url != address:
            await tab.go(address)
        else:
            await tab.forget_ids()
        await tab.forget_history()  # `back` would open an earlier episode's page
        await tab.evaluate(
            START.format(seed=str(self.page_seed), wait=self.config.step_milliseconds)
        )
        await self._read(tab)

    async def _read(self, tab: Tab) -> None:
        rows = await tab.rows("body", task_query=True)
        nodes = tuple(
            Node(row.depth, row.id, row.role, row.name, tuple(row.properties.items()))
            for row in rows
        )
        task = next((node.name for node in nodes if node.role == "task"), "")
        self.page = Page(self.family, task, nodes)

    # --- one step ---------------------------------------------------------------------------------

    def _observe(self) -> Observation:
        return Tree(write(VIEWS[self.config.view](self.page.nodes)))

    def _act(self, action: str) -> Step:
        parsed = parse_action(action)
        if parsed is None or parsed.verb == "goto":
            return Step(0.0, False, False, valid=False, effective=False)
        if parsed.verb == "stop":
            return Step(0.0, True, False, valid=True, effective=False)
        before = self.page
        try:
            worked, done, raw_reward = self._execute(parsed)
        except BrowserLostError:
            self._recover(before)
            worked, done, raw_reward = self._execute(parsed)
        self._history.append(parsed)
        won = done and raw_reward > 0
        return Step(float(won), done, won, worked, worked and self.page != before)

    def _execute(self, action: Action) -> tuple[bool, bool, float]:
        """Run one action; returns whether it worked, the page's done flag and raw reward."""
        return self.host.run(self._execute_on(self._open_tab(), action), self.config.seconds)

    def _open_tab(self) -> Tab:
        if self.tab is None:
            raise WorldError(self.name, "has no page", "call reset first")
        return self.tab

    async def _execute_on(self, tab: Tab, action: Action) -> tuple[bool, bool, float]:
        worked = await execute_action(tab, action)
        done, raw_reward = await tab.evaluate(ADVANCE.format(wait=self.config.step_milliseconds))
        await self._read(tab)
        return worked, bool(done), float(raw_reward)

    def _recover(self, before: Page) -> None:
        """Replay the episode so far in a new browser; the page must come out the same."""
        self.tab = None
        self._open()
        for action in self._history:
            self._execute(action)
        if self.page != before:
            raise WorldError(
                self.name, "the browser was lost, and replaying the episode gave a different page"
            )

    # --- for experts and policies -----------------------------------------------------------------

    @property
    def state(self) -> Page:
        return self.page

    @property
    def instruction(self) -> str:
        """The rules and the action grammar; the task is part of the page."""
        return f"{self.rules}\n{ACTION_FORMS}"

    def actions(self) -> tuple[str, ...]:
        """Actions that make sense on this page; other well-formed actions work as well."""
        return legal(VIEWS[self.config.view](self.page.nodes))

    def vocabulary(self) -> tuple[str, ...]:
        """Roles, verbs and frequent words of tasks."""
        return VOCABULARY

    def expert(self, state: Page, steps_left: int, rng: np.random.Generator) -> str:
        """The next action of the family's script; WorldError for a family without one."""
        return best_action(state.family, state.task, state.nodes)

    def fork(self) -> Self:
        """Open a second page and replay the same actions on it."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._history:
            twin._execute(action)
        twin._history = list(self._history)
        twin.steps = self.steps
        twin._over = self._over
        return twin

    @property
    def steps_to_fork(self) -> int:
        return len(self._history)

    def html(self) -> str:
        """The page as HTML."""
        return self.host.run(self._open_tab().html(), self.config.seconds)

    def screenshot(self) -> bytes:
        """The task's area of the page as PNG, without the counters beside it."""
        taken = self._open_tab().screenshot(TASK_AREA, scale=2.0)
        return self.host.run(taken, self.config.seconds)

    def close(self) -> None:
        """Close the page; the browser is shared with other worlds and ends with the process."""
        if self.tab is not None and self.tab.context.browser.is_connected():
            self.host.run(self.tab.close(), self.config.seconds)
        self.tab = None


def _chosen_families(config: MiniWob.Config) -> tuple[str, ...]:
    known = family_names()
    if config.families == ("all",):
        return known
    for name in config.families:
        if name not in known:
            raise ConfigError(
                "miniwob.families",
                f"no family {name!r}",
                f"there are {len(known)}, such as {known[0]}",
            )
    return config.families or tuple(name for name in known if name in SCRIPTS)


def legal(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The candidate actions of a page.

    It is a pure function of the observation, so that it works for imagined pages as well.
    """
    task = next((node.name for node in nodes if node.role == "task"), "")
    return candidates(nodes, quoted_texts(task), keys=("Enter",))
