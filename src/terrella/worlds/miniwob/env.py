"""MiniWoB++ in real Chromium: small web tasks with a programmatic verdict, one of 125 families and a seed per instance.

What is seen is the page's accessibility tree, the task its first line; actions go by element id (`browser/actions.py`);
success is the page's own raw reward. Time stands still between actions, so an episode is a function of its seed and
actions, and a browser that is killed mid-episode is replaced and brought to the same page. The hook: `_act`.
    world = MiniWob.Config(families=("login-user",)).build()
    seen, _ = world.reset(seed=0); world.step("click 6"); world.actions()  # what can be done here
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import gymnasium
import numpy as np

from terrella.browser.actions import Action, candidates, carry_out, parse_action, quoted_texts
from terrella.browser.host import BrowserLostError, BrowserSettings, browser_for
from terrella.browser.tab import Tab
from terrella.core.errors import ConfigError, WorldError
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Tree
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.tree import Node, write
from terrella.verify.tree_diff import TreeDiff
from terrella.worlds.miniwob.families import family_names, held_out, html_folder
from terrella.worlds.miniwob.scripts import SCRIPTS, best_action
from terrella.worlds.miniwob.views import VIEWS, WORDS

HOST = "miniwob.test"
START = (
    "terrellaAdvance(100); Math.seedrandom({seed!r}); core.EPISODE_MAX_TIME = 1e12; "
    "core.startEpisodeReal(); terrellaAdvance({wait})"
)
ACTION_FORMS = "Actions: click N, type N text, select N option, scroll up, scroll down, press KEY, back, stop."
ADVANCE = "terrellaAdvance({wait}); [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


class Page(NamedTuple):
    """The exact state, for teachers: which task, and the whole tree."""

    family: str
    task: str
    nodes: tuple[Node, ...]


class MiniWob(World):
    """One MiniWoB++ task per episode."""

    name: ClassVar[str] = "miniwob"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Which families, how they are split, which browser."""

        view: str = "compact"
        families: tuple[str, ...] = ()
        """Empty: all that have a script (a teacher); `all`: all 125."""
        by: Literal["seed", "family"] = "seed"
        """What test holds out: seeds of every family, or (also) whole families."""
        step_milliseconds: int = 1000
        """How far a page's clock moves with each action."""
        reload: bool = True
        """Load the page anew for each episode; False restarts it in place, as MiniWoB++'s own environment does."""
        seconds: float = 20.0
        """How long the browser may take for one action before it is killed."""
        browser: int = 0
        """Worlds with the same number share a browser process."""
        executable: str = ""
        """Chromium, when it is not where it usually is."""

    config: Config
    rules = "Do the task on the web page. Elements are named by the number in brackets."
    view_names = tuple(VIEWS)
    verifier = TreeDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Find the pages and the browser; it starts with the first reset."""
        super().__init__(config)
        known = family_names()
        self.families = (
            known if config.families == ("all",) else config.families or tuple(n for n in known if n in SCRIPTS)
        )
        unknown = [name for name in self.families if name not in known]
        if unknown:
            raise ConfigError(
                "miniwob.families", f"no family {unknown[0]!r}", f"there are {len(known)}, such as {known[0]}"
            )
        self.host = browser_for(BrowserSettings(
            folders=((HOST, str(html_folder())),), number=config.browser, executable=config.executable,
            width=500, height=400,
        ))  # fmt: skip
        self.tab: Tab | None = None
        self.family, self.page_seed, self.page = "", 0, Page("", "", ())
        self._taken: list[Action] = []
        self.observation_space = Observations(Kind.TREE, Tree('[1] task "Click the button."\n[2] button "Ok"'))
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    # --- the instance -------------------------------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        names = held_out(self.split, self.families) if self.config.by == "family" else self.families
        if not names:
            raise WorldError(
                self.name, f"none of its families belongs to {self.split}", "split by seed, or name more families"
            )
        self.family, self.page_seed = names[int(rng.integers(len(names)))], int(rng.integers(2**31))
        return {"family": self.family, "seed": self.page_seed}

    def _draw_instance(self) -> None:
        super()._draw_instance()  # names it; the page is opened once the split is right
        self._taken = []
        try:
            self._open()
        except BrowserLostError:
            self.tab = None
            self._open()

    def _open(self) -> None:
        """The instance's page at its start, in a live browser."""
        if self.tab is None or not self.tab.context.browser.is_connected():
            self.tab = self.host.tab()
            self.host.run(self.tab.still_clock(), self.config.seconds)
        self.host.run(self._begin(self.tab), self.config.seconds)

    async def _begin(self, tab: Tab) -> None:
        address = f"http://{HOST}/miniwob/{self.family}.html"
        if self.config.reload or tab.url != address:
            await tab.go(address)
        else:
            await tab.forget_ids()
        await tab.script(START.format(seed=str(self.page_seed), wait=self.config.step_milliseconds))
        await self._read(tab)

    async def _read(self, tab: Tab) -> None:
        rows = await tab.rows("body", task_query=True)
        nodes = tuple(
            Node(depth, number, role, name, tuple(props.items())) for depth, number, role, name, props in rows
        )
        task = next((node.name for node in nodes if node.role == "task"), "")
        self.page = Page(self.family, task, nodes)

    # --- one step -----------------------------------------------------------------------------------------------

    def _observe(self) -> Observation:
        return Tree(write(VIEWS[self.config.view](self.page.nodes)))

    def _act(self, action: str) -> Step:
        read = parse_action(action)
        if read is None or read.verb == "goto":
            return Step(0.0, False, False, valid=False, effective=False)
        if read.verb == "stop":
            return Step(0.0, True, False, valid=True, effective=False)
        before = self.page
        try:
            result = self._do(read)
        except BrowserLostError:
            self._recover(before)
            result = self._do(read)
        self._taken.append(read)
        worked, done, raw = result
        won = done and raw > 0
        return Step(float(won), done, won, worked, worked and self.page != before)

    def _do(self, action: Action) -> tuple[bool, bool, float]:
        if self.tab is None:
            raise WorldError(self.name, "has no page", "call reset first")
        return self.host.run(self._carry_out(self.tab, action), self.config.seconds)

    async def _carry_out(self, tab: Tab, action: Action) -> tuple[bool, bool, float]:
        worked = await carry_out(tab, action)
        done, raw = await tab.script(ADVANCE.format(wait=self.config.step_milliseconds))
        await self._read(tab)
        return worked, bool(done), float(raw)

    def _recover(self, before: Page) -> None:
        """A new browser at the same page: the same instance, the same actions. If it is not the same, say so."""
        self.tab = None
        self._open()
        for action in self._taken:
            self._do(action)
        if self.page != before:
            raise WorldError(self.name, "the page came back different after the browser was lost")

    # --- what teachers and policies ask ---------------------------------------------------------------------------

    @property
    def state(self) -> Page:
        """Family, task and the whole tree."""
        return self.page

    @property
    def instruction(self) -> str:
        """The rules and how actions are written; the task stands in the page."""
        return f"{self.rules}\n{ACTION_FORMS}"

    def actions(self) -> tuple[str, ...]:
        """What makes sense on this page; other well-formed actions are carried out as well."""
        return legal(VIEWS[self.config.view](self.page.nodes))

    def words(self) -> tuple[str, ...]:
        """Roles, verbs and the words tasks are made of."""
        return WORDS

    def expert(self, state: Page, steps_left: int, rng: np.random.Generator) -> str:
        """What the family's script does next; WorldError for a family without one."""
        return best_action(state.family, state.task, state.nodes)

    def fork(self) -> Self:
        """A second page brought to the same moment by the same actions."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._taken:
            twin._do(action)
        twin._taken, twin.steps, twin._over = list(self._taken), self.steps, self._over
        return twin

    def html(self) -> str:
        """The page as HTML, on demand."""
        return str(self._ask(lambda tab: tab.html()))

    def screenshot(self) -> bytes:
        """The page as PNG, on demand."""
        return bytes(self._ask(lambda tab: tab.screenshot()))

    def _ask(self, question: Any) -> Any:
        if self.tab is None:
            raise WorldError(self.name, "has no page", "call reset first")
        return self.host.run(question(self.tab), self.config.seconds)

    def close(self) -> None:
        """Give the page back; the browser stays for other worlds and ends with the process."""
        if self.tab is not None and self.tab.context.browser.is_connected():
            self.host.run(self.tab.close(), self.config.seconds)
        self.tab = None


def legal(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The candidate actions of a page: a pure function of what is seen, so it serves imagined pages as well."""
    task = next((node.name for node in nodes if node.role == "task"), "")
    return candidates(nodes, quoted_texts(task), keys=("Enter",))
