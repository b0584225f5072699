"""A Chromium with its guard, in a thread of its own, behind plain function calls with deadlines.

Worlds are stepped from any thread; Playwright wants one. So each browser has an event loop in a thread, and `run` hands
it a coroutine and waits, at most so long. A browser that died or hung is killed with its whole process tree and started
again by the next `tab()`; whoever was waiting gets `BrowserLostError`, which masks the episode.
    host = browser_for(BrowserSettings(folders=(("pages.test", "html"),))); tab = host.tab(); host.run(tab.go(url), 10)
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from terrella.browser.guard import Allow, Guard
from terrella.browser.tab import Tab
from terrella.core.errors import MissingExtraError, WorldError

T = TypeVar("T")
PLACES = ("/usr/lib/chromium/chromium", "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
FLAGS = (
    "--enable-blink-features=ComputedAccessibilityInfo",  # roles and names as assistive software gets them
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the browser itself looks up no name: the guard does
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--disable-gpu",
)
START_SECONDS = 60.0


class BrowserLostError(WorldError):
    """The browser died or did not answer: what it was doing says nothing about whoever used it."""

    boundary = "browser"


@dataclass(frozen=True, kw_only=True)
class BrowserSettings:
    """What one browser may reach, and where its program is. Equal settings share a browser."""

    allow: tuple[Allow, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()
    """(host name, folder) pairs served by the guard itself."""
    number: int = 0
    """Browsers with different numbers are different processes: how one machine runs several."""
    executable: str = ""
    """Chromium; found in the usual places when empty (or the variable TERRELLA_CHROMIUM)."""
    width: int = 1280
    height: int = 720


def find_chromium(executable: str = "") -> str:
    """The program, or the line that installs it."""
    wanted = executable or os.environ.get("TERRELLA_CHROMIUM", "")
    for place in (wanted,) if wanted else PLACES:
        if Path(place).is_file():
            return place
    raise MissingExtraError(
        "web", "web worlds (and Chromium itself: apt-get install chromium, or set TERRELLA_CHROMIUM)"
    )


def import_playwright() -> Any:
    """Playwright's asynchronous half, or the line that installs it."""
    try:
        from playwright import async_api
    except ImportError as error:
        raise MissingExtraError("web", "web worlds") from error
    return async_api


class BrowserHost:
    """One browser process, its guard and its thread."""

    def __init__(self, settings: BrowserSettings) -> None:
        """Nothing is started before the first tab."""
        self.settings = settings
        self.playwright_module = import_playwright()
        self.executable = find_chromium(settings.executable)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.guard: Guard | None = None
        self.browser: Any = None
        self.pid = 0
        """Process id of the browser, 0 while there is none."""
        self.starts = 0
        self._lock = threading.Lock()

    def tab(self, cookies: Mapping[str, Any] | str | None = None, **context: Any) -> Tab:
        """A page in a context of its own, logged in by cookies or a storage file; starts the browser if need be."""
        with self._lock:
            if self.browser is None or not self.browser.is_connected():
                self._end_browser()
                self._run(self._start(), START_SECONDS)
        return self.run(self._open(cookies, context), START_SECONDS)

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Do this in the browser's thread; BrowserLostError when it dies or takes longer."""
        try:
            return self._run(work, seconds)
        except TimeoutError as error:
            self.kill()  # it may hang for ever: nothing that it does afterwards can be trusted
            raise BrowserLostError("chromium", f"no answer within {seconds:g} s; it was killed") from error
        except self.playwright_module.Error as error:
            if self.browser is None or not self.browser.is_connected() or "closed" in str(error):
                raise BrowserLostError("chromium", f"it is gone: {str(error).splitlines()[0]}") from error
            raise

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._thread_loop())
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def _thread_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, name="browser", daemon=True).start()
        return self.loop

    async def _start(self) -> None:
        folders = {host: Path(folder) for host, folder in self.settings.folders}
        self.guard = Guard(allow=self.settings.allow, folders=folders)
        port = await self.guard.start()
        self.playwright = await self.playwright_module.async_playwright().start()
        self.browser = await self.playwright.chromium.launch(
            executable_path=self.executable, args=list(FLAGS), proxy={"server": f"http://127.0.0.1:{port}"},
            chromium_sandbox=os.geteuid() != 0, handle_sigint=False, handle_sigterm=False, handle_sighup=False,
        )  # fmt: skip
        self.pid, self.starts = await self._browser_pid(), self.starts + 1

    async def _browser_pid(self) -> int:
        session = await self.browser.new_browser_cdp_session()
        found = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        return next(int(one["id"]) for one in found["processInfo"] if one["type"] == "browser")

    async def _open(self, cookies: Mapping[str, Any] | str | None, context: Mapping[str, Any]) -> Tab:
        storage = dict(cookies) if isinstance(cookies, Mapping) else cookies
        made = await self.browser.new_context(
            viewport={"width": self.settings.width, "height": self.settings.height}, accept_downloads=False,
            service_workers="block", storage_state=storage, **context,
        )  # fmt: skip
        return await Tab.open(made)

    # --- the end ----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the browser at once, with all its processes; the next tab starts a new one."""
        if self.pid:
            for pid in (*descendants(self.pid), self.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self.pid = 0

    def _end_browser(self) -> None:
        """Take leave of a browser that may be alive, dead or hanging."""
        if self.browser is None:
            return
        self.kill()
        if self.guard is not None:
            self._run(self.guard.stop(), 5.0)
        # The driver has lost its browser: whatever it says now is of no interest.
        with contextlib.suppress(Exception):
            self._run(self.playwright.stop(), 5.0)
        self.browser = None

    def close(self) -> None:
        """End browser, guard and thread."""
        with self._lock:
            if self.browser is not None and self.browser.is_connected():
                with contextlib.suppress(Exception):  # what does not close in time is killed below
                    self._run(self.browser.close(), 5.0)
            self._end_browser()
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.loop = None


def descendants(pid: int) -> list[int]:
    """Process ids below this one, deepest last."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


_hosts: dict[tuple[int, BrowserSettings], BrowserHost] = {}
_hosts_lock = threading.Lock()


def browser_for(settings: BrowserSettings) -> BrowserHost:
    """The browser of this process with these settings; worlds share it, each with a context of its own."""
    with _hosts_lock:
        key = (os.getpid(), settings)
        if key not in _hosts:
            _hosts[key] = BrowserHost(settings)
        return _hosts[key]


@atexit.register
def close_browsers() -> None:
    """End all browsers of this process."""
    with _hosts_lock:
        for (pid, _), host in _hosts.items():
            if pid == os.getpid():
                host.close()
        _hosts.clear()
