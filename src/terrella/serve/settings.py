"""The limits of a server. Every bound has a number here, and none can be switched off.

They are set with `--set limits.max_batch=64` on the command line.
    ServeSettings.Config(port=8800, max_batch=64)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError

POSITIVE = (
    "max_connections",
    "max_head",
    "head_seconds",
    "body_seconds",
    "max_body",
    "max_bodies",
    "max_message",
    "max_prompt_tokens",
    "max_waiting_tokens",
    "max_batch",
    "max_waiting",
    "max_sessions",
    "idle_seconds",
    "request_seconds",
)
CHARACTERS_PER_TOKEN = 8
"""About twice as many as text has: a prompt with more is too long whatever its tokens are."""


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
        max_connections: int = 1024
        """Open connections. Beyond it the one that has been silent for longest is closed."""
        max_head: int = 32_768
        """Bytes of the head of a request."""
        head_seconds: float = 10.0
        """Time for the head of a request to arrive."""
        body_seconds: float = 30.0
        """Time for the body of a request to arrive."""
        max_body: int = 4_000_000
        """Bytes of one request."""
        max_message: int = 65_536
        """Bytes of one WebSocket message."""
        max_bodies: int = 64_000_000
        """Bytes of all large requests that are held at once; beyond it status 503."""
        max_batch: int = 256
        """Queries in one request."""
        max_waiting: int = 4096
        """Queries, steps and chats that may wait for the model at once, over all clients.

        Beyond it requests are refused with status 503.
        """
        max_prompt_tokens: int = 8192
        """Tokens of one prompt: of a question, or of all messages of a chat."""
        max_waiting_tokens: int = 2**19
        """Tokens that the sampler may have to hold at once: its rows times the longest of them.

        A request that needs more is refused with status 413; others wait until there is room.
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

        @property
        def max_prompt_text(self) -> int:
            """Characters of one prompt: longer ones are refused before they are tokenized."""
            return CHARACTERS_PER_TOKEN * self.max_prompt_tokens

        def __post_init__(self) -> None:
            for name in POSITIVE:
                if getattr(self, name) <= 0:
                    raise ConfigError(f"serve.{name}", "must be above 0")
