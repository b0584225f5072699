"""The application: OpenEnv's routes, `/predict`, OpenAI's chat, health and metrics, behind one guard.

    app = make_app(oracle, token)     # any ASGI server runs it; `terrella serve` uses uvicorn
"""  # fmt: skip

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from terrella.core.types import Kind
from terrella.serve.chat import complete_chat, stream_chat
from terrella.serve.guard import Guard, logger
from terrella.serve.metrics import Metrics
from terrella.serve.oracle import Oracle
from terrella.serve.sessions import Session, Sessions
from terrella.serve.wire import RequestError, observation_json, prediction_json, read_json, read_questions

Body = dict[str, Any]


class Service:
    """The routes' insides: each takes a JSON object and returns one."""

    def __init__(self, oracle: Oracle) -> None:
        """Nothing is asked of the model yet."""
        self.oracle, self.metrics = oracle, Metrics()
        self.sessions = Sessions(oracle, self.metrics)
        self.metrics.gauges["questions_waiting"] = lambda: oracle.waiting
        for name in ("passes", "prefilled", "decoded"):
            self.metrics.gauges[f"sampler_{name}"] = lambda name=name: getattr(oracle.sampler, name, 0)  # type: ignore[misc]

    async def predict(self, body: Body) -> Body:
        """What comes of each action, how risky it is to believe it, and how far the certificate goes."""
        asked = read_questions(body, self.oracle.limits, self.oracle.instruction)
        told = await self.oracle.assess([question for question, _ in asked])
        self.metrics.count("predictions", len(asked))
        rows = [
            prediction_json(belief, trust=self.oracle.trust(risk, depth))
            for (belief, risk), (_, depth) in zip(told, asked, strict=True)
        ]
        return {"predictions": rows, "certificate": self.oracle.certificate()}

    async def reset(self, body: Body) -> Body:
        """A new session unless one is named; its id comes with the reply."""
        session = self.sessions.find(body["session_id"]) if "session_id" in body else self.sessions.open()
        return {**await session.reset(body), "session_id": session.id}

    async def step(self, body: Body) -> Body:
        """`{"session_id": ..., "action": {"action": "Up"}}`; the session ends with its episode."""
        session = self.sessions.find(body.get("session_id"))
        action = body.get("action")
        reply = await session.step(action if isinstance(action, dict) else {"action": action})
        if reply["done"]:
            self.sessions.end(session)
        return {**reply, "session_id": session.id}

    async def chat(self, body: Body) -> Body:
        """One completion."""
        reply = await complete_chat(self.oracle, body)
        self.metrics.count("completion_tokens", reply["usage"]["completion_tokens"])
        return reply

    def schema(self) -> Body:
        """What actions and observations look like, as JSON schemas; `names` and `example` are for our own client."""
        text = {"type": "string"}
        action = {**text, "enum": list(self.oracle.actions)} if self.oracle.actions else text
        kind = self.oracle.example.kind
        return {
            "action": {"type": "object", "properties": {"action": action}, "required": ["action"]},
            "observation": {"type": "object", "properties": {"kind": {"const": kind.value}, "text": text},
                            "required": ["kind"]},
            "state": {"type": "object", "properties": {"episode_id": text, "step_count": {"type": "integer"}}},
            "names": list(self.oracle.actions), "example": observation_json(self.oracle.example),
        }  # fmt: skip

    def metadata(self) -> Body:
        """Name, rules and certificate."""
        return {"name": self.oracle.name, "description": self.oracle.rules, "version": "1",
                "certificate": self.oracle.certificate(), "kinds": [kind.value for kind in Kind]}  # fmt: skip

    # --- a session in a WebSocket -----------------------------------------------------------------------------------

    async def converse(self, socket: WebSocket) -> None:
        """OpenEnv's messages until one side ends it; what is wrong with one message does not end the session."""
        await socket.accept()
        try:
            session = self.sessions.open()
        except RequestError as error:
            await socket.send_json(_ws_error(error))
            await socket.close(1013)
            return
        try:
            while await self._turn(socket, session):
                pass
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: starlette's word for a socket that is gone
            logger.debug("a client went away")
        finally:
            self.sessions.end(session)

    async def _turn(self, socket: WebSocket, session: Session) -> bool:
        limits = self.oracle.limits
        try:
            async with asyncio.timeout(limits.idle_seconds):
                message = await socket.receive()
        except TimeoutError:
            self.metrics.count("sessions_reaped")
            await socket.close(1001, "idle for too long")
            return False
        if message["type"] == "websocket.disconnect":
            return False
        try:
            async with asyncio.timeout(limits.request_seconds):
                reply = await self._answer(message, session)
        except RequestError as error:
            reply = _ws_error(error)
        except TimeoutError:
            reply = _ws_error(RequestError(504, f"no answer within {limits.request_seconds:g} s", "EXECUTION_ERROR"))
        except Exception:  # noqa: BLE001  as in the guard: the log gets the traceback
            logger.exception("a session broke")
            reply = _ws_error(RequestError(500, "the server failed; its log says why", "EXECUTION_ERROR"))
        if reply is None:
            await socket.close(1000)
            return False
        await socket.send_json(reply)
        return True

    async def _answer(self, message: Any, session: Session) -> Body | None:
        body = read_json(message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass"))
        kind, data = body.get("type"), body.get("data", {})
        if not isinstance(data, dict):
            raise RequestError(422, "`data` must be an object")
        self.metrics.count("messages", kind=kind if kind in ("reset", "step", "state", "close") else "other")
        if kind == "reset":
            return {"type": "observation", "data": await session.reset(data)}
        if kind == "step":
            return {"type": "observation", "data": await session.step(data)}
        if kind == "state":
            return {"type": "state", "data": session.state()}
        if kind == "close":
            return None
        raise RequestError(422, "`type` must be reset, step, state or close", "UNKNOWN_TYPE")


def _ws_error(error: RequestError) -> Body:
    return {"type": "error", "data": {"message": error.message, "code": error.code}}


def make_app(oracle: Oracle, token: str) -> Guard:
    """Everything, guarded."""
    service, began = Service(oracle), time.time()
    service.metrics.gauges["up_seconds"] = lambda: time.time() - began

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        reaper = asyncio.create_task(service.sessions.keep_reaping())
        yield
        reaper.cancel()
        service.sessions.close()

    async def chat(body: Body) -> Any:
        reply = await service.chat(body)
        return (
            StreamingResponse(stream_chat(reply), media_type="text/event-stream")
            if body.get("stream") is True
            else reply
        )

    models = {
        "object": "list",
        "data": [{"id": oracle.name, "object": "model", "created": int(began), "owned_by": "terrella"}],
    }
    routes = [
        _get("/health", lambda _: {"status": "healthy"}), _get("/metadata", lambda _: service.metadata()),
        _get("/schema", lambda _: service.schema()), _get("/v1/models", lambda _: models),
        _get("/metrics", lambda _: PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")),
        _get("/state", lambda request: service.sessions.find(request.query_params.get("session_id")).state()),
        _post("/predict", service.predict), _post("/reset", service.reset), _post("/step", service.step),
        _post("/v1/chat/completions", chat), WebSocketRoute("/ws", service.converse),
    ]  # fmt: skip
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # a path is right or it is not
    return Guard(app, token, oracle.limits, service.metrics)


async def _no_such(_: Request, error: Any) -> Response:
    return JSONResponse({"error": {"message": error.detail, "code": "NOT_FOUND"}}, error.status_code)


async def _refused(_: Request, error: Any) -> Response:
    return JSONResponse(error.json(), error.status)


async def _broke(_: Request, error: Any) -> Response:
    """The traceback goes on to the guard, which logs it."""
    return JSONResponse(RequestError(500, "the server failed; its log says why", "INTERNAL_ERROR").json(), 500)


HANDLERS: Any = {404: _no_such, 405: _no_such, RequestError: _refused, Exception: _broke}


def _post(path: str, serve: Callable[[Body], Awaitable[Any]]) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = path
        data = await request.body()
        reply = await serve(read_json(data) if data.strip() else {})
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    return Route(path, _named(path, endpoint), methods=["POST"])


def _get(path: str, serve: Callable[[Request], Any]) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope["terrella.route"] = path
        reply = serve(request)
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    return Route(path, _named(path, endpoint), methods=["GET"])


def _named(path: str, endpoint: Any) -> Any:
    endpoint.__name__ = path.strip("/").replace("/", "_")
    return endpoint
