"""The client of a served world: late replies, redirects and servers of another kind."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="needs the extra: pip install 'terrella[serve]'")

from tests.support.dripping import ENDLESS, dripping
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

from terrella.core.errors import TerrellaError, WorldError
from terrella.serve.remote import RemoteEnv

SCHEMA = {"example": {"kind": "text", "text": "e"}, "names": ["Up", "Down"]}
TOKEN = "a-token-of-this-test"


@contextlib.contextmanager
def in_thread(server, port):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def world_server(*, step_seconds=0.0, reward="1.0", terminated=False):
    """Shows each message as an observation; `reward` is JSON."""

    def schema(connection, request):
        body = json.dumps(SCHEMA).encode()
        headers = Headers([("Content-Length", str(len(body)))])
        return Response(200, "OK", headers, body) if request.path == "/schema" else None

    def session(socket):
        for message in map(json.loads, socket):
            time.sleep(step_seconds if message["type"] == "step" else 0.0)
            observation = {"kind": "text", "text": message["type"], "actions": []}
            metadata = {"terminated": terminated, "truncated": False}
            data = {"observation": observation, "reward": 12.5, "metadata": metadata}
            reply = json.dumps({"type": "observation", "data": data})
            socket.send(reply.replace("12.5", reward if message["type"] == "step" else "null"))

    server = serve(session, "127.0.0.1", 0, process_request=schema)
    with in_thread(server, server.socket.getsockname()[1]) as url:
        yield url


@contextlib.contextmanager
def http_server(respond):
    """Answers every GET; yields the address and the headers of the requests."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers)
            status, headers, body = respond()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with in_thread(server, server.server_port) as url:
        yield url, seen


def test_a_late_reply_is_never_taken_for_the_next_one():
    with world_server(step_seconds=0.6) as url:
        env = RemoteEnv(url, TOKEN, seconds=0.2)
        env.reset(seed=1)
        with pytest.raises(WorldError, match=r"no reply in 0\.2 s"):
            env.step("Up")
        time.sleep(0.6)
        for ask in (lambda: env.reset(seed=7), lambda: env.step("Down")):
            with pytest.raises(WorldError, match="the session is over"):
                ask()
        env.close()


@pytest.mark.parametrize("reward", ["1e999", '"nan"', '"-inf"', "9" * 400, "null"])
def test_a_reward_that_is_no_finite_number_is_refused(reward):
    with world_server(reward=reward) as url:
        env = RemoteEnv(url, TOKEN, seconds=5.0)
        env.reset(seed=1)
        with pytest.raises(TerrellaError, match=r"server.*(gave the reward|1e999)"):
            env.step("Up")
        env.close()


def test_an_end_that_is_not_a_bool_is_refused():
    with world_server(terminated="no") as url:
        env = RemoteEnv(url, TOKEN, seconds=5.0)
        env.reset(seed=1)
        with pytest.raises(WorldError, match="gave terminated='no'"):
            env.step("Up")
        env.close()


def test_the_token_does_not_follow_a_redirect():
    with (
        http_server(lambda: (200, {}, json.dumps(SCHEMA).encode())) as (elsewhere, seen),
        http_server(lambda: (302, {"Location": elsewhere}, b"")) as (url, _),
        pytest.raises(WorldError, match="302"),
    ):
        RemoteEnv(url, TOKEN, seconds=2.0)
    assert not seen


def test_a_server_that_drips_its_schema_is_given_up():
    with dripping(*ENDLESS["body"]) as port, pytest.raises(WorldError, match="time limit of 0"):
        RemoteEnv(f"http://127.0.0.1:{port}", TOKEN, seconds=0.5)


@pytest.mark.parametrize("body", [b"[]", b'{"names": []}', json.dumps(SCHEMA).encode()])
def test_a_server_of_another_kind_is_named(body):
    with http_server(lambda: (200, {}, body)) as (url, _):
        with pytest.raises(TerrellaError, match=r"server of terrella|no session") as error:
            RemoteEnv(url, TOKEN, seconds=2.0)
        assert url in str(error.value)
