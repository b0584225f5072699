"""WebArena tasks in real Chromium, on the mini-arena or on sites of your own.

Each episode gets a new browser context, logged in as its task requires; the databases of the
mini-arena are reset first. The agent sees the task and the page's tree, names elements by id, and
ends with `stop ANSWER`. Then `_finish`, which matters most, runs the task's checks on another page.
    world = WebArena.Config(tasks="mini").build()
    observation, _ = world.reset(seed=0)
    world.step("scroll down")
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from terrella.browser.actions import candidates, execute_action, quoted_texts
from terrella.browser.events import NetworkEvent
from terrella.browser.guard import GUARD_HEADER
from terrella.browser.host import BrowserSettings, browser_for
from terrella.browser.tab import Tab
from terrella.codecs.web_language import PLAIN_ACTIONS, Action, parse_action
from terrella.core.config import Configurable, Local
from terrella.core.errors import WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.spaces import Observations
from terrella.core.types import Kind, Observation, Split, Transition, Tree, Verdict
from terrella.core.untrusted import parse_json
from terrella.core.world import MAX_ACTION_LENGTH, Step, World
from terrella.core.written_tasks import Draft
from terrella.verify.tree import Node, write
from terrella.verify.tree_diff import TreeDiff
from terrella.worlds.webarena.addresses import allowed, require_addresses
from terrella.worlds.webarena.arena import SITES, Arena, default_folder
from terrella.worlds.webarena.databases import query_rows
from terrella.worlds.webarena.evaluators import Ending, Judge, evaluate
from terrella.worlds.webarena.judges import EndpointJudge
from terrella.worlds.webarena.oracle import next_action
from terrella.worlds.webarena.probe import Probe
from terrella.worlds.webarena.tasks import (
    WebTask,
    collection_name,
    fill_placeholders,
    load_tasks,
    read_task,
    share_tasks,
)
from terrella.worlds.webarena.templates import TemplateBook, unchecked_row
from terrella.worlds.webarena.turns import ArenaTurn

MAX_NAME = 160
ACTION_FORMS = (
    f"{PLAIN_ACTIONS}N, type N text, select N option, scroll up|down, press KEY, back, goto URL, "
    "stop ANSWER."
)


class PageState(NamedTuple):
    """The exact state, for experts: the task, the page and the number of steps so far."""

    task: WebTask
    nodes: tuple[Node, ...]
    steps: int


class WebArena(World):
    """WebArena tasks on real web sites, one task per episode."""

    name: ClassVar[str] = "webarena"
    reaches: ClassVar[str] = "Chromium, web sites and the endpoint of a judge"

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The tasks, the addresses of their sites and the browser."""

        max_steps: int = 30
        view: str = "tree"
        tasks: Local[str] = "mini"
        """mini, webarena, webarena_lite, webarena_verified, or a JSON file."""
        only: tuple[int, ...] = ()
        """Ids of the tasks to draw from; empty for all."""
        test_all: bool = False
        """Put every task into the test split, for a model that was trained on other tasks.

        The public collections are test sets. Without it a tenth of the tasks is for testing.
        """
        addresses: Local[Mapping[str, str]] = field(default_factory=dict[str, str])
        """Placeholder -> address of your own sites; empty for the mini-arena, with its own tasks.

        A site may be in your own network: the browser is let through to it, and to no other there.
        """
        cookies: Local[str] = ""
        """A folder of Playwright storage states for your own sites, as `auto_login` writes them.

        A task names its own file there; empty logs in nowhere.
        """
        judge: Local[EndpointJudge.Config | None] = None
        """The judge for checks that need an opinion; without one, such tasks are masked."""
        seconds: float = 60.0
        """Time limit for one action; a browser that takes longer is killed."""
        browser: int = 0
        executable: Local[str] = ""

        @property
        def exclusive(self) -> str:
            """The mini-arena: every episode resets its databases."""
            return "" if self.addresses else f"mini-arena {default_folder()}"

        def shares_tasks(self, trained: Mapping[str, Any]) -> bool:
            """With `test_all`, what was practised of the same tasks is in the test."""
            if not self.test_all or trained.get("test_all"):
                return False
            only = trained.get("only")  # of a manifest, which may hold anything
            ids = [n for n in only if type(n) is int] if isinstance(only, list | tuple) else []
            return share_tasks(self.tasks, self.only, str(trained.get("tasks")), ids)

    config: Config
    few_instances = (
        "test all tasks of the collection (world.test_all=true), which leaves none for training, "
        "or name more tasks in world.only"
    )
    rules = (
        "Do the task on the web site, then stop with the answer. "
        "Elements are named by the number in brackets."
    )
    view_names = ("tree",)
    verifier = TreeDiff.Config().build()
    presets: ClassVar[Mapping[str, Configurable.Config]] = {}

    def __init__(self, config: Config, judge: Judge | None = None) -> None:
        """Read the tasks; the mini-arena must be running unless `addresses` are given.

        `judge` is any function; by default the one of the config.
        """
        super().__init__(config)
        require_addresses(config.tasks, config.addresses)
        tasks = load_tasks(config.tasks)
        self.tasks = [task for task in tasks if not config.only or task.task_id in config.only]
        self.judge = judge or (config.judge.build() if config.judge else None)
        self.collection = collection_name(config.tasks)
        self.arena = None if config.addresses else Arena()
        self.turn = None if self.arena is None else ArenaTurn(self.arena.folder)
        self.templates = None if self.arena is None else TemplateBook(self.arena.query_snapshot)
        allow = allowed(config.addresses)
        if self.arena is not None:
            self.arena.require({site.name for site in SITES})
            allow = self.arena.allow()
        self.host = browser_for(
            BrowserSettings(allow=allow, number=config.browser, executable=config.executable)
        )
        self.tab: Tab | None = None
        self.task = self.tasks[0]
        self.nodes: tuple[Node, ...] = ()
        self.events: list[NetworkEvent] = []
        self.verdict: Verdict | None = None
        self.observation_space = Observations(
            Kind.TREE, Tree('task "Find the price."\n[1] link "Shop"')
        )
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Placeholder -> address."""
        return self.arena.addresses() if self.arena is not None else self.config.addresses

    # --- the instance -----------------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        self.task = self.tasks[int(rng.integers(len(self.tasks)))]
        return self._key(self.task)

    def _key(self, task: WebTask) -> dict[str, Any]:
        """What names a task; with `test_all`, with the first salt that makes it a test task."""
        key: dict[str, Any] = {"tasks": self.collection, "task": task.task_id}
        if self.config.test_all:
            salts = ({**key, "salt": salt} for salt in itertools.count())
            return next(each for each in salts if split_of(instance_id(each)) is Split.TEST)
        return key

    def instances(self, split: Split) -> tuple[str, ...]:
        """The tasks of a split: no page is opened for it."""
        names = (instance_id(self._key(task)) for task in self.tasks)
        return tuple(dict.fromkeys(name for name in names if split_of(name) is split))

    def instance_of(self, seed: int, split: Split) -> str:
        """The task that a seed draws: no page is opened for it."""
        playing = self.task
        try:
            return self._drawn(seed, split)
        finally:
            self.task = playing

    def _draw_instance(self) -> None:
        super()._draw_instance()
        self.begin(self.task)

    def begin(self, task: WebTask) -> None:
        """Reset the sites and open the task's first page in a new context."""
        self.close()
        self.task = task
        self.events = []
        self.verdict = None
        if self.turn is not None:
            self.turn.take()
        try:
            if self.arena is not None:
                self.arena.reset()
            self.tab = self.host.tab(self._login_state(task))
            self.tab.on_event = self.events.append
            self.host.run(self._open(self.tab), self.config.seconds)
        except BaseException:
            self.leave()
            raise

    # --- tasks in words -----------------------------------------------------------------------

    def known_instructions(self) -> tuple[str, ...]:
        """The intents of the whole task file: also of tasks that `only` leaves out."""
        return tuple(task.intent for task in load_tasks(self.config.tasks))

    def write_instructions(self, count: int, rng: np.random.Generator) -> list[str]:
        """By the templates of the mini-arena; other sites have none."""
        if self.templates is None:
            return []
        sites = {site for task in self.tasks for site in task.sites}
        return self.templates.write(count, rng, sites)

    def draft(self, instruction: str, like: str) -> Draft:
        """A task with a check if a template fits; else one that begins where `like` does."""
        fitting = None if self.templates is None else self.templates.fit(instruction)
        if fitting is not None:
            return fitting
        beside = next((task for task in self.tasks if task.intent == like), None)
        beside = beside or (self._read_written(like) if like.startswith("{") else None)
        if beside is None:
            return Draft(reason=f"no task here to begin beside: {like[:200]!r}")
        urls = " |AND| ".join(beside.start_urls)
        row = unchecked_row(instruction, beside.sites, urls, beside.login)
        return Draft(task=json.dumps(row))

    def _read_written(self, written: str) -> WebTask:
        row = parse_json(written, "a written task")
        if not isinstance(row, dict):
            raise WorldError(self.name, "a written task is not an object")
        return read_task(row, "vab")

    def _take(self, written: str) -> Any:
        self.begin(self._read_written(written))
        return {"written": self.task.intent}

    def _login_state(self, task: WebTask) -> dict[str, Any] | str | None:
        if not task.require_login:
            return None
        if self.arena is not None:
            fields = {"expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
            cookies = self.arena.cookies(list(task.sites))
            return {"cookies": [{**cookie, **fields} for cookie in cookies], "origins": []}
        if not self.config.cookies or not task.login:
            return None
        file = Path(self.config.cookies) / task.login
        if not file.is_file():
            raise WorldError(
                self.name,
                f"task {task.task_id} needs the login {file}, which is missing",
                "log in first: WebArena's auto_login writes this file",
            )
        return str(file)

    async def _open(self, tab: Tab) -> None:
        for index, url in enumerate(self.task.start_urls):
            if index:
                await tab.context.new_page()
            address = fill_placeholders(url, self.addresses)
            _require_site(address, await tab.go(address))
        await tab.settle()
        await self._read(tab)

    async def _read(self, tab: Tab) -> None:
        self.nodes = tuple(
            Node(row.depth, row.id, row.role, row.name[:MAX_NAME], tuple(row.properties.items()))
            for row in await tab.rows()
        )

    # --- one step ---------------------------------------------------------------------------------

    def _observe(self) -> Observation:
        address = self.tab.url if self.tab is not None else ""
        head = [Node(0, 0, "task", self.task.intent), Node(0, 0, "page", address)]
        return Tree(write([*head, *self.nodes]))

    def _act(self, action: str) -> Step:
        parsed = parse_action(action)
        if parsed is None or self.tab is None:
            return Step(0.0, False, False, valid=False, effective=False)
        if parsed.verb == "stop":
            self.verdict = self._finish(parsed.text)
            won = self.verdict.value == 1.0
            return Step(float(won), True, won, valid=True, effective=True)
        before = self._observe()
        worked = self.host.run(self._execute(self.tab, parsed), self.config.seconds)
        return Step(0.0, False, False, valid=worked, effective=self._observe() != before)

    async def _execute(self, tab: Tab, action: Action) -> bool:
        if action.verb == "goto":
            worked = await tab.visit(action.text)
        else:
            worked = await execute_action(tab, action)
        await tab.settle()
        await self._read(tab)
        return worked

    def _finish(self, answer: str) -> Verdict:
        """Run the task's checks, on a page of their own in the agent's context."""
        assert self.tab is not None
        url = self.tab.url
        sibling = self.host.run(self.tab.sibling(), self.config.seconds)
        probe = Probe(self.host, sibling, self.config.seconds)
        ending = Ending(
            answer=answer,
            url=url,
            page=probe,
            addresses=self.addresses,
            query_rows=self._query_rows,
            events=self.events,
            judge=self.judge,
        )
        return evaluate(self.task, ending)

    def _query_rows(self, site: str, query: str) -> list[tuple[Any, ...]]:
        """Query a database of the mini-arena."""
        if self.arena is None:
            raise WorldError(
                self.name, "has no databases to query", "use db_query only with the mini-arena"
            )
        file = self.arena.live(next(known for known in SITES if known.name == site))
        return query_rows(file, query)

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The checks' verdict; an episode without `stop` has failed."""
        if self.verdict is None:
            return Verdict.of(0.0, "the agent did not stop")
        return self.verdict

    # --- for experts and policies -----------------------------------------------------------------

    @property
    def state(self) -> PageState:
        return PageState(self.task, self.nodes, self.steps)

    @property
    def instruction(self) -> str:
        """The rules and the action grammar."""
        return f"{self.rules}\n{ACTION_FORMS}"

    def actions(self) -> tuple[str, ...]:
        """Actions that make sense on this page; other well-formed actions work as well."""
        return candidates(self.nodes, quoted_texts(self.task.intent))

    def vocabulary(self) -> tuple[str, ...]:
        """Empty: models for such pages bring their own vocabulary."""
        return ()

    def expert(self, state: PageState, steps_left: int, rng: np.random.Generator) -> str:
        """The action of the next line of the task's script."""
        return next_action(state.task, state.nodes, state.steps, self.addresses)

    def leave(self) -> None:
        """Let the next episode on the mini-arena begin."""
        if self.turn is not None:
            self.turn.leave()

    def close(self) -> None:
        """Close the browser context."""
        tab, self.tab = self.tab, None
        try:
            if tab is not None and tab.context.browser.is_connected():
                self.host.run(tab.close(), self.config.seconds)
        finally:
            self.leave()


def _require_site(address: str, response: Any) -> None:
    """Refuse a start page that the guard wrote: an episode on it could only be lost."""
    fault = None if response is None else response.headers.get(GUARD_HEADER)
    if fault is not None:
        raise WorldError(
            "webarena",
            f"the start page {address[:200]} did not open: {response.url[:200]}: {fault}",
            "start the site, or name the host that it redirects to in `addresses`, too",
        )
