"""The application: OpenEnv's routes, `/predict`, OpenAI's chat, health and metrics, behind a guard.

See docs/serve.md for the routes.
    app = make_app(inference, token)  # any ASGI server runs it; `terrella serve` uses uvicorn
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from terrella.core.types import Kind
from terrella.serve.chat import complete_chat, stream_chat
from terrella.serve.guard import SERVER_FAILED, RequestGuard, cancel, logger
from terrella.serve.inference import InferenceService
from terrella.serve.memory import keep_giving_back
from terrella.serve.metrics import Metrics
from terrella.serve.sessions import Session, Sessions
from terrella.serve.wire import (
    RequestError,
    observation_json,
    prediction_json,
    read_json,
    read_queries,
)

Body = dict[str, Any]
MESSAGE_TYPES = ("reset", "step", "state", "close")


class RouteHandlers:
    """The handlers of the routes; each takes a JSON object and returns one."""

    def __init__(self, inference: InferenceService) -> None:
        self.inference = inference
        self.metrics = Metrics()
        self.sessions = Sessions(inference, self.metrics)
        self.metrics.gauges["questions_waiting"] = lambda: inference.waiting.questions
        for name in ("passes", "prefilled", "decoded"):
            self.metrics.gauges[f"sampler_{name}"] = self._sampler_gauge(name)

    def _sampler_gauge(self, name: str) -> Callable[[], float]:
        return lambda: getattr(self.inference.sampler, name, 0)

    async def predict(self, body: Body) -> Body:
        """Predict the result of each query, with its risk and what the certificate says of it."""
        inference = self.inference
        queries = read_queries(body, inference.limits, inference.instruction)
        assessed = await inference.assess([query for query, _ in queries])
        self.metrics.count("predictions", len(queries))
        predictions = []
        for (distribution, risk), (_, depth) in zip(assessed, queries, strict=True):
            trust = inference.trust(risk, depth)
            predictions.append(prediction_json(distribution, trust=trust))
        return {"predictions": predictions, "certificate": inference.certificate()}

    async def reset(self, body: Body) -> Body:
        """Begin an episode, in a new session unless one is named; the reply has its id."""
        if "session_id" in body:
            session = self.sessions.find(body["session_id"])
        else:
            session = self.sessions.open()
        return {**await session.reset(body), "session_id": session.id}

    async def step(self, body: Body) -> Body:
        """Step a session: `{"session_id": ..., "action": {"action": "Up"}}`.

        The session ends with its episode.
        """
        session = self.sessions.find(body.get("session_id"))
        action = body.get("action")
        reply = await session.step(action if isinstance(action, dict) else {"action": action})
        if reply["done"]:
            self.sessions.end(session)
        return {**reply, "session_id": session.id}

    async def chat(self, body: Body) -> Body | Response:
        """Return one chat completion, or a stream of it."""
        reply = await complete_chat(self.inference, body)
        self.metrics.count("completion_tokens", reply["usage"]["completion_tokens"])
        if body.get("stream") is True:
            return StreamingResponse(stream_chat(reply), media_type="text/event-stream")
        return reply

    def state(self, request: Request) -> Body:
        return self.sessions.find(request.query_params.get("session_id")).state()

    def metrics_text(self, _: Request) -> Response:
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def schema(self, _: Request) -> Body:
        """Describe actions and observations as JSON schemas.

        `names` and `example` are for our own client.
        """
        inference = self.inference
        text = {"type": "string"}
        action = {**text, "enum": list(inference.actions)} if inference.actions else text
        kind = inference.example.kind
        return {
            "action": {"type": "object", "properties": {"action": action}, "required": ["action"]},
            "observation": {
                "type": "object",
                "properties": {"kind": {"const": kind.value}, "text": text},
                "required": ["kind"],
            },
            "state": {
                "type": "object",
                "properties": {"episode_id": text, "step_count": {"type": "integer"}},
            },
            "names": list(inference.actions),
            "example": observation_json(inference.example),
        }

    def metadata(self, _: Request) -> Body:
        """Describe the world: its name, its rules and the certificate of its model."""
        return {
            "name": self.inference.name,
            "description": self.inference.rules,
            "version": "1",
            "certificate": self.inference.certificate(),
            "kinds": [kind.value for kind in Kind],
        }

    # --- a session in a WebSocket -----------------------------------------------------------------

    async def websocket(self, socket: WebSocket) -> None:
        """Answer OpenEnv's messages until one side closes.

        An invalid message does not end the session.
        """
        await socket.accept()
        try:
            session = self.sessions.open()
        except RequestError as error:
            await socket.send_json(_error_message(error))
            await socket.close(1013)
            return
        inbox = _Inbox(socket)
        try:
            while await self._exchange(socket, inbox, session):
                pass
        except (WebSocketDisconnect, RuntimeError):  # starlette raises both for a closed socket
            logger.debug("a client disconnected")
        finally:
            await inbox.close()
            self.sessions.end(session)

    async def _exchange(self, socket: WebSocket, inbox: _Inbox, session: Session) -> bool:
        """Answer one message; return whether the session goes on."""
        try:
            async with asyncio.timeout(self.inference.limits.idle_seconds):
                message = await inbox.take()
        except TimeoutError:
            self.metrics.count("sessions_reaped")
            await socket.close(1001, "idle for too long")
            return False
        if _is_end(message):
            return False
        work = asyncio.ensure_future(self._answer_or_error(message, session))
        try:
            await asyncio.wait({work, inbox.next}, return_when=asyncio.FIRST_COMPLETED)
            if inbox.has_ended and not work.done():
                return False  # nobody waits for the answer
            reply = await work
        finally:
            await cancel(work)
        if reply is None:
            await socket.close(1000)
            return False
        await socket.send_json(reply)
        return True

    async def _answer_or_error(self, message: Mapping[str, Any], session: Session) -> Body | None:
        seconds = self.inference.limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(message, session)
        except RequestError as error:
            return _error_message(error)
        except TimeoutError:
            text = f"no answer within {seconds:g} s"
            return _error_message(RequestError(504, text, "EXECUTION_ERROR"))
        except Exception:  # noqa: BLE001  as in the guard: the log gets the traceback
            logger.exception("a session failed")
            return _error_message(RequestError(500, SERVER_FAILED, "EXECUTION_ERROR"))

    async def _answer(self, message: Mapping[str, Any], session: Session) -> Body | None:
        """Answer a message; None closes the session."""
        text = message.get("text") or ""
        body = read_json(message.get("bytes") or text.encode("utf-8", "surrogatepass"))
        kind = body.get("type")
        data = body.get("data", {})
        if not isinstance(data, dict):
            raise RequestError(422, "`data` must be an object")
        self.metrics.count("messages", kind=kind if kind in MESSAGE_TYPES else "other")
        if kind == "reset":
            return {"type": "observation", "data": await session.reset(data)}
        if kind == "step":
            return {"type": "observation", "data": await session.step(data)}
        if kind == "state":
            return {"type": "state", "data": session.state()}
        if kind == "close":
            return None
        raise RequestError(422, "`type` must be reset, step, state or close", "UNKNOWN_TYPE")


class _Inbox:
    """The messages of a socket, read one ahead: so a client that leaves is noticed at once."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.next = asyncio.ensure_future(socket.receive())

    async def take(self) -> Mapping[str, Any]:
        """Return the next message, and begin to read the one after it."""
        message = await asyncio.shield(self.next)
        if not _is_end(message):
            self.next = asyncio.ensure_future(self.socket.receive())
        return message

    @property
    def has_ended(self) -> bool:
        """Whether the client is known to have left."""
        if not self.next.done():
            return False
        return self.next.exception() is not None or _is_end(self.next.result())

    async def close(self) -> None:
        """Stop reading."""
        await cancel(self.next)


def _is_end(message: Mapping[str, Any]) -> bool:
    return bool(message["type"] == "websocket.disconnect")


def _error_message(error: RequestError) -> Body:
    return {"type": "error", "data": {"message": error.message, "code": error.code}}


# --- the application ------------------------------------------------------------------------------


def make_app(inference: InferenceService, token: str) -> RequestGuard:
    """Build the application with its guard."""
    handlers = RouteHandlers(inference)
    began = time.time()
    handlers.metrics.gauges["up_seconds"] = lambda: time.time() - began

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(handlers.sessions.keep_reaping()),
            asyncio.create_task(keep_giving_back()),
        ]
        yield
        await cancel(*tasks)
        handlers.sessions.close()
        inference.close()

    model = {
        "id": inference.name,
        "object": "model",
        "created": int(began),
        "owned_by": "terrella",
    }
    routes = [
        _get("/health", lambda _: {"status": "healthy"}),
        _get("/metadata", handlers.metadata),
        _get("/schema", handlers.schema),
        _get("/v1/models", lambda _: {"object": "list", "data": [model]}),
        _get("/metrics", handlers.metrics_text),
        _get("/state", handlers.state),
        _post("/predict", handlers.predict),
        _post("/reset", handlers.reset),
        _post("/step", handlers.step),
        _post("/v1/chat/completions", handlers.chat),
        WebSocketRoute("/ws", handlers.websocket),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # a wrong path is an error, not a redirect
    body_paths = [
        route.path
        for route in routes
        if isinstance(route, Route) and "POST" in (route.methods or ())
    ]
    return RequestGuard(app, token, inference.limits, handlers.metrics, body_paths=body_paths)


async def _not_found(_: Request, error: Any) -> Response:
    body = {"error": {"message": error.detail, "code": "NOT_FOUND"}}
    return JSONResponse(body, error.status_code)


async def _refused(_: Request, error: Any) -> Response:
    return JSONResponse(error.json(), error.status)


async def _failed(_: Request, error: Any) -> Response:
    """Reply without details; the exception goes on to the guard, which logs it."""
    return JSONResponse(RequestError(500, SERVER_FAILED, "INTERNAL_ERROR").json(), 500)


HANDLERS: Any = {404: _not_found, 405: _not_found, RequestError: _refused, Exception: _failed}


def _post(path: str, handler: Callable[[Body], Awaitable[Body | Response]]) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = path
        data = await request.body()
        return _response(await handler(read_json(data) if data.strip() else {}))

    return Route(path, _named(path, endpoint), methods=["POST"])


def _get(path: str, handler: Callable[[Request], Body | Response]) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = path
        return _response(handler(request))

    return Route(path, _named(path, endpoint), methods=["GET"])


def _response(reply: Body | Response) -> Response:
    return reply if isinstance(reply, Response) else JSONResponse(reply)


def _named(path: str, endpoint: Any) -> Any:
    endpoint.__name__ = path.strip("/").replace("/", "_")
    return endpoint
