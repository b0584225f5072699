"""A self-test of a browser that was just started: nothing it does may arrive past the guard.

Flags of Chromium change their names, and a flag that is not known is ignored in silence. So a page
of our own tries UDP and TCP to two ports of ours that are not on the allow-list. If anything
arrives, no other page is opened.
    await check_for_leaks(browser)  # raises ConfigError
"""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

from terrella.core.errors import ConfigError

SCRIPT = resources.files("terrella.browser").joinpath("self_test.js").read_text(encoding="utf-8")
MILLISECONDS = 400
"""Longest wait for the tries; where nothing leaks they end sooner."""


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.count = 0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.count += 1


async def check_for_leaks(browser: Any) -> None:
    """Raise ConfigError when a page of this browser reaches a port past the guard."""
    connections = 0

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    transport, datagrams = await loop.create_datagram_endpoint(
        _Datagrams, local_addr=("127.0.0.1", 0)
    )
    try:
        udp = transport.get_extra_info("sockname")[1]
        tcp = server.sockets[0].getsockname()[1]
        page = await browser.new_page()
        await page.evaluate(f"{SCRIPT}({udp}, {tcp}, {MILLISECONDS})")
        await page.context.close()
    finally:
        transport.close()
        server.close()
    if datagrams.count or connections:
        raise ConfigError(
            f"chromium {browser.version}",
            "its pages get past the guard: in the self-test "
            f"{datagrams.count} UDP packets and {connections} TCP connections arrived at ports "
            "that are not on the allow-list, so no page is opened",
            "set TERRELLA_CHROMIUM to another version, and report this one",
        )
