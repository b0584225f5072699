"""Records of the requests that a browser sent and the responses it received.

Checks use them to judge an agent by its requests.

    tab.on_event = events.append
    # events: [NetworkEvent(url=..., method="POST", post_data="...", status=302), ...]
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeVar

T = TypeVar("T")
MAX_CONTENT = 200_000


@dataclass(frozen=True, kw_only=True)
class NetworkEvent:
    """One request of the agent's browser and its response."""

    url: str
    method: str = "GET"
    post_data: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    content: str = ""
    cookies: Mapping[str, str] = field(default_factory=dict[str, str])


async def record_request(request: Any) -> NetworkEvent:
    """Build the record of a finished Playwright request.

    Response bodies are kept only when they are JSON. What the browser no longer has is left empty:
    the body of a page that has navigated away, for example. That the request was sent still counts.
    """
    response = await _or_none(request.response())
    headers: Mapping[str, str] = {}
    if response is not None:
        headers = await _or_none(response.all_headers()) or {}
    body: bytes | None = None
    if response is not None and "json" in headers.get("content-type", ""):
        body = await _or_none(response.body())
    return NetworkEvent(
        url=request.url,
        method=request.method,
        post_data=_text(request.post_data_buffer),
        headers=dict(request.headers),
        status=response.status if response is not None else 0,
        content=_text(body)[:MAX_CONTENT],
        cookies=_parse_cookies(headers.get("set-cookie", "")),
    )


async def _or_none(reading: Awaitable[T]) -> T | None:
    """What the browser answers; None if it cannot."""
    from playwright.async_api import Error

    try:
        return await reading
    except Error:
        return None


def _text(data: bytes | None) -> str:
    """Bytes as text; uploads need not be text."""
    return (data or b"").decode("utf-8", "replace")


def _parse_cookies(text: str) -> dict[str, str]:
    cookies: dict[str, str] = {}
    try:
        for line in text.split("\n"):
            for name, morsel in SimpleCookie(line).items():
                cookies[name] = morsel.value
    except CookieError:  # the site sent a malformed cookie: there is nothing to compare
        return {}
    return cookies
