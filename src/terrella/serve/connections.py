"""Connections of the HTTP server: deadlines for heads, and room for those who ask.

uvicorn waits for the head of a request without end, counts silent connections as busy, and reads
heads of any length. Here a head must arrive within a few seconds and a few kilobytes. When all
connections are taken, the one that has been silent for longest is closed, first of those that never
asked anything: a client that sends its request at once is served, however many others hold back.
    uvicorn.Config(app, http=limited_protocol(limits), ...)
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from terrella.serve.settings import ServeSettings

logger = logging.getLogger("terrella.serve")
SPARE_FILES = 128
"""Files that the process needs beside its connections."""


def uvicorn_settings(app: Any, limits: ServeSettings.Config) -> dict[str, Any]:
    """Return the arguments of `uvicorn.Config` with all limits.

    There is no access log, because the URL of a page contains its token.
    """
    return {
        "app": app,
        "http": limited_protocol(limits),
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": int(limits.drain_seconds),
        "ws_max_size": limits.max_message,
        "ws_max_queue": 1,  # a client that does not wait for replies is not read ahead
    }


def limited_protocol(limits: ServeSettings.Config) -> type[HttpToolsProtocol]:
    """Return the protocol of one server; its connections share their limits."""
    allowed_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = _Room(max(1, min(limits.max_connections, allowed_files - SPARE_FILES)))

    class Protocol(LimitedProtocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.room = room
            self.limits = limits

    return Protocol


class _Room:
    """The connections of a server: how many may be open, and which of them are silent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0
        """Connections with a request that is being answered, and open WebSockets."""
        self.unproven: dict[LimitedProtocol, None] = {}
        """Connections that have never sent a whole head, the oldest first."""
        self.kept: dict[LimitedProtocol, None] = {}
        """Connections that wait for their next request, the oldest first."""

    def enter(self, connection: LimitedProtocol) -> None:
        """Take a connection in; close the oldest silent one, or this one, when there is no room."""
        if self.busy + len(self.unproven) + len(self.kept) >= self.size:
            oldest = next(iter(self.unproven or self.kept), None)
            if oldest is None:
                connection.refuse(b"503 Service Unavailable")
                return
            oldest.drop()
        self.unproven[connection] = None

    def leave(self, connection: LimitedProtocol) -> None:
        self.unproven.pop(connection, None)
        self.kept.pop(connection, None)
        self._set_busy(connection, False)

    def begin(self, connection: LimitedProtocol) -> None:
        """A head is complete: the connection is busy until its request is answered."""
        if connection in self.unproven or connection in self.kept:
            self.leave(connection)
            self._set_busy(connection, True)

    def end(self, connection: LimitedProtocol) -> None:
        """The answer is complete: the connection may be dropped for another."""
        if connection.answering:
            self._set_busy(connection, False)
            self.kept[connection] = None

    def _set_busy(self, connection: LimitedProtocol, busy: bool) -> None:
        self.busy += int(busy) - int(connection.answering)
        connection.answering = busy


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline and a length for heads, and a place in the room."""

    room: _Room
    limits: ServeSettings.Config
    answering = False
    """Whether this connection counts as busy."""
    head_bytes = 0
    head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self.room.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.room.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # refused: what still arrives is not read
        if not self.answering:
            if self.head_deadline is None:  # the next request of a connection that was kept
                self._await_head()
            self.head_bytes += len(data)
        super().data_received(data)
        # One read may hold the end of a head and a part of its body: that counts as neither.
        if not self.answering and self.head_bytes > self.limits.max_head:
            self.refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self.room.begin(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no other request was sent ahead
            self.room.end(self)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket's protocol; it stays busy until it is lost."""
        super().handle_websocket_upgrade()
        upgraded: Any = self.transport.get_protocol()
        lost = upgraded.connection_lost

        def leave(exc: Exception | None) -> None:
            self.room.leave(self)
            lost(exc)

        upgraded.connection_lost = leave

    # --- ends that the client has earned ----------------------------------------------------------

    def _await_head(self) -> None:
        self.head_bytes = 0
        self.head_deadline = self.loop.call_later(
            self.limits.head_seconds, self.refuse, b"408 Request Timeout"
        )

    def _stop_waiting(self) -> None:
        if self.head_deadline is not None:
            self.head_deadline.cancel()
            self.head_deadline = None

    def refuse(self, status: bytes) -> None:
        """Answer without the application, and hang up."""
        if not self.transport.is_closing():
            head = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 " + status + head)
            self.transport.close()

    def drop(self) -> None:
        """Hang up on a silent client, so that another one finds room."""
        logger.debug("a silent connection was dropped: all %d are taken", self.room.size)
        self.room.leave(self)
        self.transport.abort()
