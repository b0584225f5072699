"""A viewer page with a server behind it: any action can be tried at any step, real or imagined.

It runs on loopback with a token that is new for each run: in the URL that opens the page, and in a
header of the page's own requests.
    app = make_live_app(page, fork=lambda episode, step, actions: {...}, token=token, limits=limits)
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

from terrella.serve.admission import Waiting
from terrella.serve.app import HANDLERS
from terrella.serve.guard import RequestGuard, Scope, has_body, send_error
from terrella.serve.inference import in_thread
from terrella.serve.metrics import Metrics
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import MAX_ACTION, RequestError, read_int, read_json, read_text

MAX_BRANCH = 100
Fork = Callable[[int, int, Sequence[str]], dict[str, Any]]


class LiveApp:
    """ASGI application: the page needs the token in its URL, other routes need it in a header."""

    def __init__(self, guarded: RequestGuard, page: bytes, token: str) -> None:
        """The page contains the token, so it is only sent to clients that have it."""
        self.guarded = guarded
        self.page = page
        self.token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            return await self.guarded(scope, receive, send)
        refusal = self.guarded.wrong_host(scope) or self._wrong_token(scope)
        if refusal is None and has_body(scope):
            refusal = RequestError(413, "no body is read here", "TOO_LARGE")
        if refusal is not None:
            return await send_error(send, refusal, close=has_body(scope))
        headers = {
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-frame-options": "DENY",
        }
        response = Response(self.page, media_type="text/html", headers=headers)
        return await response(scope, receive, send)

    def _wrong_token(self, scope: Scope) -> RequestError | None:
        query = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
        token = query.get("token", [""])[0]
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        message = "open the address that `terrella view --live` printed"
        return RequestError(401, message, "UNAUTHORIZED")


def make_live_app(page: str, fork: Fork, token: str, limits: ServeSettings.Config) -> LiveApp:
    """Build the application: the page, and the route where it tries actions."""
    world_lock = threading.Lock()  # there is one world, moved from episode to episode

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        episode = read_int(body, "episode", -1, low=0, high=2**31)
        step = read_int(body, "step", -1, low=0, high=2**31)
        actions = body.get("actions")
        if not isinstance(actions, list) or not 0 < len(actions) <= MAX_BRANCH:
            raise RequestError(422, f"`actions` must be a list of 1 to {MAX_BRANCH} actions")
        texts = [read_text({"action": action}, "action", MAX_ACTION) for action in actions]
        with world_lock:
            return fork(episode, step, texts)

    waiting = Waiting(limits.max_waiting)

    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = "/fork"
        body = read_json(await request.body())
        with waiting.place():
            return JSONResponse(await in_thread(None, lambda: answer(body)))

    app = Starlette(
        routes=[Route("/fork", endpoint, methods=["POST"])], exception_handlers=HANDLERS
    )
    guarded = RequestGuard(app, token, limits, Metrics(), body_paths=("/fork",))
    return LiveApp(guarded, page.encode(), token)
