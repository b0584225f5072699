"""Servers on loopback that send a few bytes at a time and never end a reply."""

import contextlib
import socket
import threading
import time

OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "head": (OK, b"X"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "body without a length": (OK + b"\r\n", b" "),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "trailer": (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"),
    "TLS": (b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00"),
}
"""What is sent at once, and what is sent again and again."""
ERROR = (b"HTTP/1.1 500 no\r\nContent-Length: 400\r\n\r\n", b"x")


@contextlib.contextmanager
def dripping(first, again):
    """The port of a server that sends `first`, and `again` until the client hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))
    hung_up = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(first)
                while not hung_up.is_set():
                    time.sleep(0.05)
                    connection.sendall(again)

    threading.Thread(target=drip, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        hung_up.set()
        listening.close()
