"""`terrella serve MODEL`: serve a world model on loopback, protected by a token.

Imagined episodes (OpenEnv's protocol over WebSocket or HTTP), `/predict` with risk and safe
horizon, and OpenAI's chat; one sampler answers them all in shared forward passes. Ctrl-C or SIGTERM
lets running requests finish.
    Serve(Serve.Config(folder=Path("runs/lake"))).run(print)
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError, MissingExtraError
from terrella.core.world import World
from terrella.engines.configs import EngineConfig
from terrella.serve.settings import ServeSettings
from terrella.show.runs import read_run
from terrella.world_models.certified import load_certified_model

MIN_TOKEN_LENGTH = 16


class Serve(Configurable):
    """The command; `run` serves until it receives a signal."""

    @dataclass(frozen=True, kw_only=True)
    class Config(EngineConfig):
        """The model, its world, and the limits of the server."""

        folder: Local[Path]
        """The output folder of `train-world-model`.

        If it holds a certificate, every reply reports it.
        """
        world: World.Config | None = None
        """The world that gives initial states and actions.

        By default the one that the model was trained on.
        """
        samples: int = 8
        """Samples per query."""
        keep: int = 400_000
        """Predictions to cache; 0 asks the model every time."""
        limits: ServeSettings.Config = field(default_factory=ServeSettings.Config)

    config: Config

    def run(self, say: Callable[[str], None]) -> None:
        """Load the model, listen, report the address with `say`, and serve."""
        _uvicorn()  # a missing extra is reported before anything is loaded
        limits = self.config.limits
        token = serve_token(limits)
        app = self.app(token)
        listening = listen(limits.host, limits.port)
        host, port = listening.getsockname()[:2]
        say(f"serving {self.config.folder} on http://{host}:{port}")
        if not os.environ.get(limits.token_variable):
            variable = limits.token_variable
            say(f"token (generated for this run; set {variable} to choose it): {token}")
        serve_app(app, listening, limits)
        say("stopped: running requests were finished")

    def app(self, token: str) -> Any:
        """Build the ASGI application."""
        from terrella.serve.app import make_app
        from terrella.serve.inference import InferenceService

        world = self.world()
        certified_model = load_certified_model(
            self.config.folder,
            self.config.samples,
            world,
            cache_limit=self.config.keep,
            engine=self.config.engine_settings,
        )
        inference = InferenceService(
            certified_model,
            world,
            self.config.limits,
            tokenizer=certified_model.tokenizer,
            name=read_run(self.config.folder).name,
        )
        return make_app(inference, token)

    def world(self) -> World.Config:
        """Return the config of the world that is imagined."""
        if self.config.world is not None:
            return self.config.world
        try:
            return read_run(self.config.folder).load_world()
        except ConfigError as error:
            raise ConfigError(
                str(self.config.folder),
                f"its world cannot be built here: {error.what}",
                "name one with --world",
            ) from error


def _uvicorn() -> Any:
    try:
        import httptools  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("serve", "the world-model server") from error
    return uvicorn


def serve_app(app: Any, listening: socket.socket, limits: ServeSettings.Config) -> None:
    """Serve until a signal arrives, then let running requests finish."""
    uvicorn = _uvicorn()
    from terrella.serve.connections import uvicorn_settings

    settings = uvicorn.Config(**uvicorn_settings(app, limits))
    gc.collect()
    # The model lives as long as the server: the collector need not traverse it every time.
    gc.freeze()
    _server(uvicorn, settings).run(sockets=[listening])


def _server(uvicorn: Any, settings: Any) -> Any:
    """Return a server that simply returns after a signal; uvicorn's own raises it again."""

    class Server(uvicorn.Server):  # type: ignore[misc]
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            signals = (signal.SIGINT, signal.SIGTERM)
            previous = {number: signal.signal(number, self.handle_exit) for number in signals}
            try:
                yield
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)

    return Server(settings)


def serve_token(limits: ServeSettings.Config) -> str:
    """Return the token of the environment variable, or a new one; a short one is refused."""
    token = os.environ.get(limits.token_variable) or secrets.token_urlsafe(32)
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise ConfigError(
            limits.token_variable,
            f"must have at least {MIN_TOKEN_LENGTH} printable ASCII characters",
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)  # from now on clients wait instead of being refused
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{host}:{port}", f"cannot listen: {error}", "choose another with --set limits.port=0"
        ) from error
    return listening
