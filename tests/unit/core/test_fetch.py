"""Requests that end in time, whatever the server does, and that go to no other host."""

import io
import threading
import time
import urllib.error
import urllib.request

import pytest
from tests.support.chat_server import ChatServer
from tests.support.dripping import ENDLESS, ERROR, dripping

from terrella.core.fetch import download, fetch


def get(url, seconds=0.4):
    """What a request in a thread of its own came to: a request may never end."""
    results = []

    def ask():
        try:
            results.append(fetch(urllib.request.Request(url), seconds=seconds, max_bytes=1000))
        except Exception as error:  # noqa: BLE001  the test looks at it
            results.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(8)
    assert results, "the request does not end"
    return results[0]


@pytest.mark.parametrize("part", ENDLESS)
def test_a_reply_that_never_ends_is_given_up_in_time(part):
    scheme = "https" if part == "TLS" else "http"
    began = time.monotonic()
    with dripping(*ENDLESS[part]) as port:
        error = get(f"{scheme}://127.0.0.1:{port}/")
    assert isinstance(error, TimeoutError) and "time limit of 0.4 s" in str(error)
    assert time.monotonic() - began < 4


def test_an_error_whose_explanation_never_ends_keeps_its_status():
    with dripping(*ERROR) as port:
        error = get(f"http://127.0.0.1:{port}/")
    assert isinstance(error, urllib.error.HTTPError)
    assert error.code == 500 and set(error.read()) == set(b"x")


def test_nothing_is_left_running_after_a_reply():
    before = threading.active_count()
    with ChatServer(lambda *_: (200, b"whole", {})) as server:
        request = urllib.request.Request(server.url, b"{}")
        assert fetch(request, seconds=60.0, max_bytes=5) == b"whole"
        with pytest.raises(ValueError, match="larger than 4 bytes"):
            fetch(request, seconds=60.0, max_bytes=4)
    time.sleep(0.2)
    assert threading.active_count() <= before


def test_redirects_are_not_followed():
    elsewhere = ChatServer(lambda *_: (200, b"", {}))
    with (
        elsewhere,
        ChatServer(lambda *_: (302, b"", {"Location": elsewhere.url})) as server,
        pytest.raises(urllib.error.HTTPError, match="302"),
    ):
        fetch(urllib.request.Request(server.url, b"{}"), seconds=5.0, max_bytes=10)
    assert not elsewhere.requests


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_only_http_is_spoken(url):
    target = io.BytesIO()
    with pytest.raises(urllib.error.URLError, match="unknown url type"):
        download(urllib.request.Request(url), target, seconds=5.0, max_bytes=10)
    assert not target.getvalue()
