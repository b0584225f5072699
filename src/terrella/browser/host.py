"""A guarded Chromium in its own thread, used through blocking calls with deadlines.

Worlds are stepped from any thread, but Playwright needs a single one. So each browser has an event
loop in a thread, and `run` hands it a coroutine and waits for the result up to a deadline. A
browser that died or hung is killed with its whole process tree and restarted by the next `tab()`;
the caller that was waiting gets `BrowserLostError`, which masks the episode.
    host = browser_for(BrowserSettings(folders=(("pages.test", "html"),)))
    tab = host.tab()
    host.run(tab.go("http://pages.test/index.html"), seconds=10)
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from terrella.browser.guard import Allow, NetworkGuard
from terrella.browser.launch import confinement_of, find_chromium
from terrella.browser.self_test import check_for_leaks
from terrella.browser.tab import Tab
from terrella.core.errors import MissingExtraError, WorldError

T = TypeVar("T")
START_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often a caller that waits looks whether the browser is still there."""


class BrowserLostError(WorldError):
    """The browser died or did not answer in time; the agent is not to blame for it."""

    boundary = "browser"


@dataclass(frozen=True, kw_only=True)
class BrowserSettings:
    """What a browser may reach, and its executable. Equal settings share one browser."""

    allow: tuple[Allow, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()
    """(host name, folder) pairs served by the guard itself."""
    number: int = 0
    """Different numbers give different processes, so that one machine can run several."""
    executable: str = ""
    """Path of Chromium; when empty, $TERRELLA_CHROMIUM or one of the usual paths."""
    width: int = 1280
    height: int = 720


def import_playwright() -> Any:
    """Import Playwright's asynchronous API; the error says how to install it."""
    try:
        from playwright import async_api
    except ImportError as error:
        raise MissingExtraError("web", "web worlds") from error
    return async_api


class BrowserHost:
    """A browser process with its guard and its thread; it starts with the first tab."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        self.playwright_module = import_playwright()
        self.executable = find_chromium(settings.executable)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.guard: NetworkGuard | None = None
        self.playwright: Any = None
        self.browser: Any = None
        self.pid = 0
        """Process id of the browser; 0 when none is running."""
        self.starts = 0
        """How often the browser was started."""
        self._lock = threading.Lock()

    def tab(self, cookies: Mapping[str, Any] | str | None = None, **context: Any) -> Tab:
        """Open a page in a new browser context; starts the browser when needed.

        `cookies` is a Playwright storage state, or the path of one, that logs the page in.
        """
        with self._lock:
            if not self._is_connected():
                self._dispose_browser()
                try:
                    self._run(self._start(), START_SECONDS)
                except BaseException:  # it did not start, or it leaks: nobody may use it
                    self._dispose_browser()
                    raise
        return self.run(self._open(cookies, context), START_SECONDS)

    def _is_connected(self) -> bool:
        return self.browser is not None and bool(self.browser.is_connected())

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine in the browser's thread.

        Raises BrowserLostError when the browser dies or does not finish in time.
        """
        browser = self.browser
        try:
            return self._run(work, seconds, browser)
        except TimeoutError as error:
            what = f"no answer within {seconds:g} s"
            if self.browser is browser:  # not the one that another thread has started since
                self.kill()  # it may hang forever, and nothing it does afterwards can be trusted
                what += ", so it was killed"
            raise BrowserLostError("chromium", what) from error
        except self.playwright_module.Error as error:
            if self._is_connected() and "closed" not in str(error):
                raise
            first_line = str(error).splitlines()[0]
            raise BrowserLostError("chromium", f"the browser is gone: {first_line}") from error

    def _run(self, work: Coroutine[Any, Any, T], seconds: float, browser: Any = None) -> T:
        """Wait for the result, but not for a browser that is dead: it may never answer."""
        future = asyncio.run_coroutine_threadsafe(work, self._thread_loop())
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            wait([future], timeout=max(0.0, min(left, LOOK_SECONDS)))
            if future.done():
                return future.result()
            died = browser is not None and not browser.is_connected()
            if died or left <= 0:
                future.cancel()
                raise BrowserLostError("chromium", "the browser died") if died else TimeoutError

    def _thread_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, name="browser", daemon=True).start()
        return self.loop

    async def _start(self) -> None:
        folders = {host: Path(folder) for host, folder in self.settings.folders}
        self.guard = NetworkGuard(allow=self.settings.allow, folders=folders)
        self.playwright = await self.playwright_module.async_playwright().start()
        async with confinement_of(self.executable).launcher(self.guard) as options:
            self.browser = await self.playwright.chromium.launch(
                **options, handle_sigint=False, handle_sigterm=False, handle_sighup=False
            )
        self.pid = await self._browser_pid()
        if self.executable not in _tested:
            await check_for_leaks(self.browser)
            _tested.add(self.executable)
            self.guard.refused.clear()  # they are the test's
        self.starts += 1

    async def _browser_pid(self) -> int:
        session = await self.browser.new_browser_cdp_session()
        reply = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        return next(
            int(process["id"]) for process in reply["processInfo"] if process["type"] == "browser"
        )

    async def _open(
        self, cookies: Mapping[str, Any] | str | None, context: Mapping[str, Any]
    ) -> Tab:
        storage = dict(cookies) if isinstance(cookies, Mapping) else cookies
        opened = await self.browser.new_context(
            viewport={"width": self.settings.width, "height": self.settings.height},
            accept_downloads=False,
            service_workers="block",
            storage_state=storage,
            **context,
        )
        return await Tab.open(opened)

    # --- shutdown ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the browser and all its child processes; the next tab starts a new one."""
        # Read once: another thread may do the same, and process 0 is this whole process group.
        browser, self.pid = self.pid, 0
        if browser:
            for pid in (*descendants(browser), browser):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _dispose_browser(self) -> None:
        """Clean up after a browser that may be alive, dead, hanging or never have started."""
        self.kill()
        self.browser = None
        playwright, self.playwright = self.playwright, None
        guard, self.guard = self.guard, None
        if playwright is not None:
            # The driver has lost its browser, so its errors no longer matter.
            with contextlib.suppress(Exception):
                self._run(playwright.stop(), 5.0)
        if guard is not None:
            self._run(guard.stop(), 5.0)

    def close(self) -> None:
        """Stop the browser, the guard and the thread."""
        with self._lock:
            if self._is_connected():
                with contextlib.suppress(Exception):  # killed below if it does not close in time
                    self._run(self.browser.close(), 5.0)
            self._dispose_browser()
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.loop = None


def descendants(pid: int) -> list[int]:
    """Process ids of all descendants; a parent comes before its children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    below: list[int] = []
    pending = [pid]
    while pending:
        direct = children.get(pending.pop(), [])
        below += direct
        pending += direct
    return below


_tested: set[str] = set()
"""Executables that passed the self-test in this process."""
_hosts: dict[tuple[int, BrowserSettings], BrowserHost] = {}
_hosts_lock = threading.Lock()


def browser_for(settings: BrowserSettings) -> BrowserHost:
    """Return this process's browser with these settings.

    Worlds share it, each in its own browser context.
    """
    with _hosts_lock:
        key = (os.getpid(), settings)
        if key not in _hosts:
            _hosts[key] = BrowserHost(settings)
        return _hosts[key]


@atexit.register
def close_browsers() -> None:
    """Close all browsers of this process."""
    with _hosts_lock:
        for (pid, _), host in _hosts.items():
            if pid == os.getpid():
                host.close()
        _hosts.clear()
