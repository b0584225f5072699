"""`terrella serve MODEL`: the world model as a service, on loopback, with a token.

Episodes in imagination (OpenEnv's protocol over WebSocket or HTTP), `/predict` with risk and safe horizon, OpenAI's
chat; one sampler answers them all in shared forward passes. Ctrl-C or SIGTERM lets what is running end.
    Serve(Serve.Config(folder=Path("runs/lake"))).run(print)
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, MissingExtraError
from terrella.core.protocols import Sampler
from terrella.core.world import World
from terrella.engines.sampling.vllm_server import VllmServer
from terrella.serve.settings import ServeSettings
from terrella.show.runs import read_run
from terrella.trust.risk import Assessor
from terrella.use.imagine import Imagination, load_imagination
from terrella.use.world_models import LearnedWorldModel

SHORTEST_TOKEN = 16


class Serve(Configurable):
    """The stage: `run` serves until it is told to end."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Which model, of which world, and within which limits."""

        folder: Path
        """What `train-world-model` wrote; its certificate, if there is one, speaks in every reply."""
        world: World.Config | None = None
        """The world whose beginnings and actions are used; the one it was trained on unless given."""
        samples: int = 8
        """Answers per question."""
        keep: int = 400_000
        """Beliefs that are remembered; 0 asks the model every time."""
        sampler: Literal["auto", "local", "vllm"] = "auto"
        """In this process, or a vLLM server of its own; `auto` takes vLLM where it is installed and there is a GPU."""
        vllm: VllmServer.Config = field(default_factory=VllmServer.Config)
        limits: ServeSettings.Config = field(default_factory=ServeSettings.Config)

    config: Config

    def run(self, say: Callable[[str], None]) -> None:
        """Load, listen, say where, serve."""
        _uvicorn()  # refuses before anything is loaded
        limits = self.config.limits
        token = serve_token(limits)
        with self._sampler() as sampler:
            app = self.app(token, sampler)
            listening = listen(limits.host, limits.port)
            host, port = listening.getsockname()[:2]
            say(f"serving {self.config.folder} on http://{host}:{port}")
            if not os.environ.get(limits.token_variable):
                say(f"token (made for this run; set {limits.token_variable} to choose it): {token}")
            serve_app(app, listening, limits)
            say("ended: what was running was let finish")

    def app(self, token: str, sampler: Sampler | None = None) -> Any:
        """The ASGI application."""
        from terrella.serve.app import make_app
        from terrella.serve.oracle import Oracle

        imagination = self.imagination(sampler)
        model = imagination.assessor.model
        assert isinstance(model, LearnedWorldModel)
        model.most_kept = self.config.keep
        name = read_run(self.config.folder).name
        return make_app(
            Oracle(imagination, self.world(), self.config.limits, tokenizer=model.outcome.tokenizer, name=name), token
        )

    def world(self) -> World.Config:
        """The world that is imagined."""
        found = self.config.world or read_run(self.config.folder).world
        if found is None:
            raise ConfigError(str(self.config.folder), "its world cannot be built here", "name one with --world")
        return found

    def imagination(self, sampler: Sampler | None) -> Imagination:
        """Model, risk and certificate; with another sampler in place of the one in this process if given."""
        found = load_imagination(self.config.folder, self.config.samples)
        if sampler is None:
            return found
        assessor, model = found.assessor, found.assessor.model
        assert isinstance(model, LearnedWorldModel)
        asked = LearnedWorldModel(
            sampler, model.codec, model.outcome.tokenizer, samples=model.samples, turn_tokens=model.turn_tokens
        )
        return replace(found, assessor=Assessor(asked, assessor.data, assessor.risk))

    @contextlib.contextmanager
    def _sampler(self) -> Iterator[Sampler | None]:
        """A vLLM server's, or None for the one in this process."""
        if self.config.sampler == "local" or (self.config.sampler == "auto" and not _vllm_is_worth_it()):
            yield None
            return
        log = self.config.folder / "vllm.log"  # stays: who reads that the server ended needs to see why
        with VllmServer(self.config.vllm, self.config.folder / "model", log=log) as server:
            yield server.sampler()


def _vllm_is_worth_it() -> bool:
    return importlib.util.find_spec("vllm") is not None and Path("/dev/nvidia0").exists()


def _uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("serve", "the world-model server") from error
    return uvicorn


def serve_app(app: Any, listening: socket.socket, limits: ServeSettings.Config) -> None:
    """Serve until a signal; what is running may end. No access log: a page's address holds its token."""
    uvicorn = _uvicorn()
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=int(limits.drain_seconds),
        ws_max_size=limits.max_body, server_header=False, limit_concurrency=4 * limits.max_sessions,
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # a model's modules live as long as the server: the collector need not walk them at every turn
    _polite_server(uvicorn, settings).run(sockets=[listening])


def _polite_server(uvicorn: Any, settings: Any) -> Any:
    """Uvicorn's server raises the signal again when it has ended; ours has done what it was told, and returns."""

    class Polite(uvicorn.Server):  # type: ignore[misc]
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            before = {name: signal.signal(name, self.handle_exit) for name in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for name, handler in before.items():
                    signal.signal(name, handler)

    return Polite(settings)


def serve_token(limits: ServeSettings.Config) -> str:
    """The environment's token, or a new one; a short one is refused."""
    token = os.environ.get(limits.token_variable) or secrets.token_urlsafe(32)
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(limits.token_variable, f"must have at least {SHORTEST_TOKEN} printable ASCII characters")
    return token


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)  # from now on clients wait instead of being turned away
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{host}:{port}", f"cannot listen: {error}", "choose another with --set limits.port=0"
        ) from error
    return listening
