"""What terrella adds inside a vLLM server: weights from a file, and a key on every route.

vLLM imports these by name (`--worker-extension-cls`, `--middleware`); nothing here imports vLLM. The hook that matters
is `WeightFiles.load_weight_file`: safetensors only, in place, and it says which weights the file did not reach.
    curl -H "Authorization: Bearer $KEY" .../collective_rpc \
         -d '{"method": "load_weight_file", "kwargs": {"path": "/dev/shm/x/weights.safetensors"}}'
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
OPEN_PATHS = ("/health",)


class WeightFiles:
    """Worker extension: its methods become methods of every vLLM worker, called by `collective_rpc`."""

    model_runner: Any

    def load_weight_file(self, path: str) -> dict[str, list[str]]:
        """Copy a safetensors file over the live weights; lists the parameters that kept their old values."""
        model = self.model_runner.get_model()
        written = model.load_weights(_tensors(path))
        return {"stale": sorted({name for name, _ in model.named_parameters()} - set(written or ()))}


def _tensors(path: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 -- not a mapping
            yield name, file.get_tensor(name)


class KeyOnEveryRoute:
    """ASGI middleware. vLLM asks for its key under /v1 only, and `/collective_rpc` reaches every worker method."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """The key comes by environment, so that no process list shows it; without one nothing is served."""
        self.app, self.wanted = app, f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass on what carries the key; refuse the rest."""
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._has_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    def _has_key(self, scope: dict[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self.wanted)
