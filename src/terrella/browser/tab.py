"""A page under an agent's hands: its tree, and the actions by element id, as real input events.

Everything goes through the DevTools protocol directly: reading a page takes a few milliseconds, a click as well. The
tree is computed in an isolated world (`page_tree.js`), which shares no JavaScript with the page.
    await tab.go("http://pages.test/"); rows = await tab.rows(); await tab.click(7); await tab.settle()
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Self
from urllib.parse import urlsplit

from terrella.browser.events import NetworkEvent, note_request
from terrella.core.errors import WorldError

TREE_SCRIPT = resources.files("terrella.browser").joinpath("page_tree.js").read_text(encoding="utf-8")
CLOCK_SCRIPT = resources.files("terrella.browser").joinpath("still_clock.js").read_text(encoding="utf-8")
WORLD_NAME = "terrella"
MOST_PAGES = 6
"""A page that opens windows without end gets no more than this."""
QUIET = 10
"""Looks at which nothing was loading before a page counts as settled, fifty a second: a click takes a moment."""
KEYS = {
    "Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""), "Delete": ("Delete", 46, ""),
    "ArrowUp": ("ArrowUp", 38, ""), "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowRight": ("ArrowRight", 39, ""), "Home": ("Home", 36, ""),
    "End": ("End", 35, ""), "PageUp": ("PageUp", 33, ""), "PageDown": ("PageDown", 34, ""), "Space": ("Space", 32, " "),
}  # fmt: skip

Row = tuple[int, int, str, str, dict[str, str]]
"""depth, element id, role, name, properties"""


class Tab:
    """The pages of one browser context; the newest one is in front."""

    def __init__(self, context: Any) -> None:
        """Use `open`."""
        self.context = context
        self.pages: list[Any] = []
        self.session: Any = None
        self._session_page: Any = None
        self._world: int | None = None
        self._loading: set[Any] = set()
        self.record: Callable[[NetworkEvent], None] | None = None
        """Who is told of every request once it is answered."""

    @classmethod
    async def open(cls, context: Any) -> Self:
        """A first page in this context."""
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
        """Where the page in front is."""
        return str(self.page.url)

    def _on_page(self, page: Any) -> None:
        if len(self.pages) >= MOST_PAGES:
            asyncio.ensure_future(page.close())  # noqa: RUF006  nobody waits for a window that is not wanted
            return
        self.pages.append(page)
        page.on("close", lambda: self.pages.remove(page) if page in self.pages else None)
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_finished)
        page.on("requestfailed", lambda request: self._loading.discard(request))
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))

    def _on_request(self, request: Any) -> None:
        if request.resource_type in ("document", "xhr", "fetch"):  # what a page shows; pictures may take their time
            self._loading.add(request)

    async def _on_finished(self, request: Any) -> None:
        if self.record is not None and request.resource_type in ("document", "xhr", "fetch"):
            self.record(await note_request(request))
        self._loading.discard(request)

    async def _attach(self) -> None:
        """A DevTools session with the page in front."""
        if self._session_page is not self.page:
            self._session_page, self._world = self.page, None
            self.session = await self.context.new_cdp_session(self.page)
            self.session.on("Runtime.executionContextCreated", self._on_world)
            self.session.on("Runtime.executionContextsCleared", self._on_cleared)
            await asyncio.gather(
                self.session.send("Runtime.enable"), self.session.send("Page.enable"),
                self.session.send("Accessibility.enable"),  # keeps what roles and names are computed from
                self.session.send(
                    "Page.addScriptToEvaluateOnNewDocument", {"source": TREE_SCRIPT, "worldName": WORLD_NAME}
                ),
            )  # fmt: skip

    def _on_world(self, event: Any) -> None:
        """Every new document brings the isolated world; those of frames inside the page come later."""
        made = event["context"]
        if made["name"] == WORLD_NAME and self._world is None:
            self._world = made["id"]

    def _on_cleared(self, event: Any) -> None:
        self._world = None

    async def close(self) -> None:
        """End the context with all its pages."""
        await self.context.close()

    # --- where ------------------------------------------------------------------------------------------------------

    async def still_clock(self) -> None:
        """From the next document on, time moves only by `advance`."""
        await self.context.add_init_script(CLOCK_SCRIPT)

    async def go(self, url: str) -> None:
        """Load an address; only http(s) ones, for what is on this machine's disk is not for pages."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise WorldError("browser", f"refuses to open {url[:80]!r}", "only http and https addresses")
        await self.page.goto(url, wait_until="load")
        await self._attach()

    async def visit(self, url: str) -> bool:
        """As `go`, for an agent: an address that cannot be opened is a step that did nothing."""
        if urlsplit(url).scheme not in ("http", "https"):
            return False
        try:
            await self.go(url)
        except Exception as error:  # Playwright has one class of error for all of them
            if "net::" not in str(error):
                raise
            return False
        return True

    async def sibling(self) -> Self:
        """Another page in the same context (same cookies), apart from this tab's pages."""
        self.context.remove_listener("page", self._on_page)
        other = type(self)(self.context)
        page = await self.context.new_page()
        other._on_page(page)
        await other._attach()
        return other

    async def back(self) -> bool:
        """One page back; a window without a past is closed when there is another below it."""
        history = await self.session.send("Page.getNavigationHistory")
        if history["currentIndex"] > 1 or (
            history["currentIndex"] == 1 and history["entries"][0]["url"] != "about:blank"
        ):
            await self.page.go_back(wait_until="load")
        elif len(self.pages) > 1:
            await self.page.close()
            await self._attach()
        else:
            return False
        return True

    async def settle(self, seconds: float = 10.0) -> None:
        """Wait until what was asked for has arrived: no request under way, the document loaded."""
        loop = asyncio.get_running_loop()
        end, quiet = loop.time() + seconds, 0
        while quiet < QUIET and loop.time() < end:
            await asyncio.sleep(0.02)
            quiet = 0 if self._loading else quiet + 1
        await self.page.wait_for_load_state("load", timeout=max(1.0, 1000 * (end - loop.time())))
        await self._attach()

    # --- what is seen -----------------------------------------------------------------------------------------------

    async def rows(self, selector: str = "body", *, task_query: bool = False) -> list[Row]:
        """The page's tree in preorder."""
        rows = await self._ask(f"terrella.tree({json.dumps(selector)}, {json.dumps(task_query)})")
        return [(depth, number, role, name, props) for depth, number, role, name, props in rows]

    async def forget_ids(self) -> None:
        """Number the elements from 1 again."""
        await self._ask("terrella.forget()")

    async def html(self) -> str:
        """The document as HTML."""
        return str(await self.page.content())

    async def screenshot(self) -> bytes:
        """What a person would see, as PNG."""
        found = await self.session.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(found["data"])

    async def script(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page's own world (promises are awaited)."""
        return await self._evaluate(expression)

    async def look(self, expression: str) -> Any:
        """The same in the isolated world: the document is the page's, the functions are the browser's own."""
        return await self._ask(expression)

    async def _ask(self, expression: str) -> Any:
        """The same in the isolated world; made again after each navigation."""
        for _ in range(2):
            if self._world is None:
                await self._make_world()
            try:
                return await self._evaluate(expression, self._world)
            except Exception as error:
                if "context" not in str(error):
                    raise
                self._world = None
        raise WorldError("browser", f"the page {self.url[:80]} goes away while it is read")

    async def _make_world(self) -> None:
        tree = await self.session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        made = await self.session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": WORLD_NAME})
        self._world = made["executionContextId"]
        await self._evaluate(TREE_SCRIPT, self._world)

    async def _evaluate(self, expression: str, world: int | None = None) -> Any:
        where = {} if world is None else {"contextId": world}
        found = await self.session.send(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True, **where}
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise WorldError("page script", details.get("exception", {}).get("description", details["text"])[:300])
        return found["result"].get("value")

    # --- what is done: each returns False when the element is not there (any more) ----------------------------------

    async def click(self, number: int) -> bool:
        """Press and release the left button in the middle of an element."""
        place = await self._ask(f"terrella.place({number})")
        if place is None:
            return False
        where = {"x": place[0], "y": place[1]}
        # Sent at once: they arrive in this order, and each answer would cost a way there and back.
        await self._send_all("Input.dispatchMouseEvent", [
            {"type": "mouseMoved", **where},
            {"type": "mousePressed", "button": "left", "buttons": 1, "clickCount": 1, **where},
            {"type": "mouseReleased", "button": "left", "clickCount": 1, **where},
        ])  # fmt: skip
        return True

    async def _send_all(self, method: str, messages: Sequence[dict[str, Any]]) -> None:
        await asyncio.gather(*(self.session.send(method, message) for message in messages))

    async def type(self, number: int, text: str) -> bool:
        """Replace what is in a field, key by key."""
        filled = await self._ask(f"terrella.focusText({number})")
        if filled is None:
            return False
        if filled:
            await self.press("Delete")
        await self._send_all("Input.dispatchKeyEvent", [event for one in text for event in self._key_events(one)])
        return True

    @staticmethod
    def _key_events(character: str) -> list[dict[str, Any]]:
        down: dict[str, Any] = {"type": "keyDown", "text": character, "key": character, "unmodifiedText": character}
        if character.isalnum() and character.isascii():
            down["windowsVirtualKeyCode"] = ord(character.upper())
        return [down, {**down, "type": "keyUp", "text": ""}]

    async def press(self, key: str) -> bool:
        """Press a named key, or a combination such as Control+a."""
        *modifiers, last = key.split("+") if len(key) > 1 else [key]
        bits = sum({"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}.get(name, 0) for name in modifiers)
        if last in KEYS:
            code, number, text = KEYS[last]
            event: dict[str, Any] = {
                "key": " " if last == "Space" else last,
                "code": code,
                "windowsVirtualKeyCode": number,
            }
        elif len(last) == 1:
            text, event = "" if bits & 7 else last, {"key": last, "windowsVirtualKeyCode": ord(last.upper())}
        else:
            return False
        if bits == 2 and last.lower() in ("a", "c", "v", "x"):
            event["commands"] = [{"a": "selectAll", "c": "copy", "v": "paste", "x": "cut"}[last.lower()]]
        kind = "keyDown" if text else "rawKeyDown"
        await self.session.send("Input.dispatchKeyEvent", {"type": kind, "text": text, "modifiers": bits, **event})
        event.pop("commands", None)
        await self.session.send("Input.dispatchKeyEvent", {"type": "keyUp", "modifiers": bits, **event})
        return True

    async def select(self, number: int, label: str) -> bool:
        """Choose an option of a list by its text."""
        return bool(await self._ask(f"terrella.choose({number}, {json.dumps(label)})"))

    async def scroll(self, pixels: int, number: int = 0) -> bool:
        """Move the page, or the scrolling part around an element."""
        return bool(await self._ask(f"terrella.scroll({number}, {pixels})"))


def same_rows(first: Sequence[Row], second: Sequence[Row]) -> bool:
    """Whether two readings show the same page, element ids aside."""
    return [(d, r, n, p) for d, _, r, n, p in first] == [(d, r, n, p) for d, _, r, n, p in second]
