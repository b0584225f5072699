"""A browser tab for an agent: reads the page's tree and sends real input events by element id.

All of it uses the DevTools protocol directly, so that reading a page or clicking takes a few
milliseconds. The tree is computed in an isolated world (`page_tree.js`), which shares no JavaScript
with the page.
    await tab.go("http://pages.test/")
    rows = await tab.rows()
    await tab.click(rows[0].id)
    await tab.settle()
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from terrella.browser.events import NetworkEvent, record_request
from terrella.browser.keyboard import character_events, key_press
from terrella.core.errors import WorldError

_FILES = resources.files("terrella.browser")
TREE_SCRIPT = _FILES.joinpath("page_tree.js").read_text(encoding="utf-8")
CLOCK_SCRIPT = _FILES.joinpath("frozen_clock.js").read_text(encoding="utf-8")
WORLD_NAME = "terrella"
MAX_PAGES = 6
"""More windows than this are closed at once, in case a page opens them without end."""
POLL_SECONDS = 0.02
QUIET_POLLS = 10
"""A page counts as settled after this many polls in a row without a pending request.

It is more than one because a click takes a moment to start its request.
"""
SETTLE_RESOURCES = ("document", "xhr", "fetch")
"""Requests that change what a page shows; images may take longer."""
OPENING_SECONDS = 20.0
"""Longest wait for a document: what is read before it has come is the page before it."""

LOST = re.compile(
    "(Target|Page|Browser|Connection|Navigation failed because page) .*(clos|crash)ed"
)
"""How an error begins that says that the page or the browser is gone.

Only its beginning counts: further on it may quote an address, which an agent chose.
"""


class TreeRow(NamedTuple):
    """One node of a page's tree."""

    depth: int
    id: int
    role: str
    name: str
    properties: dict[str, str]


class Tab:
    """The pages of one browser context; the newest one is in front. Created by `open`."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.pages: list[Any] = []
        self.session: Any = None
        self._session_page: Any = None
        self._world: int | None = None
        self._loading: set[Any] = set()
        self.on_event: Callable[[NetworkEvent], None] | None = None
        """Called with every finished request for a document or for data."""

    @classmethod
    async def open(cls, context: Any) -> Self:
        """Open the first page of a context."""
        tab = cls(context)
        context.on("page", tab._on_page)
        await context.new_page()
        await tab._attach()
        return tab

    @property
    def page(self) -> Any:
        """The page in front."""
        if not self.pages:
            raise WorldError("browser", "all pages of this tab were closed")
        return self.pages[-1]

    @property
    def url(self) -> str:
        """The address of the page in front."""
        return str(self.page.url)

    def _on_page(self, page: Any) -> None:
        if len(self.pages) >= MAX_PAGES:
            asyncio.ensure_future(page.close())  # noqa: RUF006  nothing depends on its end
            return
        self.pages.append(page)
        page.on("close", lambda: self.pages.remove(page) if page in self.pages else None)
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_finished)
        page.on("requestfailed", lambda request: self._loading.discard(request))
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))

    def _on_request(self, request: Any) -> None:
        if request.resource_type in SETTLE_RESOURCES:
            self._loading.add(request)

    async def _on_finished(self, request: Any) -> None:
        try:
            if self.on_event is not None and request.resource_type in SETTLE_RESOURCES:
                self.on_event(await record_request(request))
        finally:  # a request that is never forgotten makes every `settle` wait in vain
            self._loading.discard(request)

    async def _attach(self) -> None:
        """Open a DevTools session with the page in front, unless there is one."""
        if self._session_page is self.page:
            return
        self._session_page = self.page
        self._world = None
        self.session = await self.context.new_cdp_session(self.page)
        self.session.on("Runtime.executionContextCreated", self._on_world)
        self.session.on("Runtime.executionContextsCleared", self._on_cleared)
        await asyncio.gather(
            self.session.send("Runtime.enable"),
            self.session.send("Page.enable"),
            # Keeps the data from which roles and names are computed.
            self.session.send("Accessibility.enable"),
            self.session.send(
                "Page.addScriptToEvaluateOnNewDocument",
                {"source": TREE_SCRIPT, "worldName": WORLD_NAME},
            ),
        )

    def _on_world(self, event: Any) -> None:
        """Remember the isolated world of a new document.

        The main frame's world comes first; those of inner frames are ignored.
        """
        created = event["context"]
        if created["name"] == WORLD_NAME and self._world is None:
            self._world = created["id"]

    def _on_cleared(self, event: Any) -> None:
        self._world = None

    async def close(self) -> None:
        """Close the context with all its pages."""
        await self.context.close()

    # --- navigation -------------------------------------------------------------------------------

    async def freeze_clock(self) -> None:
        """From the next document on, time moves only by `terrellaAdvance(milliseconds)`."""
        await self.context.add_init_script(CLOCK_SCRIPT)

    async def go(self, url: str) -> Any:
        """Load an http(s) address; others could reach the files of this machine.

        Returns Playwright's response, after all redirects.
        """
        if urlsplit(url).scheme not in ("http", "https"):
            raise WorldError(
                "browser", f"refuses to open {url[:80]!r}", "use an http or https address"
            )
        response = await self.page.goto(url, wait_until="load")
        await self._attach()
        return response

    async def visit(self, url: str) -> bool:
        """Load an address for an agent; False when it cannot be opened."""
        try:
            scheme = urlsplit(url).scheme
        except ValueError:  # such as http://[3]
            return False
        return scheme in ("http", "https") and await _opened(self.go(url))

    async def sibling(self) -> Self:
        """Open a page in the same context (same cookies) that is not one of this tab's pages."""
        self.context.remove_listener("page", self._on_page)
        other = type(self)(self.context)
        page = await self.context.new_page()
        other._on_page(page)
        await other._attach()
        return other

    async def back(self) -> bool:
        """Go one page back; a window without history is closed if another one is open."""
        history = await self.session.send("Page.getNavigationHistory")
        index = history["currentIndex"]
        if index > 1 or (index == 1 and history["entries"][0]["url"] != "about:blank"):
            return await _opened(self.page.go_back(wait_until="load"))
        if len(self.pages) > 1:
            await self.page.close()
            await self._attach()
            return True
        return False

    async def forward(self) -> bool:
        """Go one page forward; False if there is none."""
        history = await self.session.send("Page.getNavigationHistory")
        if history["currentIndex"] + 1 >= len(history["entries"]):
            return False
        return await _opened(self.page.go_forward(wait_until="load"))

    async def forget_history(self) -> None:
        """Begin the history anew at this page: nobody goes back to what was before it."""
        await self.session.send("Page.resetNavigationHistory")

    async def settle(self, seconds: float = 10.0) -> None:
        """Wait until no request is pending and the document is loaded.

        A page that takes longer is read as it is: its episode would be lost otherwise. A document
        is waited for longer than what a page loads afterwards.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        quiet = 0
        while quiet < QUIET_POLLS:
            opening = any(each.resource_type == "document" for each in self._loading)
            if loop.time() - began >= (max(seconds, OPENING_SECONDS) if opening else seconds):
                break
            await asyncio.sleep(POLL_SECONDS)
            quiet = 0 if self._loading else quiet + 1
        milliseconds_left = 1000 * (began + seconds - loop.time())
        try:
            await self.page.wait_for_load_state("load", timeout=max(1.0, milliseconds_left))
        except Exception as error:  # Playwright has a single error class
            if "Timeout" not in str(error):
                raise
        await self._attach()

    # --- observation ------------------------------------------------------------------------------

    async def rows(self, selector: str = "body", *, task_query: bool = False) -> list[TreeRow]:
        """Read the page's tree in preorder.

        With `task_query`, MiniWoB++'s task text becomes a node of role `task`.
        """
        rows = await self.evaluate_isolated(
            f"terrella.tree({json.dumps(selector)}, {json.dumps(task_query)})"
        )
        return [TreeRow(*row) for row in _well_formed(rows)]

    async def forget_ids(self) -> None:
        """Restart the numbering of elements at 1."""
        await self.evaluate_isolated("terrella.forget()")

    async def html(self) -> str:
        """The document as HTML."""
        return str(await self.page.content())

    async def screenshot(self, size: tuple[int, int] | None = None, scale: float = 1.0) -> bytes:
        """The visible part of the page as PNG, or the part of this size at its upper left."""
        wanted: dict[str, Any] = {"format": "png"}
        if size is not None:
            wanted["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": scale}
        reply = await self.session.send("Page.captureScreenshot", wanted)
        return base64.b64decode(reply["data"])

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript in the page's own world; promises are awaited."""
        return await self._evaluate(expression)

    async def evaluate_isolated(self, expression: str) -> Any:
        """Evaluate JavaScript in the isolated world, which each navigation creates anew.

        It sees the page's document, but uses the browser's own functions.
        """
        for _ in range(2):
            if self._world is None:
                await self._create_world()
            try:
                return await self._evaluate(expression, self._world)
            except Exception as error:
                if "context" not in str(error):
                    raise
                self._world = None
        raise WorldError("browser", f"the page {self.url[:80]} navigated away while being read")

    async def _create_world(self) -> None:
        tree = await self.session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        reply = await self.session.send(
            "Page.createIsolatedWorld", {"frameId": frame, "worldName": WORLD_NAME}
        )
        self._world = reply["executionContextId"]
        await self._evaluate(TREE_SCRIPT, self._world)

    async def _evaluate(self, expression: str, world: int | None = None) -> Any:
        request: dict[str, Any] = {
            "expression": expression,
            "returnByValue": True,
            "awaitPromise": True,
        }
        if world is not None:
            request["contextId"] = world
        reply = await self.session.send("Runtime.evaluate", request)
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            message = details.get("exception", {}).get("description", details["text"])
            raise WorldError("page script", message[:300])
        return reply["result"].get("value")

    # --- input: every method returns False when the element is not (or no longer) there -----------

    async def click(self, element_id: int, button: Literal["left", "right"] = "left") -> bool:
        """Press and release a button in the middle of an element."""
        center = await self.evaluate_isolated(f"terrella.center({element_id})")
        if center is None:
            return False
        at = {"x": center[0], "y": center[1]}
        pressed = {"button": button, "clickCount": 1}
        # Sent together: they arrive in order, and waiting for each reply costs a round trip.
        await self._send_all(
            "Input.dispatchMouseEvent",
            [
                {"type": "mouseMoved", **at},
                {"type": "mousePressed", "buttons": 1 + (button == "right"), **pressed, **at},
                {"type": "mouseReleased", **pressed, **at},
            ],
        )
        return True

    async def hover(self, element_id: int) -> bool:
        """Move the mouse to the middle of an element."""
        center = await self.evaluate_isolated(f"terrella.center({element_id})")
        if center is None:
            return False
        moved = {"type": "mouseMoved", "x": center[0], "y": center[1]}
        await self._send_all("Input.dispatchMouseEvent", [moved])
        return True

    async def _send_all(self, method: str, messages: Sequence[dict[str, Any]]) -> None:
        await asyncio.gather(*(self.session.send(method, message) for message in messages))

    async def type(self, element_id: int, text: str) -> bool:
        """Replace the content of a field, key by key."""
        has_content = await self.evaluate_isolated(f"terrella.focusText({element_id})")
        if has_content is None:
            return False
        if has_content:
            await self.press("Delete")
        events = [event for character in text for event in character_events(character)]
        await self._send_all("Input.dispatchKeyEvent", events)
        return True

    async def press(self, key: str) -> bool:
        """Press a named key, or a combination such as Control+a."""
        events = key_press(key)
        await self._send_all("Input.dispatchKeyEvent", events)
        return bool(events)

    async def select(self, element_id: int, label: str) -> bool:
        """Choose an option of a list by its label."""
        return bool(
            await self.evaluate_isolated(f"terrella.choose({element_id}, {json.dumps(label)})")
        )

    async def scroll(self, pixels: int, element_id: int = 0) -> bool:
        """Scroll the page, or the scrollable part around an element."""
        return bool(await self.evaluate_isolated(f"terrella.scroll({element_id}, {pixels})"))


async def _opened(navigation: Awaitable[Any]) -> bool:
    """Whether a page was opened. A slow page and a lost browser raise: no agent is to blame."""
    try:
        await navigation
    except Exception as error:  # those of Playwright are told apart by their names and texts
        if not type(error).__module__.startswith("playwright.") or _is_no_answer(error):
            raise
        return False
    return True


def _is_no_answer(error: Exception) -> bool:
    if type(error).__name__ in ("TimeoutError", "TargetClosedError"):
        return True
    first_line = str(error).split("\n", 1)[0]
    method, _, said = first_line.partition(": ")  # such as "Page.goto: Page crashed"
    return LOST.match(said or method) is not None


def _well_formed(value: Any) -> Any:
    """Texts without the halves of characters that scripts leave: no tokenizer takes them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_well_formed(each) for each in value]
    if isinstance(value, dict):
        return {_well_formed(name): _well_formed(each) for name, each in value.items()}
    return value
