"""What a browser sent and got: one record per request, for checks that judge an agent by its requests.

tab.record = events.append   # NetworkEvent(url=..., method="POST", post_data="...", status=302)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

MAX_CONTENT = 200_000


@dataclass(frozen=True, kw_only=True)
class NetworkEvent:
    """One request of the agent's browser and what came back."""

    url: str
    method: str = "GET"
    post_data: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    content: str = ""
    cookies: Mapping[str, str] = field(default_factory=dict[str, str])


async def note_request(request: Any) -> NetworkEvent:
    """The record of a Playwright request that has been answered; bodies are kept only when they are JSON."""
    response = await request.response()
    told = await response.all_headers() if response is not None else {}
    content = ""
    if response is not None and "json" in told.get("content-type", ""):
        content = (await response.text())[:MAX_CONTENT]
    return NetworkEvent(
        url=request.url, method=request.method, post_data=request.post_data or "", headers=dict(request.headers),
        status=response.status if response is not None else 0, content=content,
        cookies=_cookies(told.get("set-cookie", "")),
    )  # fmt: skip


def _cookies(text: str) -> dict[str, str]:
    try:
        return {name: morsel.value for line in text.split("\n") for name, morsel in SimpleCookie(line).items()}
    except CookieError:  # a site may send what is no cookie; there is nothing to compare then
        return {}
