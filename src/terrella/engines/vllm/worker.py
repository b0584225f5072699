"""Extensions of a vLLM server: weights from a file, and a key on every route.

vLLM imports them by name (`--worker-extension-cls`, `--middleware`); nothing here imports vLLM.
`WeightFiles.load_weight_file` loads a safetensors file, or all files of a model folder, in place.
It reports the weights that they did not contain.
    curl -H "Authorization: Bearer $KEY" .../collective_rpc \
         -d '{"method": "load_weight_file", "kwargs": {"path": "/dev/shm/x/weights.safetensors"}}'
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
OPEN_PATHS = ("/health",)


class WeightFiles:
    """Worker extension: its methods become methods of every vLLM worker (`collective_rpc`)."""

    model_runner: Any

    def load_weight_file(self, path: str) -> dict[str, list[str]]:
        """Load a file or folder over the live weights; list the parameters it did not change."""
        model = self.model_runner.get_model()
        written = model.load_weights(_tensors(path))
        return {
            "stale": sorted({name for name, _ in model.named_parameters()} - set(written or ()))
        }


def _tensors(path: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    where = Path(path)
    for each in sorted(where.glob("*.safetensors")) if where.is_dir() else [where]:
        with safe_open(each, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 -- not a mapping
                yield name, file.get_tensor(name)


class KeyOnEveryRoute:
    """ASGI middleware that requires the key on every route but /health.

    vLLM itself requires it under /v1 only, and `/collective_rpc` can call any worker method.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """The key must be in the environment, where process lists do not show it."""
        self.app = app
        self.expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._has_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    def _has_key(self, scope: dict[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self.expected)
