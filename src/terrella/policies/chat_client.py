"""A client of OpenAI-compatible chat endpoints (vLLM, SGLang, llama.cpp, hosted models).

Passing failures are retried with backoff, rate limits are obeyed by all threads together, and a
request has a time limit. Tokens are counted as the endpoint reports them. What an API returns of a
model's thoughts is kept beside the reply, and nothing verifies it.
    client = ChatClient(ChatSettings(url="http://127.0.0.1:8000/v1", model="smollm2"), name="m")
    reply = client.chat([{"role": "user", "content": "hello"}], seed=0)
    reply.text, reply.reasoning, reply.usage.completion_tokens
"""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from terrella.core.bounds import check_above_zero, check_least
from terrella.core.config import Configurable, Local, Recorded
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.fetch import fetch
from terrella.core.seeds import POLICY_STREAM, stream

MAX_RESPONSE_BYTES = 4_000_000
MAX_TOKENS = 10**9
"""The most tokens of one reply. A larger count is not believed: sums of them would overflow."""
PASSING = (408, 409, 425, 429)
"""Statuses below 500 after which the same request may succeed."""
LONGEST_BACKOFF = 60.0
SHORTEST_WAIT = 0.5
"""Seconds between two requests to an endpoint that asks to wait, whatever it asks for."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "refusal")
"""Where APIs put what a model thought before its reply, or why it gave none."""
ENDINGS = ("stop", "length", "content_filter", "tool_calls", "function_call")
"""How a model ends a reply. Without content it is then empty; any other ending is a failure."""
TOO_LARGE = 413
REFUSED = (400, TOO_LARGE, 422)
"""Statuses with which endpoints refuse a conversation that is longer than the context."""
CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context size",
    "context window",
    "too long",
    "token count exceeds",
    "reduce the length",
)
"""What vLLM, SGLang, llama.cpp and hosted models say about it."""


@dataclass(frozen=True, kw_only=True)
class ChatSettings(Configurable.Config):
    """The address, the model, and the sampling and retry parameters."""

    url: Local[str] = "http://127.0.0.1:8000/v1"
    """Base URL; `/chat/completions` is appended."""
    model: Recorded[str] = "default"
    temperature: float = 1.0
    max_tokens: int = 400
    limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the endpoint calls the limit; some hosted models that think know only the second."""
    timeout: float = 60.0
    """Seconds for a whole reply."""
    retries: int = 3
    """Tries of a request in all. Waits that the endpoint itself asks for are not counted."""
    backoff: float = 0.5
    """Seconds before the second try; doubled for each further one."""
    patience: float = 300.0
    """Seconds that a request waits, in all, because the endpoint asks it to (Retry-After)."""
    key_variable: Local[str] = "OPENAI_API_KEY"
    """Name of the environment variable with the API key; it may be unset."""

    def __post_init__(self) -> None:
        """Accept http and https only; `file:` and other schemes are rejected."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https"):
            raise ConfigError("url", f"not an http(s) address: {self.url!r}")
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                "url",
                "an address with a password or a query would be written into manifests",
                "put the key into an environment variable and name it with key_variable",
            )
        if self.retries < 1:
            raise ConfigError("retries", f"must be at least 1, not {self.retries}")
        check_least(self, temperature=0, max_tokens=1, backoff=0, patience=0)
        check_above_zero(self, "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens as endpoints report them. They add up."""

    requests: int = 0
    """Replies that were received."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Written tokens, those of thoughts included."""
    reasoning_tokens: int = 0
    unreported: int = 0
    """Replies without a plausible count of tokens: the sums are too low by these."""

    def __add__(self, other: Usage) -> Usage:
        names = [each.name for each in fields(self)]
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def cost(self, price_in: float, price_out: float) -> float:
        """Prices are per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A reply, and what the endpoint said about it."""

    text: str
    reasoning: str = ""
    """What the API returned of the model's thoughts or its refusal; for the record only."""
    finished: bool = True
    """False if the limit on tokens cut the reply off."""
    usage: Usage = field(default_factory=Usage)


class ContextLengthError(PolicyError):
    """The conversation is longer than the model's context."""


@dataclass(eq=False)
class _FailedError(Exception):
    """One try that failed."""

    reason: str
    passing: bool = True
    retry_after: float | None = None
    """Seconds that the endpoint asks to wait."""
    kind: type[PolicyError] = PolicyError


class ChatClient:
    """Sends conversations. Threads may share it: one that meets a rate limit holds all back."""

    def __init__(self, settings: ChatSettings, *, name: str) -> None:
        """`name` stands in errors."""
        self.settings = settings
        self.name = name
        self._key = read_key(settings.key_variable)
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._closed = threading.Event()

    def close(self) -> None:
        """End all waits; calls that are under way fail."""
        self._closed.set()

    def chat(self, messages: Sequence[Mapping[str, str]], seed: int) -> ChatReply:
        """The reply to a conversation; a `PolicyError` after repeated failures says why."""
        settings = self.settings
        body = {
            "model": settings.model,
            "messages": list(messages),
            "temperature": settings.temperature,
            settings.limit_name: settings.max_tokens,
            "seed": seed,
        }
        jitter = stream(POLICY_STREAM, seed)
        failures, waited = 0, 0.0
        while True:
            self._wait_for_turn()
            try:
                return self._try(body)
            except _FailedError as failed:
                asked = failed.retry_after
                if asked is not None and failed.passing and waited + asked <= settings.patience:
                    waited += max(asked, SHORTEST_WAIT)
                    self._hold(max(asked, SHORTEST_WAIT))
                    continue
                failures += 1
                if failures >= settings.retries or not failed.passing or asked is not None:
                    raise self._error(failed.reason, failures, failed.kind) from failed
            pause = settings.backoff * 2 ** (failures - 1) * (0.5 + jitter.random())
            self._closed.wait(min(pause, LONGEST_BACKOFF))

    def _error(self, reason: str, tries: int, kind: type[PolicyError] = PolicyError) -> PolicyError:
        shown = reason.replace(self._key, "***") if self._key else reason
        times = f" ({tries} tries)" if tries > 1 else ""
        return kind(self.name, f"{shown}{times}", f"is a server running at {self.settings.url}?")

    # --- rate limits ------------------------------------------------------------------------------

    def _hold(self, seconds: float) -> None:
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _wait_for_turn(self) -> None:
        while (left := self._not_before - time.monotonic()) > 0 and not self._closed.is_set():
            self._closed.wait(left)
        if self._closed.is_set():
            raise self._error("the client was closed", 1)

    # --- one request ------------------------------------------------------------------------------

    def _try(self, body: Mapping[str, Any]) -> ChatReply:
        try:
            return read_reply(json.loads(self._post(body)))
        except urllib.error.HTTPError as error:
            raise _http_failure(error) from error
        except (
            OSError,  # no connection, a time-out, a connection that was reset
            http.client.HTTPException,
            ValueError,
            RecursionError,  # JSON that is nested too deeply
        ) as error:
            raise _FailedError(f"{type(error).__name__}: {error}") from error

    def _post(self, body: Mapping[str, Any]) -> bytes:
        settings = self.settings
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        url = settings.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        return fetch(request, seconds=settings.timeout, max_bytes=MAX_RESPONSE_BYTES)


def read_key(variable: str) -> str:
    """The API key of an environment variable, or "" if it is unset.

    Space around a key is that of the file it came from. A key that no header can carry is refused
    here: the HTTP client would quote it in its error.
    """
    key = os.environ.get(variable, "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(
            variable,
            "the API key in this variable has characters that no HTTP header can carry",
            "set it to the key alone: printable ASCII, without spaces",
        )
    return key


def _http_failure(error: urllib.error.HTTPError) -> _FailedError:
    said = error.read().decode(errors="replace")
    asked = _retry_after(error.headers.get("Retry-After"))
    wait = "" if asked is None else f" (asks to wait {asked:g} s)"
    passing = error.code >= 500 or error.code in PASSING
    kind = ContextLengthError if _is_context(error.code, said) else PolicyError
    return _FailedError(f"HTTP {error.code}{wait}: {said}", passing, asked, kind)


def _is_context(status: int, said: str) -> bool:
    """Whether the endpoint refused the conversation because of its length."""
    words = said.lower()
    return status == TOO_LARGE or (
        status in REFUSED and any(each in words for each in CONTEXT_WORDS)
    )


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from seconds or a date; None if the header is absent or cannot be read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass  # not a number, so a date
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError, TypeError):  # OverflowError: digits that fit no date
        return None


# --- replies --------------------------------------------------------------------------------------


def read_reply(completion: Any) -> ChatReply:
    """The first choice of a chat completion; a ValueError if this is none."""
    try:
        choice = completion["choices"][0]
        message = choice["message"]
        content = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a chat completion: {str(completion)[:200]}") from error
    reasoning = next(
        (message[name] for name in REASONING_FIELDS if isinstance(message.get(name), str)), ""
    )
    ending = choice.get("finish_reason")
    if content is None and (reasoning or ending in ENDINGS):
        content = ""  # a refusal, a filter, or the limit came before the reply
    if not isinstance(content, str):
        raise ValueError(f"not a text reply: {type(content).__name__}")
    return ChatReply(
        text=content,
        reasoning=reasoning,
        finished=ending != "length",
        usage=_usage(completion.get("usage")),
    )


def _usage(reported: Any) -> Usage:
    written = _count(reported, "completion_tokens")
    if written is None:
        return Usage(requests=1, unreported=1)
    read = _count(reported, "prompt_tokens")
    details = reported.get("completion_tokens_details")
    return Usage(
        requests=1,
        prompt_tokens=read or 0,
        completion_tokens=written,
        reasoning_tokens=_count(details, "reasoning_tokens") or 0,
        unreported=int(read is None),
    )


def _count(reported: Any, name: str) -> int | None:
    """A number of tokens; None if it is absent or cannot be one."""
    value = reported.get(name) if isinstance(reported, Mapping) else None
    return value if isinstance(value, int) and 0 <= value <= MAX_TOKENS else None
