"""The client: a world behind a server, as a `gymnasium.Env`.

The messages are OpenEnv's, so it works with any server that speaks them with our observations.
Observations are records; `info` has the risk, depth, trust and safe horizon of each step. A
session whose reply did not come in time is over: a late reply would be taken for the next one's.
    env = gymnasium.make("terrella/Remote-v0", url="http://127.0.0.1:8800", token=token)
"""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.parse
import urllib.request
from typing import Any

import gymnasium

from terrella.core.errors import MissingExtraError, StoreError, WorldError
from terrella.core.fetch import fetch
from terrella.core.spaces import Names, Observations
from terrella.core.step_values import check_step
from terrella.core.types import Observation
from terrella.core.untrusted import MAX_JSON_BYTES, parse_json, reading
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError, read_observation

LIMITS = ServeSettings.Config()
ANOTHER_SERVER = "is this a server of terrella?"
CLOSE_SECONDS = 5.0
"""How long the end of a session waits for the server."""


class RemoteEnv(gymnasium.Env[Observation, str]):
    """An imagined world on a server; one connection is one session."""

    def __init__(self, url: str, token: str, *, seconds: float = 60.0) -> None:
        """Connect, and ask for the world's actions and observations.

        `seconds` is the timeout of the connection and of each reply.
        """
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError as error:
            raise MissingExtraError("serve", "worlds on a server") from error
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise WorldError(url, "is not the address of a server", "use http://host:port")
        self.seconds = seconds
        self.headers = {"Authorization": f"Bearer {token}"}
        self._lost = ""
        schema = self._get(f"{parts.scheme}://{parts.netloc}/schema")
        with reading(url, ANOTHER_SERVER):
            example = self._observation(schema["example"])
            names = tuple(schema["names"] or ())
        self.observation_space = Observations(example.kind, example)
        self.action_space = Names(names) if names else gymnasium.spaces.Text(4096)
        scheme = "wss" if parts.scheme == "https" else "ws"
        self._connection = contextlib.ExitStack()
        try:
            connection = connect(
                f"{scheme}://{parts.netloc}/ws",
                additional_headers=self.headers,
                open_timeout=seconds,
                close_timeout=min(seconds, CLOSE_SECONDS),
                proxy=None,
                max_size=LIMITS.max_body * 16,
            )
        except (OSError, WebSocketException) as error:
            raise WorldError(
                url, f"begins no session: {error}", "check the address and the token"
            ) from error
        self.socket = self._connection.enter_context(connection)

    def _get(self, url: str) -> Any:
        request = urllib.request.Request(url, headers=self.headers)
        try:
            # The token goes to this host alone: no redirects, no proxies.
            data = fetch(request, seconds=self.seconds, max_bytes=MAX_JSON_BYTES, proxies=False)
            return parse_json(data, url)
        except (OSError, http.client.HTTPException, ValueError, StoreError) as error:
            raise WorldError(
                url, f"the request failed: {error}", "check the address and the token"
            ) from error

    def _observation(self, value: Any) -> Observation:
        try:
            return read_observation(value, LIMITS.replace(max_text=10**8))
        except RequestError as error:
            raise WorldError("server", f"sent an invalid observation: {error.message}") from error

    def _request(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        reply = parse_json(
            self._ask(json.dumps({"type": kind, "data": data})), "server", ANOTHER_SERVER
        )
        with reading("server", ANOTHER_SERVER):
            if reply.get("type") == "error":
                raise WorldError("server", str(reply["data"].get("message")))
            return dict(reply["data"])

    def _ask(self, message: str) -> str | bytes:
        """The reply to a message; after one that did not come there are no others."""
        from websockets.exceptions import WebSocketException

        if self._lost:
            raise WorldError("server", self._lost, "connect again: make a new environment")
        self._lost = "the session is over: an earlier request was not answered"
        try:
            self.socket.send(message)
            reply = self.socket.recv(timeout=self.seconds)
        except (OSError, WebSocketException) as error:
            self.close()
            slow = isinstance(error, TimeoutError)
            what = f"no reply in {self.seconds:g} s" if slow else f"the connection ended: {error}"
            raise WorldError("server", what, "connect again: make a new environment") from error
        self._lost = ""
        return reply

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; the options are `split` and `noise_seed`, as for any world."""
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        reply = self._request("reset", {"seed": seed, **(options or {})})
        with reading("server", ANOTHER_SERVER):
            info = {**reply["metadata"], "actions": reply["observation"]["actions"]}
            return self._observation(reply["observation"]), info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take a step; `info["risk"]` is the risk that the result is wrong."""
        reply = self._request("step", {"action": action})
        with reading("server", ANOTHER_SERVER):
            info = {**reply["metadata"], "actions": reply["observation"]["actions"]}
            ends = info["terminated"], info["truncated"]
            check_step("server", reply["reward"], *ends)
            return self._observation(reply["observation"]), float(reply["reward"]), *ends, info

    def close(self) -> None:
        """End the session."""
        self._connection.close()
