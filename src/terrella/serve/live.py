"""The viewer's page with a server behind it: any action can be tried at any step, really and in imagination.

On loopback, with a token of its own for each run: in the address that opens the page, in a header for what it asks.
    app = make_live_app(render=lambda: page, fork=lambda episode, step, actions: {...}, token=token)
"""

from __future__ import annotations

import hmac
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from terrella.serve.app import HANDLERS
from terrella.serve.guard import Guard, Scope, send_error
from terrella.serve.metrics import Metrics
from terrella.serve.oracle import in_thread
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import LONGEST_ACTION, RequestError, read_json, read_text, read_whole

LONGEST_BRANCH = 100
Fork = Callable[[int, int, Sequence[str]], dict[str, Any]]


class LiveApp:
    """ASGI: the page to whoever has the token in the address, the rest to whoever has it in a header."""

    def __init__(self, guarded: Guard, page: bytes, token: str) -> None:
        """The page is made once; it holds the token, and is shown to nobody without it."""
        self.guarded, self.page, self.token = guarded, page, token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] != "/":
            return await self.guarded(scope, receive, send)
        refused = self.guarded.wrong_host(scope) or self._wrong_token(scope)
        if refused is not None:
            return await send_error(send, refused)
        headers = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-frame-options": "DENY"}
        return await Response(self.page, media_type="text/html", headers=headers)(scope, receive, send)

    def _wrong_token(self, scope: Scope) -> RequestError | None:
        asked = urllib.parse.parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        same = hmac.compare_digest(asked.encode(), self.token.encode())
        told = "open the address that `terrella view --live` printed"
        return None if same else RequestError(401, told, "UNAUTHORIZED")


def make_live_app(page: str, fork: Fork, token: str, limits: ServeSettings.Config) -> LiveApp:
    """The page and the one thing it asks."""
    one_at_a_time = threading.Lock()  # there is one world, moved from episode to episode

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        episode = read_whole(body, "episode", -1, low=0, high=2**31)
        step = read_whole(body, "step", -1, low=0, high=2**31)
        actions = body.get("actions")
        if not isinstance(actions, list) or not 0 < len(actions) <= LONGEST_BRANCH:
            raise RequestError(422, f"`actions` must be a list of 1 to {LONGEST_BRANCH} actions")
        words = [read_text({"action": action}, "action", LONGEST_ACTION) for action in actions]
        with one_at_a_time:
            return fork(episode, step, words)

    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = "/fork"
        body = read_json(await request.body())
        return JSONResponse(await in_thread(None, lambda: answer(body)))

    app = Starlette(routes=[Route("/fork", endpoint, methods=["POST"])], exception_handlers=HANDLERS)
    return LiveApp(Guard(app, token, limits, Metrics()), page.encode(), token)
