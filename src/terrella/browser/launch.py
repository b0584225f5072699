"""How Chromium is started: its flags, its environment, its user, and the network it cannot see.

Where the system allows it, Chromium runs in a network namespace with the guard alone
(`confine.py`), as an unprivileged user and with its own sandbox. What does not work here is said in
the log, once.
    confinement = confinement_of(find_chromium())
    async with confinement.launcher(guard) as options: await playwright.chromium.launch(**options)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from terrella.browser.guard import NetworkGuard
from terrella.core.errors import ConfigError, MissingProgramError

logger = logging.getLogger("terrella.browser")
CHROMIUM_PATHS = (
    "/usr/lib/chromium/chromium",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
)
CHROMIUM_REMEDY = "apt-get install chromium, or set TERRELLA_CHROMIUM to its path"
DISABLED_FEATURES = (
    # Two pages of the browser's own for the address bar: half of what a new window costs.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # What Playwright disables: of two such flags Chromium reads the last one only.
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "TcpPortRandomizationWin",
    "ThirdPartyStoragePartitioning",
    "msEdgeUpdateLaunchServicesPreferredVersion",
    "msForceBrowserSignIn",
)
FLAGS = (
    f"--disable-features={','.join(DISABLED_FEATURES)}",
    # Exposes the computed roles and names that assistive software gets.
    "--enable-blink-features=ComputedAccessibilityInfo",
    # The browser resolves no names itself: the guard does. A name that ends in .local would be
    # asked for by multicast even if it is not found, so it gets an address that leads nowhere.
    "--host-resolver-rules=MAP *.local 192.0.2.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # Loopback goes through the guard like everything else.
    "--proxy-bypass-list=<-loopback>",
    # WebRTC may not send UDP past the proxy, nor HTTP/3.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # Chromium's own requests would only be refused.
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-pings",
    "--disable-gpu",
)
UNWANTED_FLAGS = (
    # With Chromium's own popup blocker a click opens one window, as for a person. Without it a page
    # opens windows without end, and the click is not over before the last one is open.
    "--disable-popup-blocking",
)
"""Flags that Playwright would add."""
KEPT_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TZ", "HOME", "LD_LIBRARY_PATH")
KEPT_PREFIXES = ("LC_", "FONTCONFIG_")
"""Environment variables that Chromium gets; tokens and keys are none of its business."""
USER_VARIABLE = "TERRELLA_BROWSER_USER"
GUARD_PORT = 3128
"""The guard's port inside the browser's own network, where every port is free."""
HAND_OVER_SECONDS = 30.0
WRAPPER = Path(str(resources.files("terrella.browser"))) / "confine.sh"


def find_chromium(executable: str = "") -> str:
    """Return the path of Chromium; the error says how to install it."""
    configured = executable or os.environ.get("TERRELLA_CHROMIUM", "")
    for path in (configured,) if configured else CHROMIUM_PATHS:
        if Path(path).is_file():
            return path
    if configured:
        raise MissingProgramError(
            configured, "there is no such file", "set TERRELLA_CHROMIUM to Chromium's path"
        )
    raise MissingProgramError("Chromium", "was not found; web worlds need it", CHROMIUM_REMEDY)


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """What keeps Chromium in, on this machine."""

    chromium: str
    network: bool = False
    """Whether it gets a network of its own, with the guard alone."""
    user: int = 0
    """The user that it runs as; 0 keeps this process's user."""
    group: int = 0
    sandbox: bool = True
    """Whether its own sandbox is on."""

    @contextlib.asynccontextmanager
    async def launcher(self, guard: NetworkGuard) -> AsyncIterator[dict[str, Any]]:
        """Yield the options of Playwright's `launch`; the guard is listening at the end."""
        options: dict[str, Any] = {
            "executable_path": self.chromium,
            "args": list(FLAGS),
            "ignore_default_args": list(UNWANTED_FLAGS),
            "chromium_sandbox": self.sandbox,
            "env": bare_environment(),
        }
        if not self.network and not self.user:
            yield {**options, "proxy": proxy(await guard.start())}
        elif not self.network:
            yield {**options, **self._wrapped(""), "proxy": proxy(await guard.start())}
        else:
            with _socket_receiver() as (path, receiver):
                started = asyncio.create_task(_take_over(receiver, guard))
                try:
                    yield {**options, **self._wrapped(path), "proxy": proxy(GUARD_PORT)}
                    await started
                finally:
                    started.cancel()

    def _wrapped(self, guard_path: str) -> dict[str, Any]:
        """Options that start `confine.py` in place of Chromium."""
        environment = bare_environment() | self.spec(guard_path)
        return {"executable_path": str(WRAPPER), "env": environment}

    def spec(self, guard_path: str) -> dict[str, str]:
        """Return the variables that `confine.py` reads."""
        spec = {
            "chromium": self.chromium,
            "user": self.user,
            "group": self.group,
            "guard": guard_path,
            "port": GUARD_PORT,
            "temporary": tempfile.gettempdir(),
        }
        return {"TERRELLA_CONFINE": json.dumps(spec), "TERRELLA_PYTHON": sys.executable}


def proxy(port: int) -> dict[str, str]:
    """Playwright's setting for a proxy on loopback."""
    return {"server": f"http://127.0.0.1:{port}"}


def bare_environment() -> dict[str, str]:
    """The variables that Chromium gets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }


@contextlib.contextmanager
def _socket_receiver() -> Iterator[tuple[str, socket.socket]]:
    """A Unix socket, in a folder that is ours alone, at which `confine.py` hands over its own."""
    with (
        tempfile.TemporaryDirectory(prefix="terrella-guard-") as folder,
        socket.socket(socket.AF_UNIX) as receiver,
    ):
        path = str(Path(folder) / "guard")
        receiver.bind(path)
        receiver.listen(1)
        receiver.setblocking(False)
        yield path, receiver


async def _take_over(receiver: socket.socket, guard: NetworkGuard) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HAND_OVER_SECONDS):
        connection, _ = await loop.sock_accept(receiver)
        with connection:
            connection.setblocking(True)  # what is expected was sent together with the connection
            _, (descriptor,), _, _ = socket.recv_fds(connection, 16, 1)
            await guard.start(socket.socket(fileno=descriptor))
            connection.send(b"x")


# --- what works here ------------------------------------------------------------------------------


@functools.cache
def confinement_of(chromium: str) -> Confinement:
    """Find out how well Chromium can be confined here, and log what cannot be done."""
    wish = _wished_user(chromium)
    missing = _probe(wish)
    if missing["user"]:
        logger.warning("Chromium runs as root: %s; set %s", missing["user"], USER_VARIABLE)
        wish = Confinement(chromium=chromium)
        missing = _probe(wish)
    is_root = os.geteuid() == 0 and not wish.user
    if missing["network"]:
        logger.warning(
            "Chromium shares this machine's network (%s): its flags keep pages behind the guard, "
            "and a self-test checks that they do",
            missing["network"],
        )
    if is_root or (wish.user and missing["sandbox"]):
        why = missing["sandbox"] or "it refuses to work for root"
        logger.warning("Chromium runs without its sandbox: %s", why)
    return Confinement(
        chromium=chromium,
        network=not missing["network"],
        user=wish.user,
        group=wish.group,
        # For users other than root Chromium itself refuses to start without a sandbox.
        sandbox=not is_root and not (wish.user and missing["sandbox"]),
    )


def _wished_user(chromium: str) -> Confinement:
    """The user to run as: when we are root, $TERRELLA_BROWSER_USER or `nobody`."""
    name = os.environ.get(USER_VARIABLE, "")
    if os.geteuid() != 0:
        return Confinement(chromium=chromium)
    try:
        entry = pwd.getpwnam(name or "nobody")
    except KeyError as error:
        if name:
            raise ConfigError(USER_VARIABLE, f"there is no user {name}") from error
        return Confinement(chromium=chromium)
    return Confinement(chromium=chromium, user=entry.pw_uid, group=entry.pw_gid)


def _probe(wish: Confinement) -> dict[str, str]:
    if sys.platform != "linux":
        return {"network": f"no network namespaces on {sys.platform}", "user": "", "sandbox": ""}
    environment = bare_environment() | wish.spec("")
    try:
        command = [str(WRAPPER), "--probe"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=30, check=True
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"network": f"{WRAPPER.name} failed: {error}", "user": str(error), "sandbox": ""}
