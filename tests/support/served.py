"""A server for tests: the real application, in this process or over sockets on loopback."""

import asyncio
import contextlib
import json
import threading
import time
from types import SimpleNamespace

import uvicorn
from tests.support.made_models import Lying, by_chance, certified_model_of, data_of

from terrella.commands.serve import listen
from terrella.serve.app import make_app
from terrella.serve.connections import uvicorn_settings
from terrella.serve.inference import InferenceService
from terrella.serve.settings import ServeSettings
from terrella.trust.certificate import Certificate
from terrella.worlds.frozen_lake import FrozenLake

TOKEN = "a-token-for-tests-only"
LAKE = FrozenLake.Config(size=3, success_rate=1.0, max_steps=6)
CERTIFICATE = Certificate(
    {
        "certified": True,
        "reasons": [],
        "safe_horizon": 4,
        "about": {"world": "frozen_lake", "weights_sha256": "ab"},
        "risk": {
            "threshold": 0.5,
            "model": {"weights": [-3.0, 1.0, 1.0, 1.0, 1.0], "quantile": 0.9, "level": 0.9},
        },
    }
)


def lying_service(limits=None, lies=0.2):
    """An inference service whose model is wrong in a share of the steps."""
    model = Lying(LAKE.build(), by_chance(lies))
    return InferenceService(
        certified_model_of(model, CERTIFICATE, data_of(LAKE.build())),
        LAKE,
        limits or ServeSettings.Config(),
    )


def untrained_model(*, beat=lambda: None, **options):
    """A tiny language model of the lake that has learned nothing; `beat` is called after a pass."""
    from terrella.codecs.choose import codec_for
    from terrella.engines.local.local_sampler import LocalSampler
    from terrella.models.presets import load_model
    from terrella.world_models.language import LearnedWorldModel

    world = LAKE.build()
    world.reset(seed=0)
    model, tokenizer = load_model("tiny-0.3m", vocabulary=world.vocabulary(), seed=0)
    sampler = LocalSampler(model.eval(), beat=beat)
    return LearnedWorldModel(sampler, codec_for(tokenizer), tokenizer, **options)


async def call(app, method, path, body=b"", token=TOKEN, headers=(), query=b""):
    """Send one request without a socket; returns status, headers and body of the reply."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    all_headers = [(b"host", b"127.0.0.1:1"), *headers]
    if token is not None:
        all_headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": all_headers,
        "query_string": query,
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
        "asgi": {"version": "3.0"},
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    reply = SimpleNamespace(status=0, body=b"")

    async def receive():
        if messages:
            return messages.pop(0)
        await asyncio.sleep(3600)

    async def send(message):
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], dict(message["headers"])
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    reply.json = lambda: json.loads(reply.body)
    return reply


def running(service, token=TOKEN):
    """Run the application on a free port of loopback; yields its URL."""
    return running_app(make_app(service, token), service.limits)


@contextlib.contextmanager
def running_app(app, limits=None):
    """Run any ASGI application with the limits of a server; yields its URL."""
    listening = listen("127.0.0.1", 0)
    limits = (limits or ServeSettings.Config()).replace(drain_seconds=5)
    server = uvicorn.Server(uvicorn.Config(**uvicorn_settings(app, limits)))
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
