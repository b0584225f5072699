"""WebArena tasks in real Chromium, on the mini-arena or on sites of your own.

Each episode gets a fresh browser context, logged in as its task wants; the mini-arena's databases are put back first.
The agent sees the page's tree below the task, acts by element id, and ends with `stop ANSWER`; then the task's own
checks look at a page of their own. The hook that matters is `_finish`.
    world = WebArena.Config(tasks="mini").build(); seen, _ = world.reset(seed=0); world.step("click 12")
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from terrella.browser.actions import candidates, carry_out, parse_action, quoted_texts
from terrella.browser.events import NetworkEvent
from terrella.browser.guard import Allow
from terrella.browser.host import BrowserHost, BrowserSettings, browser_for
from terrella.browser.tab import Tab
from terrella.core.config import Configurable
from terrella.core.errors import WorldError
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Transition, Tree, Verdict
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.verify.tree import Node, write
from terrella.verify.tree_diff import TreeDiff
from terrella.worlds.webarena.arena import SITES, Arena
from terrella.worlds.webarena.evaluators import Ending, Judge, evaluate
from terrella.worlds.webarena.oracle import next_action
from terrella.worlds.webarena.tasks import WebTask, load_tasks

SHORT = 160
FORMS = "Actions: click N, type N text, select N option, scroll up|down, press KEY, back, goto URL, stop ANSWER."


class Moment(NamedTuple):
    """The exact state, for teachers: the task, the page, and what was done so far."""

    task: WebTask
    nodes: tuple[Node, ...]
    done: int


class Probe:
    """A page for the checks, in the agent's context but not the agent's page."""

    def __init__(self, host: BrowserHost, tab: Tab, seconds: float) -> None:
        """`tab` is the checks' own."""
        self.host, self.tab, self.seconds = host, tab, seconds

    def open(self, url: str) -> None:
        """Load and settle."""
        self.host.run(self._open(url), self.seconds)

    async def _open(self, url: str) -> None:
        await self.tab.go(url)
        await self.tab.settle()

    def read(self, expression: str) -> str:
        """The expression's value, out of reach of the page's own scripts; empty when it finds nothing."""
        try:
            found = self.host.run(self.tab.look(expression), self.seconds)
        except WorldError:  # the locator found nothing on this page: that is an answer
            return ""
        return "" if found is None else str(found)

    def content(self) -> str:
        """The document."""
        return self.host.run(self.tab.html(), self.seconds)


class WebArena(World):
    """One web task per episode."""

    name: ClassVar[str] = "webarena"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Which tasks, where their sites are, which browser."""

        max_steps: int = 30
        view: str = "tree"
        tasks: str = "mini"
        """mini, webarena, webarena_lite, webarena_verified, or a JSON file."""
        only: tuple[int, ...] = ()
        """Numbers of the tasks to draw from; empty for all."""
        addresses: Mapping[str, str] = field(default_factory=dict[str, str])
        """Placeholder -> address of your own sites; empty for the mini-arena."""
        cookies: str = ""
        """A folder of Playwright storage states (`<site>_state.json`) for your own sites."""
        seconds: float = 60.0
        browser: int = 0
        executable: str = ""

    config: Config
    rules = "Do the task on the web site, then stop with the answer. Elements are named by the number in brackets."
    view_names = ("tree",)
    verifier = TreeDiff.Config().build()
    presets: ClassVar[Mapping[str, Configurable.Config]] = {}

    def __init__(self, config: Config, judge: Judge | None = None) -> None:
        """Read the tasks; the mini-arena must be up."""
        super().__init__(config)
        tasks = load_tasks(config.tasks)
        self.tasks = [task for task in tasks if not config.only or task.task_id in config.only]
        self.judge, self.arena = judge, None if config.addresses else Arena()
        allow = _allowed(config.addresses)
        if self.arena is not None:
            self.arena.require({site.name for site in SITES})
            allow = self.arena.allow()
        self.host = browser_for(BrowserSettings(allow=allow, number=config.browser, executable=config.executable))
        self.tab: Tab | None = None
        self.task = self.tasks[0]
        self.nodes: tuple[Node, ...] = ()
        self.events: list[NetworkEvent] = []
        self.verdict: Verdict | None = None
        self.observation_space = Observations(Kind.TREE, Tree('task "Find the price."\n[1] link "Shop"'))
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    @property
    def places(self) -> Mapping[str, str]:
        """Placeholder -> address."""
        return self.arena.addresses() if self.arena is not None else self.config.addresses

    # --- the instance -----------------------------------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        self.task = self.tasks[int(rng.integers(len(self.tasks)))]
        return {"tasks": self.config.tasks, "task": self.task.task_id}

    def _draw_instance(self) -> None:
        super()._draw_instance()
        self.begin(self.task)

    def begin(self, task: WebTask) -> None:
        """Put the sites back and open the task's first page in a context of its own."""
        self.task, self.events, self.verdict = task, [], None
        if self.arena is not None:
            self.arena.reset()
        self.close()
        self.tab = self.host.tab(self._login(task))
        self.tab.record = self.events.append
        self.host.run(self._open(self.tab), self.config.seconds)

    def _login(self, task: WebTask) -> dict[str, Any] | str | None:
        if not task.require_login:
            return None
        if self.arena is not None:
            fields = {"expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
            return {"cookies": [{**one, **fields} for one in self.arena.cookies(list(task.sites))], "origins": []}
        return f"{self.config.cookies}/{'.'.join(task.sites)}_state.json" if self.config.cookies else None

    async def _open(self, tab: Tab) -> None:
        for number, url in enumerate(self.task.start_urls):
            if number:
                await tab.context.new_page()
            for name, address in sorted(self.places.items(), key=lambda pair: -len(pair[0])):
                url = url.replace(name, address)
            await tab.go(url)
        await tab.settle()
        await self._read(tab)

    async def _read(self, tab: Tab) -> None:
        rows = await tab.rows()
        self.nodes = tuple(Node(d, i, role, name[:SHORT], tuple(props.items())) for d, i, role, name, props in rows)

    # --- one step -----------------------------------------------------------------------------------------------

    def _observe(self) -> Observation:
        address = self.tab.url if self.tab is not None else ""
        head = [Node(0, 0, "task", self.task.intent), Node(0, 0, "page", address)]
        return Tree(write([*head, *self.nodes]))

    def _act(self, action: str) -> Step:
        read = parse_action(action)
        if read is None or self.tab is None:
            return Step(0.0, False, False, valid=False, effective=False)
        if read.verb == "stop":
            self.verdict = self._finish(read.text)
            won = self.verdict.value == 1.0
            return Step(float(won), True, won, valid=True, effective=True)
        before = self._observe()
        worked = self.host.run(self._carry_out(self.tab, read), self.config.seconds)
        return Step(0.0, False, False, valid=worked, effective=self._observe() != before)

    async def _carry_out(self, tab: Tab, action: Any) -> bool:
        if action.verb == "goto":
            worked = await tab.visit(action.text)
        else:
            worked = await carry_out(tab, action)
        await tab.settle()
        await self._read(tab)
        return worked

    def _finish(self, answer: str) -> Verdict:
        """The task's checks, on a page of their own in the agent's context."""
        assert self.tab is not None
        url = self.tab.url
        probe = Probe(self.host, self.host.run(self.tab.sibling(), self.config.seconds), self.config.seconds)
        ending = Ending(
            answer=answer,
            url=url,
            page=probe,
            addresses=self.places,
            rows=self._rows,
            events=self.events,
            judge=self.judge,
        )
        return evaluate(self.task, ending)

    def _rows(self, site: str, query: str) -> list[tuple[Any, ...]]:
        """Rows of a mini-arena database, through a connection that cannot write."""
        if self.arena is None:
            raise WorldError(self.name, "has no databases to look into", "db_query is for the mini-arena")
        file = self.arena.live(next(one for one in SITES if one.name == site))
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as source:
            return list(source.execute(query))

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The checks' verdict; an episode that never stopped has not done its task."""
        return self.verdict if self.verdict is not None else Verdict.of(0.0, "the agent did not stop")

    # --- what teachers and policies ask ---------------------------------------------------------------------------

    @property
    def state(self) -> Moment:
        """Task, page and the number of steps done."""
        return Moment(self.task, self.nodes, self.steps)

    @property
    def instruction(self) -> str:
        """The rules and how actions are written."""
        return f"{self.rules}\n{FORMS}"

    def actions(self) -> tuple[str, ...]:
        """What makes sense on this page; other well-formed actions are carried out as well."""
        return candidates(self.nodes, quoted_texts(self.task.intent))

    def words(self) -> tuple[str, ...]:
        """Nothing: models for such pages bring their own vocabulary."""
        return ()

    def expert(self, state: Moment, steps_left: int, rng: np.random.Generator) -> str:
        """The next line of the task's script."""
        return next_action(state.task, state.nodes, state.done, self.places)

    def close(self) -> None:
        """End the context."""
        if self.tab is not None and self.tab.context.browser.is_connected():
            self.host.run(self.tab.close(), self.config.seconds)
        self.tab = None


def _allowed(addresses: Mapping[str, str]) -> tuple[Allow, ...]:
    """Your own sites, by name and port; those on this machine are pinned to it."""
    found = []
    for address in addresses.values():
        host, _, port = address.split("://", 1)[1].split("/")[0].partition(":")
        number = int(port or (443 if address.startswith("https") else 80))
        at = f"127.0.0.1:{number}" if host in ("localhost", "127.0.0.1") else ""
        found.append(Allow(host=host, port=number, at=at))
    return tuple(dict.fromkeys(found))
