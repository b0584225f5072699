"""What a server allows: every bound has a number here, and none can be switched off.

    ServeSettings.Config(port=8800, max_batch=64)
"""  # fmt: skip

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError


class ServeSettings(Configurable):
    """Where it listens, and its limits."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Loopback and a token, unless told otherwise; the token cannot be left out."""

        host: str = "127.0.0.1"
        port: int = 8800
        """0 takes a free one."""
        token_variable: str = "TERRELLA_TOKEN"
        """The environment variable that holds the token; one is made, and shown once, if it is empty."""
        max_body: int = 4_000_000
        """Bytes of one request, and of one message."""
        max_batch: int = 256
        """Questions of one request."""
        max_waiting: int = 4096
        """Questions that may wait for the model at once, over all clients; past it a client is told to come back."""
        gather_seconds: float = 0.02
        """Questions are held back so long at most, to go to the model as a group: about one forward pass."""
        max_sessions: int = 256
        idle_seconds: float = 600.0
        """A session that nobody steps for so long is ended."""
        request_seconds: float = 120.0
        max_text: int = 100_000
        """Characters of one observation or message."""
        max_new_tokens: int = 1024
        """Of one chat completion."""
        drain_seconds: float = 15.0
        """What is running may take so long to end after the server was asked to."""

        def __post_init__(self) -> None:
            """Refuse what has no meaning."""
            for name in ("max_body", "max_batch", "max_waiting", "max_sessions", "idle_seconds", "request_seconds"):
                if getattr(self, name) <= 0:
                    raise ConfigError(f"serve.{name}", "must be above 0")
