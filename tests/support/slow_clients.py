"""Clients on raw sockets: the ones that hold back, and the ones that ask."""

import asyncio
import contextlib
import json
import time

from tests.support.served import TOKEN


def head(method, path, *, token=TOKEN, length=None, lines=()):
    """The head of a request."""
    rows = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if token:
        rows.append(f"Authorization: Bearer {token}")
    if length is not None:
        rows.append(f"Content-Length: {length}")
    return "\r\n".join([*rows, *lines, "", ""]).encode()


def post(path, body, **options):
    """A whole request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, length=len(data), **options) + data


async def read_reply(reader):
    """Status, whether the connection stays open, and the body of the next reply."""
    status = int((await reader.readline()).split()[1])
    length, keeps = 0, True
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().lower().partition(":")
        length = int(value) if name == "content-length" else length
        keeps = keeps and not (name == "connection" and "close" in value)
    return status, keeps, await reader.readexactly(length)


async def exchange(port, request, seconds=20.0):
    """Send one request on a connection of its own; return its reply."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            return await read_reply(reader)
        finally:
            writer.transport.abort()


async def ended(reader, seconds=20.0):
    """Wait until the server hangs up; returns what it sent before."""
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def send_slowly(port, start, until, *, pause=1.0, rest=b"X-Slow: 1\r\n"):
    """Send a start, then a little from time to time, and come back when dropped; counts drops."""
    drops = 0
    while time.perf_counter() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            while time.perf_counter() < until and not writer.is_closing():
                await asyncio.sleep(pause)
                writer.write(rest)
                await writer.drain()
            writer.transport.abort()
        except OSError:
            await asyncio.sleep(pause)
        drops += 1
    return drops
