"""HTTP requests that go to the named host and to no other, and that end in time.

A redirect would carry the key or the token of a request to wherever the server points. A socket's
own time-out is for each piece, and a server may drip them: here a watchdog ends the connection.
    body = fetch(urllib.request.Request(url, headers=headers), seconds=60.0, max_bytes=2**20)
"""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

PIECE_BYTES = 65_536
MAX_ERROR_BYTES = 500
"""What is kept of the body of a reply with an error status."""


def fetch(
    request: urllib.request.Request, *, seconds: float, max_bytes: int, proxies: bool = True
) -> bytes:
    """The body of a reply; see `download`."""
    body = io.BytesIO()
    download(request, body, seconds=seconds, max_bytes=max_bytes, proxies=proxies)
    return body.getvalue()


def download(
    request: urllib.request.Request,
    target: BinaryIO,
    *,
    seconds: float,
    max_bytes: int,
    piece_seconds: float = math.inf,
    proxies: bool = True,
) -> None:
    """Write the body of a reply to `target`; the whole request has `seconds`, each piece less.

    `proxies` are those of the environment. Raises OSError (a time-out, and an HTTPError that keeps
    the beginning of its body), HTTPException, or ValueError for a body above `max_bytes`.
    """
    with _watching(seconds) as watch:
        try:
            with _opener(watch, proxies).open(
                request, timeout=min(seconds, piece_seconds)
            ) as reply:
                size = 0
                while piece := reply.read1(PIECE_BYTES):
                    size += len(piece)
                    if size > max_bytes:
                        raise ValueError(f"the reply is larger than {max_bytes:,} bytes")
                    target.write(piece)
        except urllib.error.HTTPError as error:
            with error:
                said = _beginning(error)
            raise urllib.error.HTTPError(
                error.url, error.code, error.msg, error.headers, io.BytesIO(said)
            ) from None
        except (OSError, http.client.HTTPException) as error:
            if watch.expired:
                raise TimeoutError(_LATE.format(seconds)) from error
            raise
    if watch.expired:  # a connection that was ended looks like a reply that ended
        raise TimeoutError(_LATE.format(seconds))


_LATE = "the reply was not complete within the time limit of {:g} s"


def _beginning(error: urllib.error.HTTPError) -> bytes:
    """What the server said about an error; it may be cut off, and the status is what counts."""
    try:
        return error.read(MAX_ERROR_BYTES)
    except (OSError, http.client.HTTPException):
        return b"(without an explanation)"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Return None, which makes urllib raise an HTTPError."""


def _opener(watch: _Watch, proxies: bool) -> urllib.request.OpenerDirector:
    """Http and https only: no files, no FTP, no `data:`."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if proxies else {}),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoRedirect(),
        _WatchedHandler(watch),
    ):
        opener.add_handler(handler)
    return opener


# --- the watchdog ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _watching(seconds: float) -> Iterator[_Watch]:
    watch = _Watch()
    timer = threading.Timer(seconds, watch.expire)
    timer.daemon = True
    timer.start()
    try:
        yield watch
    finally:
        timer.cancel()
        watch.close()


class _Watch:
    """Ends the connections of one request when its time is over, whoever waits on them."""

    def __init__(self) -> None:
        self.expired = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def add(self, connected: socket.socket) -> None:
        with self._lock:
            # A duplicate stays valid when TLS or http.client takes the socket over.
            self._sockets.append(connected.dup())
            if self.expired:
                self._end()

    def expire(self) -> None:
        with self._lock:
            self.expired = True
            self._end()

    def _end(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # it has ended
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            while self._sockets:
                self._sockets.pop().close()


class _WatchedHTTP(http.client.HTTPConnection):
    watch: _Watch

    def connect(self) -> None:
        super().connect()
        self.watch.add(self.sock)


class _WatchedHTTPS(http.client.HTTPSConnection, _WatchedHTTP):
    """The order of the base classes watches the connection before TLS begins on it."""


class _WatchedHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, _WatchedHTTP), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, _WatchedHTTPS), req)

    def _connection(self, kind: type[_WatchedHTTP], host: str, **settings: Any) -> _WatchedHTTP:
        connection = kind(host, **settings)
        connection.watch = self._watch
        return connection
