"""Records of the requests that a browser sent and the responses it received.

Checks use them to judge an agent by its requests.

    tab.on_event = events.append
    # events: [NetworkEvent(url=..., method="POST", post_data="...", status=302), ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

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

    Response bodies are kept only when they are JSON.
    """
    response = await request.response()
    response_headers = await response.all_headers() if response is not None else {}
    content = ""
    if response is not None and "json" in response_headers.get("content-type", ""):
        content = (await response.text())[:MAX_CONTENT]
    return NetworkEvent(
        url=request.url,
        method=request.method,
        post_data=request.post_data or "",
        headers=dict(request.headers),
        status=response.status if response is not None else 0,
        content=content,
        cookies=_parse_cookies(response_headers.get("set-cookie", "")),
    )


def _parse_cookies(text: str) -> dict[str, str]:
    cookies: dict[str, str] = {}
    try:
        for line in text.split("\n"):
            for name, morsel in SimpleCookie(line).items():
                cookies[name] = morsel.value
    except CookieError:  # the site sent a malformed cookie: there is nothing to compare
        return {}
    return cookies
