"""A policy behind any OpenAI-compatible chat endpoint (vLLM, SGLang, llama.cpp, a hosted model).

The config names the environment variable that holds the API key, so that the key itself never
appears in a config, log or manifest.
    Endpoint.Config(url="http://127.0.0.1:8000/v1", model="smollm2").build()
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, ClassVar

from terrella.codecs.answers import read_answer
from terrella.codecs.chat import Message, chat_messages
from terrella.core.config import Configurable, Local, Recorded
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.types import Moment

MAX_RESPONSE_BYTES = 4_000_000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send the key and the prompts somewhere else."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Return None, which makes urllib raise an HTTPError."""


class Endpoint(Configurable):
    """Sends the conversation to a model and plays the first action of its reply.

    A reply without an action counts as an invalid action.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The address, the model, and the sampling and retry parameters."""

        url: Local[str] = "http://127.0.0.1:8000/v1"
        """Base URL; `/chat/completions` is appended."""
        model: Recorded[str] = "default"
        temperature: float = 1.0
        max_tokens: int = 400
        timeout: float = 60.0
        retries: int = 3
        key_variable: Local[str] = "OPENAI_API_KEY"
        """Name of the environment variable with the API key; it may be unset."""

        def __post_init__(self) -> None:
            """Accept http and https only; `file:` and other schemes are rejected."""
            if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
                raise ConfigError("url", f"not an http(s) address: {self.url!r}")

    config: Config
    reaches: ClassVar[str] = "a chat endpoint"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name = f"endpoint({config.model})"
        self._opener = urllib.request.build_opener(_NoRedirect())

    def act(self, moment: Moment) -> str:
        """The first action of the reply, or "" (invalid in every world) if it has none."""
        seed = int(moment.rng.integers(2**31))
        actions = read_answer(self.complete(chat_messages(moment), seed))
        return actions[0] if actions else ""

    def complete(self, messages: list[Message], seed: int) -> str:
        """Return the reply to a conversation, with retries if the endpoint does not answer."""
        body = {
            "model": self.config.model,
            "messages": messages,
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
            "seed": seed,
        }
        failure = ""
        for _ in range(self.config.retries):
            try:
                return _reply_text(self._post(body))
            except urllib.error.HTTPError as error:
                failure = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                if error.code < 500 and error.code != 429:
                    break  # the request itself is wrong, so a retry would fail too
            except (
                urllib.error.URLError,
                http.client.HTTPException,
                TimeoutError,
                ValueError,
                RecursionError,  # JSON that is nested too deeply
            ) as error:
                failure = f"{type(error).__name__}: {error}"
        raise PolicyError(self.name, failure, f"is a server running at {self.config.url}?")

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self.config.key_variable)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = self.config.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with self._opener.open(request, timeout=self.config.timeout) as response:
            return json.loads(response.read(MAX_RESPONSE_BYTES))


def _reply_text(completion: Any) -> str:
    try:
        text = completion["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not a chat completion: {str(completion)[:200]}") from error
    if not isinstance(text, str):
        raise ValueError(f"not a text reply: {type(text).__name__}")
    return text
