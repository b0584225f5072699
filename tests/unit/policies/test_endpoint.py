"""The endpoint policy against a real HTTP server on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.types import Stop
from terrella.policies.endpoint import Endpoint
from terrella.worlds.counter import Counter


class ChatServer:
    """An OpenAI-compatible server; `respond(body, count)` gives status, payload and headers."""

    def __init__(self, respond):
        self.requests = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, dict(self.headers), body))
                status, payload, headers = respond(body, len(server.requests))
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def completion(text):
    message = {"role": "assistant", "content": text}
    return 200, json.dumps({"choices": [{"message": message}]}).encode(), {}


def towards_the_goal(body, _):
    """Read the state from the prompt and move the counter towards its goal."""
    state = json.loads(body["messages"][-1]["content"].splitlines()[1])
    move = "up" if state["value"] < state["goal"] else "down"
    return completion(f"<think>I go {move}</think><answer>{move}</answer>")


def test_a_served_model_plays_and_wins(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-1")
    with ChatServer(towards_the_goal) as server:
        policy = Endpoint.Config(url=server.url, model="m", key_variable="MY_KEY").build()
        episode = play(Counter.Config().build(), policy, seed=4)
    assert episode.success
    path, headers, body = server.requests[-1]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret-1"
    assert [message["role"] for message in body["messages"]] == [
        "system",
        *["user", "assistant"] * (len(server.requests) - 1),
        "user",
    ]
    assert "secret-1" not in str(policy.config)


def test_a_reply_without_an_action_is_an_invalid_step_not_an_error():
    world = Counter.Config(max_steps=2).build()
    with ChatServer(lambda *_: completion("I would rather not.")) as server:
        episode = play(world, Endpoint.Config(url=server.url).build(), seed=0)
    assert [step.info["valid"] for step in episode.transitions] == [False, False]
    assert episode.stop is Stop.OUT_OF_STEPS


def test_a_request_is_retried_until_the_server_recovers():
    def flaky(body, count):
        return (503, b"busy", {}) if count == 1 else towards_the_goal(body, count)

    with ChatServer(flaky) as server:
        policy = Endpoint.Config(url=server.url).build()
        assert play(Counter.Config().build(), policy, seed=4).success


@pytest.mark.parametrize(
    "respond",
    [
        lambda *_: (500, b"broken", {}),
        lambda *_: (401, b"no key", {}),
        lambda *_: (200, b"not json", {}),
        lambda *_: (200, b'{"choices": []}', {}),
        lambda *_: (302, b"", {"Location": "http://127.0.0.1:1/elsewhere"}),
    ],
)
def test_a_broken_server_masks_the_episode_and_is_named(respond):
    with ChatServer(respond) as server:
        policy = Endpoint.Config(url=server.url, model="m").build()
        episode = play(Counter.Config().build(), policy, seed=0)
    assert episode.stop is Stop.POLICY_ERROR and episode.outcome.value is None
    assert "endpoint(m)" in episode.error


def test_the_error_asks_whether_a_server_is_running():
    policy = Endpoint.Config(url="http://127.0.0.1:9", retries=1).build()
    episode = play(Counter.Config().build(), policy, seed=0)
    assert "is a server running at http://127.0.0.1:9" in episode.error


def test_only_http_addresses_are_accepted():
    with pytest.raises(ConfigError, match="not an http"):
        Endpoint.Config(url="file:///etc/passwd")
