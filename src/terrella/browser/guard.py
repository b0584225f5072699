"""A loopback proxy that lets a browser reach only what an allow-list names.

Chromium is started with this proxy for every scheme and every host, loopback included, so
redirects, popups, WebSockets and scripts all pass through it. The proxy resolves each name itself,
once, and connects to the address it has checked: a name that later points to 127.0.0.1 (DNS
rebinding) is refused. Local folders can be served as sites.
    rules = (Allow(host="shop.test", at="127.0.0.1:8001"),)
    guard = NetworkGuard(allow=rules, folders={"pages.test": Path("html")})
    port = await guard.start()
    guard.refused  # the requests that were refused, newest last
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import mimetypes
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_HEAD = 64 * 1024
CHUNK = 64 * 1024
MAX_REFUSED = 1000
MAX_LINE = 300
GUARD_HEADER = "x-terrella-guard"
"""A header of the guard's own error pages: it says what went wrong."""
HOP_HEADERS = {"connection", "proxy-connection", "keep-alive", "proxy-authorization"}


@dataclass(frozen=True, kw_only=True)
class Allow:
    """A host and port that pages may reach.

    A private address can only be allowed by pinning the host to it with `at`.
    """

    host: str
    port: int = 80
    at: str = ""
    """`address:port` to connect to; the name is not resolved."""


class RefusedError(Exception):
    """A request that is not allowed; the message says why."""


def resolve(host: str, port: int) -> list[str]:
    """Resolve a name to its addresses with the system's resolver."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(socket_address[0]) for _, _, _, _, socket_address in entries]


@dataclass
class NetworkGuard:
    """The proxy. `refused` lists the requests that were refused, newest last."""

    allow: Sequence[Allow] = ()
    folders: Mapping[str, Path] = field(default_factory=dict[str, Path])
    resolver: Callable[[str, int], list[str]] = resolve
    refused: deque[str] = field(default_factory=lambda: deque[str](maxlen=MAX_REFUSED))
    server: asyncio.Server | None = None
    serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def start(self, listening: socket.socket | None = None) -> int:
        """Listen on a free loopback port, or on a given socket, and return the port."""
        listening = listening or socket.create_server(("127.0.0.1", 0))
        self.server = await asyncio.start_server(self._accept, sock=listening, limit=MAX_HEAD)
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, cancel open connections and wait until all have ended."""
        if self.server is None:
            return
        self.server.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)
        await self.server.wait_closed()

    def target(self, host: str, port: int) -> tuple[str, int]:
        """Return the address to connect to; raises RefusedError when it is not allowed."""
        for rule in self.allow:
            if (rule.host, rule.port) == (host.lower().rstrip("."), port):
                if rule.at:
                    address, _, at_port = rule.at.rpartition(":")
                    return address, int(at_port)
                return self._public(host, port), port
        raise RefusedError(f"{host}:{port} is not on the allow-list")

    def _public(self, host: str, port: int) -> str:
        """Resolve a name that is not pinned; all its addresses must be public."""
        addresses = self.resolver(host, port)
        private = [address for address in addresses if not ipaddress.ip_address(address).is_global]
        if private or not addresses:
            raise RefusedError(
                f"{host} resolves to {private or 'nothing'}; pin it with Allow(at=...)"
            )
        return addresses[0]

    # --- one connection ---------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a task that we manage.

        The task that asyncio would create reports a cancelled handler as an error.
        """
        if self.server is None or not self.server.is_serving():  # accepted while stopping
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self.serving.add(task)
        # Cleanup is a callback, because a task that is cancelled before its first step never runs.
        task.add_done_callback(lambda ended: self._finish(ended, writer))

    def _finish(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self.serving.discard(task)
        if task.cancelled():
            writer.transport.abort()  # unsent data no longer matters
        else:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A browser that disconnects in the middle of a request is normal: just close.
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError
        ):
            while await self._handle_request(reader, writer):
                pass

    async def _handle_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Handle one request; True when the connection stays open for another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *headers = head.split("\r\n")[:-2]
        method, target, _ = request_line.split(" ", 2)
        try:
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                await self._tunnel(self.target(host.strip("[]"), int(port)), reader, writer)
                return False
            url = urlsplit(target)
            host = url.hostname or ""
            if host in self.folders:
                return self._send_file(self.folders[host], url.path, writer)
            address = self.target(host, url.port or 80)
            origin_head = _origin_head(method, target, headers)
            await self._forward(address, origin_head, headers, reader, writer)
        except (RefusedError, ValueError) as refusal:
            self.refused.append(f"{method} {target[:MAX_LINE]}: {str(refusal)[:MAX_LINE]}")
            _reply(writer, "403 Forbidden", b"refused by the allow-list", fault=str(refusal))
        except OSError as error:
            fault = f"{type(error).__name__}: {error}"
            _reply(writer, "502 Bad Gateway", fault.encode(), fault=fault)
        return False

    async def _tunnel(
        self, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        site_reader, site_writer = await asyncio.open_connection(*address)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_pump(reader, site_writer), _pump(site_reader, writer))
        finally:
            site_writer.close()

    async def _forward(
        self,
        address: tuple[str, int],
        head: bytes,
        headers: Sequence[str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        remaining = _content_length(headers)
        site_reader, site_writer = await asyncio.open_connection(*address)
        try:
            site_writer.write(head)
            while remaining:
                chunk = await reader.read(min(remaining, CHUNK))
                if not chunk:
                    return
                site_writer.write(chunk)
                remaining -= len(chunk)
            await site_writer.drain()
            await _pump(site_reader, writer)
        finally:
            site_writer.close()

    def _send_file(self, folder: Path, path: str, writer: asyncio.StreamWriter) -> bool:
        root = folder.resolve()
        file = (root / unquote(path).lstrip("/")).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            _reply(writer, "404 Not Found", b"", keep_alive=True)
            return True
        content_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        _reply(writer, "200 OK", file.read_bytes(), content_type=content_type, keep_alive=True)
        return True


def _content_length(headers: Sequence[str]) -> int:
    for header in headers:
        if header.lower().startswith("content-length:"):
            return int(header.split(":", 1)[1])
    return 0


def _origin_head(method: str, target: str, headers: Sequence[str]) -> bytes:
    """The request head as the site expects it: a relative path, one request per connection."""
    url = urlsplit(target)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    forwarded = [header for header in headers if header.split(":", 1)[0].lower() not in HOP_HEADERS]
    lines = [f"{method} {path} HTTP/1.1", *forwarded, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _reply(
    writer: asyncio.StreamWriter,
    status: str,
    body: bytes,
    *,
    content_type: str = "text/plain",
    keep_alive: bool = False,
    fault: str = "",
) -> None:
    """Answer in the site's place; `fault` says why the site could not."""
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: max-age=86400",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *([f"{GUARD_HEADER}: {_one_line(fault)}"] if fault else []),
        "",
        "",
    ]
    writer.write("\r\n".join(head).encode("latin-1") + body)


def _one_line(text: str) -> str:
    """A text that fits into a header: a hostile name must not begin a header of its own."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:MAX_LINE])


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(CHUNK):
        sink.write(chunk)
        await sink.drain()
    sink.close()
