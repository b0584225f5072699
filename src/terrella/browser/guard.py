"""The only way out of a browser: a proxy on loopback that lets through what an allow-list names, and nothing else.

Chromium is started with this proxy for every scheme and every host, loopback included, so redirects, popups,
WebSockets and scripts all come here. A name is resolved here, once, and the checked address is the one that is
connected to: a name that later points to 127.0.0.1 (DNS rebinding) gets nowhere. Folders can be served as sites.
    guard = Guard(allow=(Allow("shop.test", 80, "127.0.0.1:8001"),), folders={"pages.test": Path("html")})
    port = await guard.start(); ...; guard.refused  # what pages tried
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import mimetypes
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_HEAD = 64 * 1024
CHUNK = 64 * 1024
HOP_HEADERS = {"connection", "proxy-connection", "keep-alive", "proxy-authorization"}


@dataclass(frozen=True, kw_only=True)
class Allow:
    """One host and port that pages may reach. `at` pins it to an address, the only way to allow a private one."""

    host: str
    port: int = 80
    at: str = ""
    """`address:port` to connect to instead of resolving the name."""


class RefusedError(Exception):
    """A request that must not leave; the message says which rule it broke."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, by the system's resolver."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass
class Guard:
    """The proxy. `refused` lists what was turned away, newest last."""

    allow: Sequence[Allow] = ()
    folders: Mapping[str, Path] = field(default_factory=dict[str, Path])
    resolver: Callable[[str, int], list[str]] = resolve
    refused: list[str] = field(default_factory=list[str])
    server: asyncio.Server | None = None
    serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def start(self) -> int:
        """Listen on a free loopback port and return it."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and cut what is open."""
        if self.server is not None:
            self.server.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    def target(self, host: str, port: int) -> tuple[str, int]:
        """The address to connect to, or RefusedError."""
        for rule in self.allow:
            if (rule.host, rule.port) == (host.lower().rstrip("."), port):
                if rule.at:
                    address, _, at_port = rule.at.rpartition(":")
                    return address, int(at_port)
                return self._public(host, port), port
        raise RefusedError(f"{host}:{port} is not on the allow-list")

    def _public(self, host: str, port: int) -> str:
        """A resolved address of a name that is not pinned: it must be on the public Internet."""
        addresses = self.resolver(host, port)
        private = [one for one in addresses if not ipaddress.ip_address(one).is_global]
        if private or not addresses:
            raise RefusedError(f"{host} resolves to {private or 'nothing'}, and no rule pins it there")
        return addresses[0]

    # --- one connection -------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)
        # A browser that goes away mid-request is no event worth reporting; the connection just ends.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            while await self._one_request(reader, writer):
                pass
        with contextlib.suppress(ConnectionError, OSError):
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; True when another may follow on this connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *headers = head.split("\r\n")[:-2]
        method, target, _ = line.split(" ", 2)
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
            await self._forward(address, _origin_head(method, target, headers), headers, reader, writer)
        except (RefusedError, ValueError) as refusal:
            self.refused.append(f"{method} {target}: {refusal}")
            _reply(writer, "403 Forbidden", b"refused by the allow-list")
        except OSError as error:
            _reply(writer, "502 Bad Gateway", f"{type(error).__name__}: {error}".encode())
        return False

    async def _tunnel(
        self, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection(*address)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.close()

    async def _forward(
        self, address: tuple[str, int], head: bytes, headers: Sequence[str], reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        length = next((int(h.split(":", 1)[1]) for h in headers if h.lower().startswith("content-length:")), 0)
        far_reader, far_writer = await asyncio.open_connection(*address)
        try:
            far_writer.write(head)
            while length:
                part = await reader.read(min(length, CHUNK))
                if not part:
                    return
                far_writer.write(part)
                length -= len(part)
            await far_writer.drain()
            await _pump(far_reader, writer)
        finally:
            far_writer.close()

    def _send_file(self, folder: Path, path: str, writer: asyncio.StreamWriter) -> bool:
        root = folder.resolve()
        file = (root / unquote(path).lstrip("/")).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            _reply(writer, "404 Not Found", b"", keep=True)
            return True
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        _reply(writer, "200 OK", file.read_bytes(), kind=kind, keep=True)
        return True


def _origin_head(method: str, target: str, headers: Sequence[str]) -> bytes:
    """The request as the site expects it: its own path, one request per connection."""
    url = urlsplit(target)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [header for header in headers if header.split(":", 1)[0].lower() not in HOP_HEADERS]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1")


def _reply(
    writer: asyncio.StreamWriter, status: str, body: bytes, *, kind: str = "text/plain", keep: bool = False
) -> None:
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: max-age=86400",
    ]
    head += [f"Connection: {'keep-alive' if keep else 'close'}", "", ""]
    writer.write("\r\n".join(head).encode("latin-1") + body)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while part := await source.read(CHUNK):
        sink.write(part)
        await sink.drain()
    sink.close()
