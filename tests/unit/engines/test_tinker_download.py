"""Archives of a Tinker endpoint: the key goes to its server only, and links lead to servers."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from terrella.core.errors import EngineError
from terrella.engines.tinker import client
from terrella.engines.tinker.client import KEY, Endpoint


@contextlib.contextmanager
def server(*, status=200, location="", host="127.0.0.1"):
    """Answers every GET; yields its address and the keys it was sent."""
    keys = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append(self.headers.get("X-API-Key"))
            self.send_response(status)
            self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(b"archive")

        def log_message(self, *args):
            pass

    listening = ThreadingHTTPServer((host, 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{listening.server_port}", keys
    finally:
        listening.shutdown()
        listening.server_close()


@pytest.fixture
def endpoint(monkeypatch):
    """An endpoint whose package answers with a link."""
    monkeypatch.setenv(KEY, "sk-secret")

    def at(url, link):
        made = Endpoint.__new__(Endpoint)
        made.url = url
        monkeypatch.setattr(made, "_link", lambda path: link)
        return made

    return at


def test_the_key_is_sent_to_the_endpoint(endpoint, tmp_path):
    with server() as (url, keys):
        endpoint(url, f"{url}/x").download("tinker://run/x", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"archive" and keys == ["sk-secret"]


def test_a_link_to_another_server_is_followed_without_the_key(endpoint, tmp_path):
    with server() as (url, keys):
        for own in (url[:-1], url.replace("http:", "https:"), "http://127.0.0.1"):
            endpoint(own, f"{url}/x").download("tinker://run/x", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"archive" and keys == [None] * 3


def test_the_key_does_not_follow_a_redirect(endpoint, tmp_path):
    with (
        server(host="127.0.0.2") as (elsewhere, keys),
        server(status=302, location=f"{elsewhere}/x") as (url, _),
        pytest.raises(EngineError, match=r"could not be downloaded.*302"),
    ):
        endpoint(url, f"{url}/x").download("tinker://run/x", tmp_path / "a")
    assert not keys


@pytest.mark.parametrize("link", ["file:///etc/hostname", "ftp://127.0.0.1/x", "x", "http://[/"])
def test_a_link_that_is_no_address_is_refused(link, endpoint, tmp_path):
    with pytest.raises(EngineError, match="could not be downloaded"):
        endpoint("http://127.0.0.1:1", link).download("tinker://run/x", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_link_with_the_endpoint_as_its_user_is_refused(endpoint, tmp_path):
    with server() as (url, keys):
        link = f"http://127.0.0.1:1@{url.removeprefix('http://')}/x"
        with pytest.raises(EngineError, match="not an http"):
            endpoint("http://127.0.0.1:1", link).download("tinker://run/x", tmp_path / "a")
    assert not keys


def test_an_archive_has_a_largest_size(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "MAX_UNPACKED_BYTES", 6)
    with server() as (url, _), pytest.raises(EngineError, match="larger than 6 bytes"):
        endpoint(url, f"{url}/x").download("tinker://run/x", tmp_path / "a")
