"""The sampler on a vLLM server: token ids in, token ids and log-probabilities out; weights follow the trainer.

Prompts go as ids and replies come back as ids: no text is tokenised on the way. After an optimiser step `load_weights`
writes the trainer's weights to a safetensors file that the server's workers read in place; the file route works on CPU
and on GPUs of one machine (or over a shared file system). Across GPU nodes NCCL is faster; the call stays the same.
    sampler = server.sampler(); sampler.load_weights(merged_weights(model)); await sampler.sample(request)
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import threading
import urllib.parse
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from terrella.core.errors import EngineError
from terrella.core.protocols import Sampled, TokenRequest

SERVED_NAME = "policy"
TRIES = 3
SHARED_MEMORY = Path("/dev/shm")


class VllmSampler:
    """`core.protocols.Sampler` over HTTP. vLLM batches; its prefix cache keeps sessions and shared prompts."""

    def __init__(
        self, url: str, key: str, *, dtype: str = "auto", max_requests: int = 256, seconds: float = 600.0,
        sync_folder: Path | None = None,
    ) -> None:  # fmt: skip
        """`max_requests` are in flight at once; `sync_folder` must be visible to the server's workers."""
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.dtype, self.seconds = dtype, seconds
        self.sync_folder = sync_folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._threads = ThreadPoolExecutor(max_requests, thread_name_prefix="vllm")
        self._local = threading.local()  # one kept-alive connection per thread

    async def sample(self, request: TokenRequest) -> Sampled:
        """One continuation. Same seed, same sample as far as vLLM's batching lets it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._sample, request)

    def release(self, session: str) -> None:
        """Nothing is kept here: the prefix cache forgets by itself."""

    def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of given tokens at temperature 1: what a weight sync is checked with."""
        ids = [*prompt_ids, *completion_ids]
        answer = self._choice({"prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0})
        scored = answer["prompt_logprobs"][len(prompt_ids) :]
        return tuple(entry[str(token)]["logprob"] for token, entry in zip(completion_ids, scored, strict=True))

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Give the server these weights, all of them, and drop what it cached under the old ones."""
        with tempfile.TemporaryDirectory(prefix="terrella-weights-", dir=self.sync_folder) as folder:
            path = Path(folder) / "weights.safetensors"
            _write_weights(path, weights, self.dtype)
            answer = self._post("/collective_rpc", {"method": "load_weight_file", "kwargs": {"path": str(path)}})
        stale = sorted({name for result in answer["results"] for name in result["stale"]})
        if stale:
            raise EngineError("vllm", f"the weight sync did not reach {', '.join(stale[:5])} ({len(stale)} in all)")
        self._post("/reset_prefix_cache", {})

    def healthy(self) -> bool:
        """True once the server answers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False  # not listening yet: exactly what is asked here
        finally:
            connection.close()

    # --- one request ----------------------------------------------------------------------------------------------

    def _sample(self, request: TokenRequest) -> Sampled:
        if request.allowed_ids is not None and request.temperature != 1.0:
            raise EngineError("vllm", "allowed ids need temperature 1", "vLLM reports them after masking only")
        choice = self._choice(_completion_body(request))
        ids, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        if request.allowed_ids is not None:  # the trainer computes probabilities before the mask
            logprobs = self.score(request.prompt_ids, ids)
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=bool(ids) and ids[-1] in request.stop_ids)

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._post("/v1/completions", {"model": SERVED_NAME, **body})
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer; a connection that broke is tried again, for every request here may be repeated."""
        failure = ""
        for _ in range(TRIES):
            try:
                return self._exchange(path, json.dumps(body))
            except (OSError, http.client.HTTPException) as error:
                failure = f"{type(error).__name__}: {error}"
                self._local.connection = None
        raise EngineError("vllm", f"{path}: {failure}", f"is the server at {self.host}:{self.port} still running?")

    def _exchange(self, path: str, body: str) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.seconds)
            self._local.connection = connection
        connection.request("POST", path, body, self._headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise EngineError("vllm", f"{path}: HTTP {response.status}: {text[:500].decode(errors='replace')}")
        return json.loads(text) if text else {}


def _completion_body(request: TokenRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": list(request.prompt_ids), "max_tokens": request.max_new_tokens, "temperature": request.temperature,
        "seed": request.seed, "stop_token_ids": list(request.stop_ids), "logprobs": 0, "return_token_ids": True,
        "ignore_eos": True,  # a turn ends with the codec's stop ids and nothing else
        "top_p": 1.0, "top_k": -1,
    }  # fmt: skip
    if request.allowed_ids is not None:
        body["allowed_token_ids"] = list(request.allowed_ids)
    return body


def _write_weights(path: Path, weights: Iterable[tuple[str, Any]], dtype: str) -> None:
    """In the server's dtype when it is a short one: half the bytes, the same values on arrival."""
    import torch
    from safetensors.torch import save_file

    short = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
    tensors = {name: weight.to(device="cpu", dtype=short or weight.dtype).contiguous() for name, weight in weights}
    save_file(tensors, path)
