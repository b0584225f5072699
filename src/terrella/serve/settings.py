"""The limits of a server. Every bound has a number here, and none can be switched off.

They are set with `--set limits.max_batch=64` on the command line.
    ServeSettings.Config(port=8800, max_batch=64)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError

POSITIVE = (
    "max_body",
    "max_batch",
    "max_waiting",
    "max_sessions",
    "idle_seconds",
    "request_seconds",
)


class ServeSettings(Configurable):
    """Address and limits of a server."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Loopback by default. The token cannot be left out."""

        host: Local[str] = "127.0.0.1"
        port: Local[int] = 8800
        """0 takes a free port."""
        token_variable: Local[str] = "TERRELLA_TOKEN"
        """The environment variable with the token.

        If it is empty, a token is generated and printed once.
        """
        max_body: int = 4_000_000
        """Bytes of one request, and of one WebSocket message."""
        max_batch: int = 256
        """Queries in one request."""
        max_waiting: int = 4096
        """Queries that may wait for the model at once, over all clients.

        Beyond it requests are refused with status 503.
        """
        gather_seconds: float = 0.02
        """Longest wait of a query for others to share its batch; about one forward pass."""
        max_sessions: int = 256
        idle_seconds: float = 600.0
        """A session without a step for this long is ended."""
        request_seconds: float = 120.0
        max_text: int = 100_000
        """Characters of one observation or message."""
        max_new_tokens: int = 1024
        """Tokens of one chat completion."""
        drain_seconds: float = 15.0
        """Time for running requests to finish after the server was told to stop."""

        def __post_init__(self) -> None:
            for name in POSITIVE:
                if getattr(self, name) <= 0:
                    raise ConfigError(f"serve.{name}", "must be above 0")
