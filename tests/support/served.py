"""A server for tests: the real application, asked in this process or over real sockets on loopback."""

import asyncio
import contextlib
import json
import threading
import time
from types import SimpleNamespace

import uvicorn
from tests.support.made_models import Lying, by_chance, data_of, imagination_of

from terrella.serve.app import make_app
from terrella.serve.oracle import Oracle
from terrella.serve.settings import ServeSettings
from terrella.stages.serve import listen
from terrella.trust.certificate import Certificate
from terrella.worlds.frozen_lake import FrozenLake

TOKEN = "a-token-for-tests-only"
LAKE = FrozenLake.Config(size=3, success_rate=1.0, max_steps=6)
CERTIFICATE = Certificate(
    {
        "certified": True, "reasons": [], "safe_horizon": 4, "about": {"world": "frozen_lake", "weights_sha256": "ab"},
        "risk": {"threshold": 0.5, "model": {"weights": [-3.0, 1.0, 1.0, 1.0, 1.0], "quantile": 0.9, "level": 0.9}},
    }
)  # fmt: skip


def lying_oracle(limits=None, lies=0.2):
    model = Lying(LAKE.build(), by_chance(lies))
    return Oracle(imagination_of(model, CERTIFICATE, data_of(LAKE.build())), LAKE, limits or ServeSettings.Config())


async def call(app, method, path, body=b"", token=TOKEN, headers=(), query=b""):
    """One request, without a socket."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    told = [(b"host", b"127.0.0.1:1"), *headers]
    if token is not None:
        told.append((b"authorization", f"Bearer {token}".encode()))
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": told,
             "query_string": query, "scheme": "http", "http_version": "1.1", "root_path": "",
             "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "asgi": {"version": "3.0"}}  # fmt: skip
    sent, reply = [{"type": "http.request", "body": body, "more_body": False}], SimpleNamespace(status=0, body=b"")

    async def receive():
        if sent:
            return sent.pop(0)
        await asyncio.sleep(3600)

    async def send(message):
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], dict(message["headers"])
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    reply.json = lambda: json.loads(reply.body)
    return reply


def running(oracle, token=TOKEN):
    """The application on a free port of loopback; yields its address."""
    return running_app(make_app(oracle, token), oracle.limits.max_body)


@contextlib.contextmanager
def running_app(app, max_body=4_000_000):
    """Any application."""
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, ws_max_size=max_body)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
