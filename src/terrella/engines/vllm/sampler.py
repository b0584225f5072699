"""A sampler on a vLLM server: token ids in, token ids and log-probabilities out.

Prompts and replies are sent as ids; no text is tokenized on the way. After an optimizer step
`load_weights` sends the trainer's weights: over NCCL to a server on GPUs of its own, otherwise as a
safetensors file that the server's workers load in place. `load_folder` does so for a model folder,
so that one server serves all models of a run.
    sampler = server.sampler()
    sampler.load_weights(MergedWeights(model))
    sampled = await sampler.sample(request)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import math
import selectors
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.device_memory import free_cached_memory
from terrella.engines.vllm.nccl import NcclTransfer
from terrella.engines.vllm.weight_file import weight_file

SERVED_NAME = "policy"
TRIES = 3
ASK_SECONDS = 60.0
"""How long to wait for a reply, or for /health, before asking whether the server still answers."""


class VllmSampler:
    """`core.protocols.Sampler` over HTTP.

    vLLM batches the requests; its prefix cache holds sessions and shared prompts.
    """

    def __init__(  # noqa: PLR0913  all but two have defaults
        self,
        url: str,
        key: str,
        *,
        dtype: str = "auto",
        logprobs: Literal["raw", "processed"] = "raw",
        nccl_workers: int = 0,
        sleeps: bool = False,
        context_tokens: int = 0,
        requests: int = 256,
        seconds: float = 3600.0,
        sync_folder: Path | None = None,
    ) -> None:
        """How the server was started, and limits. `VllmServer.sampler` knows the former.

        At most `requests` are in flight, and one may take `seconds`. Weights are sent over NCCL to
        `nccl_workers` GPUs, or as a file in `sync_folder`, which the server's workers must see.
        """
        parts = urllib.parse.urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 80
        self.dtype = dtype
        self.logprobs = logprobs
        self.sleeps = sleeps
        self.context_tokens = context_tokens
        self.asleep = False
        self.nccl: NcclTransfer | None = None
        if nccl_workers:
            # Not repeated: half of a transfer cannot be done again.
            once = functools.partial(self._post, tries=1)
            self.nccl = NcclTransfer(once, workers=nccl_workers, dtype=dtype)
        self.seconds = seconds
        self._asking = threading.Lock()
        self._asked, self._answers = -math.inf, True  # when /health was asked, and what it said
        self.sync_folder = sync_folder
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._threads = ThreadPoolExecutor(requests, thread_name_prefix="vllm")
        self._local = threading.local()  # one kept-alive connection per thread

    async def sample(self, request: TokenRequest) -> Sampled:
        """One continuation. Equal seeds give equal samples, as far as vLLM's batching allows.

        When the caller is cancelled, the connection is closed, and vLLM aborts the request.
        """
        call = _Call()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._sample, request, call
            )
        except asyncio.CancelledError:
            call.cancel()
            raise

    def release(self, session: str) -> None:
        """Nothing to release: vLLM evicts from its prefix cache itself."""

    def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of given tokens at temperature 1. Weight syncs are checked with it."""
        ids = [*prompt_ids, *completion_ids]
        choice = self._choice(
            {"prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        )
        scored = choice["prompt_logprobs"][len(prompt_ids) :]
        return tuple(
            entry[str(token)]["logprob"]
            for token, entry in zip(completion_ids, scored, strict=True)
        )

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Send all weights to the server; wakes a sleeping one."""
        with self._new_weights():
            if self.nccl is not None:
                self.nccl.send(weights)
                return
            with weight_file(self.sync_folder, weights, self.dtype) as path:
                self._load_files(path)

    def load_folder(self, folder: Path) -> None:
        """Load the weights of another model folder of the same shape; wakes a sleeping server."""
        if not list(folder.glob("*.safetensors")):
            raise EngineError("vllm", f"{folder} has no safetensors files", "export the model")
        with self._new_weights():
            self._load_files(folder.resolve())

    def sleep(self) -> None:
        """Free the server's memory until new weights are loaded, if it was started for that."""
        if self.sleeps and not self.asleep:
            # Level 2 drops the weights too: training replaces them.
            self._post("/sleep?level=2&mode=wait", {})
            self.asleep = True

    @contextlib.contextmanager
    def _new_weights(self) -> Iterator[None]:
        """Wake the server around a load, and reset its prefix cache, which is stale then."""
        if self.asleep:
            self._wake("weights")
        yield
        if self.asleep:
            self._wake("kv_cache")
            self.asleep = False
        self._post("/reset_prefix_cache", {})

    def _wake(self, tag: str) -> None:
        """Let the server take back one part of its memory, which this process may hold in torch."""
        free_cached_memory()
        self._post(f"/wake_up?tags={tag}", {})

    def _load_files(self, path: Path) -> None:
        reply = self._post(
            "/collective_rpc", {"method": "load_weight_file", "kwargs": {"path": str(path)}}
        )
        # Of several copies of the weights the first one answers; all of them have loaded the same.
        stale = sorted({name for result in reply["results"] for name in result["stale"]})
        if stale:
            raise EngineError(
                "vllm",
                f"the weight sync did not reach {', '.join(stale[:5])} ({len(stale)} in all)",
            )

    def healthy(self, seconds: float = 5.0) -> bool:
        """True once the server answers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False  # not listening yet, or no longer
        finally:
            connection.close()

    # --- one request ------------------------------------------------------------------------------

    def _sample(self, request: TokenRequest, call: _Call) -> Sampled:
        check_logprobs(request, self.logprobs)
        choice = self._choice(_completion_body(request), call)
        ids = tuple(choice["token_ids"])
        logprobs = tuple(choice["logprobs"]["token_logprobs"])
        stopped = bool(ids) and ids[-1] in request.stop_ids
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=stopped)

    def _choice(self, body: dict[str, Any], call: _Call | None = None) -> dict[str, Any]:
        reply = self._post("/v1/completions", {"model": SERVED_NAME, **body}, call=call)
        choice: dict[str, Any] = reply["choices"][0]
        return choice

    def _post(
        self, path: str, body: dict[str, Any], *, tries: int = TRIES, call: _Call | None = None
    ) -> Any:
        """Post a request and return the reply; retry if the connection breaks.

        All requests of this class may be repeated. A call that was cancelled is not, nor one that
        took too long: the server would start again from the first token.
        """
        failure = ""
        for _ in range(tries):
            try:
                return self._exchange(path, json.dumps(body), call or _Call())
            except (OSError, http.client.HTTPException) as error:
                failure = f"{type(error).__name__}: {error}"
                self._local.connection = None
            if call is not None and call.cancelled:
                raise EngineError("vllm", f"{path}: the caller has left")
        raise EngineError(
            "vllm", f"{path}: {failure}", f"is the server at {self.host}:{self.port} still running?"
        )

    def _exchange(self, path: str, body: str, call: _Call) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=ASK_SECONDS)
            self._local.connection = connection
        with call.using(connection):
            connection.request("POST", path, body, self._headers)
            try:
                self._await_reply(path, connection)
            except EngineError:
                self._local.connection = None
                connection.close()  # vLLM aborts the request
                raise
            response = connection.getresponse()
            text = response.read()
        if response.status != 200:
            raise EngineError(
                "vllm", f"{path}: HTTP {response.status}: {text[:500].decode(errors='replace')}"
            )
        return json.loads(text) if text else {}

    def _await_reply(self, path: str, connection: http.client.HTTPConnection) -> None:
        """Wait until the reply comes, as long as the server answers and `seconds` are not over.

        A reply comes as a whole: until then a connection to a busy server is as silent as one to a
        dead server.
        """
        deadline = time.monotonic() + self.seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(connection.sock, selectors.EVENT_READ)
            while not waiting.select(max(0.0, min(ASK_SECONDS, deadline - time.monotonic()))):
                if not self._still_answers():
                    raise EngineError(
                        "vllm",
                        f"{path}: no reply, and /health does not answer either",
                        "see how the server's log ends",
                    )
                if time.monotonic() >= deadline:
                    raise EngineError(
                        "vllm",
                        f"{path}: no reply in {self.seconds:g} s, and the server still answers",
                        "raise vllm.request_seconds, or lower vllm.requests: fewer then wait",
                    )

    def _still_answers(self) -> bool:
        """Whether /health answers; asked by one of all waiting threads at a time."""
        with self._asking:
            if time.monotonic() - self._asked >= ASK_SECONDS:
                self._answers = self.healthy(ASK_SECONDS)
                self._asked = time.monotonic()
            return self._answers


class _Call:
    """A request in a thread, which another thread may cancel."""

    def __init__(self) -> None:
        self.cancelled = False
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def using(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Use a connection, which `cancel` breaks; none is used after that."""
        with self._lock:
            if self.cancelled:
                raise ConnectionAbortedError("cancelled")
            if connection.sock is None:
                connection.connect()
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def cancel(self) -> None:
        """Break the connection: the server notices, and the thread stops waiting."""
        with self._lock:
            self.cancelled = True
            if self._connection is not None and self._connection.sock is not None:
                with contextlib.suppress(OSError):  # it is broken already
                    self._connection.sock.shutdown(socket.SHUT_RDWR)


def check_logprobs(request: TokenRequest, logprobs: Literal["raw", "processed"]) -> None:
    """Refuse a request whose log-probs would not be those that a trainer computes.

    A trainer computes them after temperature and before the mask. vLLM reports them before both
    (raw) or after both (processed), for the whole server.
    """
    if request.allowed_ids is not None and logprobs == "processed":
        raise EngineError(
            "vllm",
            "this server reports log-probs after the mask of allowed ids",
            "use temperature 1, and vllm.logprobs=raw",
        )
    if request.temperature not in (0.0, 1.0) and logprobs == "raw":
        raise EngineError(
            "vllm",
            f"this server reports log-probs at temperature 1, not {request.temperature:g}",
            "use temperature 1, or vllm.logprobs=processed (which excludes allowed ids)",
        )


def _completion_body(request: TokenRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop_token_ids": list(request.stop_ids),
        "logprobs": 0,
        "return_token_ids": True,
        "ignore_eos": True,  # a turn ends with the codec's stop ids and nothing else
        "top_p": 1.0,
        "top_k": -1,
    }
    if request.allowed_ids is not None:
        body["allowed_token_ids"] = list(request.allowed_ids)
    return body
