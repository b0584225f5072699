"""Who gets in, how much they may send, and what they are told when something breaks. Wraps the whole application.

Order: the token (every path but /health, known or not), the host a browser thinks it talks to, the size, the time.
    app = Guard(routes, token, limits, metrics)
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

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Guard:
    """ASGI middleware; the first thing that sees a request and the last that touches the reply."""

    def __init__(self, app: App, token: str, limits: ServeSettings.Config, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve, or say why not."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        refused = self._refused(scope)
        if scope["type"] == "websocket":
            if refused is None:
                return await self.app(scope, receive, send)
            return await _refuse_websocket(scope, send, refused)
        began, reply = time.perf_counter(), _Reply(send)
        try:
            if refused is not None:
                raise refused
            body = await self._body(scope, receive)
            async with asyncio.timeout(self.limits.request_seconds):
                await self.app(scope, _replay(body, receive), reply)
        except RequestError as error:
            await reply.error(error)
        except TimeoutError:
            await reply.error(RequestError(504, f"no answer within {self.limits.request_seconds:g} s", "TIMEOUT"))
        except Exception:
            logger.exception("%s broke", scope.get("terrella.route", "a route"))
            if not reply.status:
                await reply.error(RequestError(500, "the server failed; its log says why", "INTERNAL_ERROR"))
        route = scope.get("terrella.route", "none")
        self.metrics.count("requests", route=route, status=reply.status)
        self.metrics.time(route, time.perf_counter() - began)
        return None

    def _refused(self, scope: Scope) -> RequestError | None:
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not hmac.compare_digest(headers.get(b"authorization", b""), self.wanted):
            return RequestError(401, "a bearer token is needed", "UNAUTHORIZED")
        return self.wrong_host(scope)

    def wrong_host(self, scope: Scope) -> RequestError | None:
        """A page elsewhere whose name was rebound to loopback says so in this header."""
        told = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        host = re.sub(r":\d+$", "", told).strip("[]")
        if self.limits.host not in LOOPBACK or host in LOOPBACK:
            return None
        return RequestError(421, "this server answers to its loopback name only", "MISDIRECTED")

    async def _body(self, scope: Scope, receive: Any) -> bytes:
        """All of it, or 413 as soon as it is too much."""
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self.limits.max_body:
            raise RequestError(413, f"at most {self.limits.max_body} bytes", "TOO_LARGE")
        chunks, size = [], 0
        async with asyncio.timeout(self.limits.request_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "the client went away", "DISCONNECTED")
                size += len(message.get("body", b""))
                if size > self.limits.max_body:
                    raise RequestError(413, f"at most {self.limits.max_body} bytes", "TOO_LARGE")
                chunks.append(message.get("body", b""))
                if not message.get("more_body"):
                    return b"".join(chunks)


def _replay(body: bytes, receive: Any) -> Any:
    """The body once more, then whatever comes (a disconnect)."""
    told = False

    async def again() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class _Reply:
    """Remembers whether a reply was begun: an error after that can only end the connection."""

    def __init__(self, send: Any) -> None:
        self.send, self.status = send, 0

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
    """A refusal as a whole reply."""
    await send({"type": "http.response.start", "status": error.status, "headers": _headers(error)})
    await send({"type": "http.response.body", "body": json.dumps(error.json()).encode()})


def _headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    more = {401: (b"www-authenticate", b"Bearer"), 503: (b"retry-after", b"1")}
    return [(b"content-type", b"application/json"), *([more[error.status]] if error.status in more else [])]


async def _refuse_websocket(scope: Scope, send: Any, error: RequestError) -> None:
    """With a status where the server can give one, else by closing before the handshake."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": _headers(error)})
        await send({"type": "websocket.http.response.body", "body": json.dumps(error.json()).encode()})
    else:
        await send({"type": "websocket.close", "code": 4401, "reason": error.message})
