"""Middleware around the whole application: access, size and time limits, and error replies.

A request is checked in this order: its token (for every path but /health, whether it exists or
not), the host that a browser believes it talks to, its size. A body is read on the paths that use
one, and refused unread everywhere else. Then the request has a time limit. When the client leaves,
its work is cancelled.
    app = RequestGuard(routes, token, limits, metrics, body_paths=("/predict",))
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from typing import Any

from terrella.serve.metrics import Metrics
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError

logger = logging.getLogger("terrella.serve")
OPEN_PATHS = ("/health",)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_DIGITS = 12
"""Most digits of a length that a client claims."""
SMALL_BODY = 65_536
"""Bytes of a body that are not counted: the number of connections bounds them."""
SERVER_FAILED = "the server failed; see its log"

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class RequestGuard:
    """ASGI middleware that sees every request first and every reply last."""

    def __init__(
        self,
        app: App,
        token: str,
        limits: ServeSettings.Config,
        metrics: Metrics,
        *,
        body_paths: Collection[str],
    ) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.body_paths = frozenset(body_paths)
        self.body_bytes = 0
        """Bytes of the bodies that are held now."""
        self.authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope)
        if scope["type"] != "websocket":
            return await self._serve_http(scope, receive, send, refusal)
        if refusal is None:
            return await self.app(scope, receive, send)
        return await _refuse_websocket(scope, send, refusal)

    async def _serve_http(
        self, scope: Scope, receive: Any, send: Any, refusal: RequestError | None
    ) -> None:
        began = time.perf_counter()
        reply = _Reply(send, unread=has_body(scope))
        try:
            if refusal is not None:
                raise refusal
            async with self._body(scope, receive) as body:
                reply.unread = False
                await self._answer(scope, body, receive, reply)
        except RequestError as error:
            await reply.error(error)
        except Exception:
            logger.exception("%s failed", scope.get("terrella.route", "a route"))
            if not reply.status:
                await reply.error(RequestError(500, SERVER_FAILED, "INTERNAL_ERROR"))
        route = scope.get("terrella.route", "none")
        self.metrics.count("requests", route=route, status=reply.status)
        self.metrics.time(route, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> RequestError | None:
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        authorized = hmac.compare_digest(authorization, self.authorization)
        if scope["path"] not in OPEN_PATHS and not authorized:
            return RequestError(401, "a bearer token is needed", "UNAUTHORIZED")
        return self.wrong_host(scope)

    def wrong_host(self, scope: Scope) -> RequestError | None:
        """Refuse requests of a page whose host name was rebound to loopback."""
        header = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        host = re.sub(r":\d+$", "", header).strip("[]")
        if self.limits.host not in LOOPBACK or host in LOOPBACK:
            return None
        return RequestError(421, "this server answers to its loopback name only", "MISDIRECTED")

    async def _answer(self, scope: Scope, body: bytes, receive: Any, reply: _Reply) -> None:
        """Run the application until it has answered, the time is over or the client leaves."""
        leaving = asyncio.ensure_future(receive())  # after the body, only a disconnect can come
        work = asyncio.ensure_future(self.app(scope, _replay(body, leaving), reply))
        try:
            seconds = self.limits.request_seconds
            await asyncio.wait(
                {work, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if leaving.done():
                raise RequestError(499, "the client disconnected", "DISCONNECTED")
            raise RequestError(504, f"no answer within {seconds:g} s", "TIMEOUT")
        finally:
            await cancel(work, leaving)

    @contextlib.asynccontextmanager
    async def _body(self, scope: Scope, receive: Any) -> AsyncIterator[bytes]:
        """Read the whole body, or raise as soon as it is too large; its bytes count until the end.

        Bodies that nobody reads are refused before they arrive.
        """
        is_used = scope["method"] == "POST" and scope["path"] in self.body_paths
        if not is_used:
            if has_body(scope):
                raise RequestError(413, "no body is read here", "TOO_LARGE")
            yield b""
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if len(length) > MAX_DIGITS or (length.isdigit() and int(length) > self.limits.max_body):
            raise self._too_large()
        body = bytearray()
        counted = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while await self._read_more(body, receive):
                    if len(body) > SMALL_BODY:
                        counted += self._count(len(body) - counted)
            yield bytes(body)
        except TimeoutError as error:
            message = f"the body did not arrive within {self.limits.body_seconds:g} s"
            raise RequestError(408, message, "TIMEOUT") from error
        finally:
            self.body_bytes -= counted

    def _count(self, size: int) -> int:
        """Add bytes to those of the large bodies that are held now."""
        if self.body_bytes + size > self.limits.max_bodies:
            message = "too many large requests at once: try again later"
            raise RequestError(503, message, "CAPACITY_REACHED")
        self.body_bytes += size
        return size

    async def _read_more(self, body: bytearray, receive: Any) -> bool:
        """Add what arrives next; return whether more will come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the client disconnected", "DISCONNECTED")
        body += message.get("body", b"")
        if len(body) > self.limits.max_body:
            raise self._too_large()
        return bool(message.get("more_body"))

    def _too_large(self) -> RequestError:
        return RequestError(413, f"at most {self.limits.max_body} bytes", "TOO_LARGE")


def has_body(scope: Scope) -> bool:
    """Whether the head announces a body."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def _replay(body: bytes, leaving: asyncio.Future[Any]) -> Any:
    """Return a `receive` that delivers the body again, then the disconnect when it comes."""
    delivered = False

    async def replayed() -> Any:
        nonlocal delivered
        if delivered:
            return await asyncio.shield(leaving)
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


class _Reply:
    """Tracks whether a reply was begun: an error after that can only end the connection."""

    def __init__(self, send: Any, *, unread: bool) -> None:
        self.send = send
        self.status = 0
        self.unread = unread
        """Whether there is a body that was not read: then the connection is closed."""

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.send(message)

    async def error(self, error: RequestError) -> None:
        if self.status:
            logger.warning("a reply was cut off: %s", error.message)
            return
        self.status = error.status
        await send_error(self.send, error, close=self.unread)


async def send_error(send: Any, error: RequestError, *, close: bool) -> None:
    """Send an error as a complete reply; `close` ends the connection after it."""
    body = json.dumps(error.json()).encode()
    headers = [*_headers(error), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    elif error.status == 503:
        headers.append((b"retry-after", b"1"))
    return headers


async def _refuse_websocket(scope: Scope, send: Any, error: RequestError) -> None:
    """Refuse with a status if the server supports it, else close before the handshake."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 4401, "reason": error.message})
        return
    start = {"status": error.status, "headers": _headers(error)}
    body = json.dumps(error.json()).encode()
    await send({"type": "websocket.http.response.start", **start})
    await send({"type": "websocket.http.response.body", "body": body})
