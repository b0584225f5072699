"""Middleware around the whole application: access, size and time limits, and error replies.

A request is checked in this order: its token (for every path but /health, whether it exists or
not), the host that a browser believes it talks to, its size. Then it has a time limit.
    app = RequestGuard(routes, token, limits, metrics)
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from terrella.serve.metrics import Metrics
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError

logger = logging.getLogger("terrella.serve")
OPEN_PATHS = ("/health",)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER_FAILED = "the server failed; see its log"

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class RequestGuard:
    """ASGI middleware that sees every request first and every reply last."""

    def __init__(
        self, app: App, token: str, limits: ServeSettings.Config, metrics: Metrics
    ) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
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
        reply = _Reply(send)
        try:
            if refusal is not None:
                raise refusal
            body = await self._body(scope, receive)
            async with asyncio.timeout(self.limits.request_seconds):
                await self.app(scope, _replay(body, receive), reply)
        except RequestError as error:
            await reply.error(error)
        except TimeoutError:
            message = f"no answer within {self.limits.request_seconds:g} s"
            await reply.error(RequestError(504, message, "TIMEOUT"))
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

    async def _body(self, scope: Scope, receive: Any) -> bytes:
        """Read the whole body, or raise 413 as soon as it is too large."""
        limit = self.limits.max_body
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise RequestError(413, f"at most {limit} bytes", "TOO_LARGE")
        chunks = []
        size = 0
        async with asyncio.timeout(self.limits.request_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "the client disconnected", "DISCONNECTED")
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise RequestError(413, f"at most {limit} bytes", "TOO_LARGE")
                chunks.append(chunk)
                if not message.get("more_body"):
                    return b"".join(chunks)


def _replay(body: bytes, receive: Any) -> Any:
    """Return a `receive` that delivers the body again, then whatever follows (a disconnect)."""
    delivered = False

    async def replayed() -> Any:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


class _Reply:
    """Tracks whether a reply was begun: an error after that can only end the connection."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.send(message)

    async def error(self, error: RequestError) -> None:
        if self.status:
            logger.warning("a reply was cut off: %s", error.message)
            return
        self.status = error.status
        await send_error(self.send, error)


async def send_error(send: Any, error: RequestError) -> None:
    """Send an error as a complete reply."""
    await send({"type": "http.response.start", "status": error.status, "headers": _headers(error)})
    await send({"type": "http.response.body", "body": json.dumps(error.json()).encode()})


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
