"""A Tinker endpoint in our own words. This is the only file that knows the `tinker` package.

Rows go in as token ids, log-probabilities come out as lists. Errors of the endpoint become
`EngineError`. The key is read from TINKER_API_KEY by the package itself.
    endpoint = Endpoint("http://127.0.0.1:8123")
    adapter = endpoint.new_adapter("Qwen/Qwen3-8B", rank=16, seed=0)
    adapter.forward(rows)
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError, EngineError, MissingExtraError
from terrella.core.fetch import download, fetch
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.untrusted import MAX_UNPACKED_BYTES
from terrella.engines.tinker.rows import Columns, Row

KEY = "TINKER_API_KEY"
LOSS = "importance_sampling"
"""-sum of exp(logprob - given) * advantage. With the current log-probs given, its gradient is that
of -sum(advantage * logprob), so any loss of log-probs can be trained with it."""
SEEDS = 2**31 - 1
SECONDS = 30.0
MAX_HEALTH_BYTES = 2**20
DOWNLOAD_SECONDS, PIECE_SECONDS = 6 * 3600.0, 600.0
"""For the archive of an adapter, and for each piece of it."""
BETA1, EPS = 0.9, 1e-8
"""Constants of Adam; `TinkerConfig.beta2` is the other."""


class Endpoint:
    """Makes adapters at an endpoint."""

    def __init__(self, url: str) -> None:
        """Connect; refuse an address that does not answer."""
        if importlib.util.find_spec("tinker") is None:
            raise MissingExtraError("tinker", "engine=tinker")
        if not os.environ.get(KEY):
            raise ConfigError(KEY, "is not set", f"export {KEY}=... (it is never written to a run)")
        self.url = url.rstrip("/")
        self._check_health()
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker

        self.service = tinker.ServiceClient(base_url=self.url)

    def _check_health(self) -> None:
        try:
            request = urllib.request.Request(f"{self.url}/api/v1/healthz")
            fetch(request, seconds=SECONDS, max_bytes=MAX_HEALTH_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(
                "tinker", f"{self.url} does not answer: {error}", "check tinker.url"
            ) from error

    def new_adapter(self, base_model: str, *, rank: int, seed: int) -> Adapter:
        """An adapter that changes nothing yet, on the layers that TRL's adapters are on."""
        make = self.service.create_lora_training_client
        with _Reported(f"no adapter of {base_model} could be made"):
            client = make(base_model=base_model, rank=rank, seed=seed % SEEDS, train_unembed=False)
        return Adapter(client)

    def load_adapter(self, base_model: str, state: str, *, rank: int, optimizer: bool) -> Adapter:
        """A new adapter with the weights of a saved state, and with its optimizer if asked."""
        adapter = self.new_adapter(base_model, rank=rank, seed=0)
        load = adapter.client.load_state_with_optimizer if optimizer else adapter.client.load_state
        with _Reported(f"{state} could not be loaded"):
            load(state).result()
        return adapter

    def context_tokens(self, base_model: str) -> int:
        """Most tokens that the endpoint says it reads; 0 where it says nothing."""
        with _Reported("get_server_capabilities"):
            models = self.service.get_server_capabilities().supported_models
        stated = [
            # Older versions of the package, and most servers, have no such number.
            getattr(each, "max_context_length", None)
            for each in models
            if each.model_name == base_model
        ]
        return int(next(iter(stated), None) or 0)

    def download(self, path: str, file: Path) -> None:
        """Write the archive of an adapter saved with `Adapter.save_for_sampling`."""
        link = self._link(path)
        try:
            request = urllib.request.Request(link)
            if _server(link) == _server(self.url):  # a link may lead to a storage elsewhere
                request.add_header("X-API-Key", os.environ[KEY])
            with file.open("wb") as target:
                download(
                    request,
                    target,
                    seconds=DOWNLOAD_SECONDS,
                    piece_seconds=PIECE_SECONDS,
                    max_bytes=MAX_UNPACKED_BYTES,
                )
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError("tinker", f"{path} could not be downloaded: {error}") from error

    def _link(self, path: str) -> str:
        """Where an archive is. SkyRL 0.3 answers with paths that the package cannot read."""
        import tinker

        run, *kind, name = path.removeprefix("tinker://").split("/")
        own = f"{self.url}/api/v1/training_runs/{run}/checkpoints/{name}/download"
        if not kind:
            return own
        rest = self.service.create_rest_client()
        try:
            return str(rest.get_checkpoint_archive_url_from_tinker_path(path).result().url)
        except tinker.NotFoundError:
            return own


class Adapter:
    """An adapter and its optimizer at the endpoint. Calls are carried out in order."""

    def __init__(self, client: Any) -> None:
        """`client` is a `tinker.TrainingClient`."""
        self.client = client

    def forward(self, rows: Sequence[Row]) -> Columns:
        """Log-probabilities of the target ids."""
        with _Reported("forward"):
            reply = self.client.forward([_datum(row) for row in rows], LOSS).result()
        return _logprobs(reply)

    def train(
        self,
        calls: Sequence[Sequence[Row]],
        *,
        learning_rate: float,
        max_grad_norm: float = 0.0,
        beta2: float = 0.95,
    ) -> dict[str, float]:
        """Add up the gradients of all calls and take one step of Adam; returns its metrics."""
        import tinker

        adam = tinker.AdamParams(
            learning_rate=learning_rate,
            beta1=BETA1,
            beta2=beta2,
            eps=EPS,
            weight_decay=0.0,
            grad_clip_norm=max_grad_norm,
        )
        with _Reported("forward_backward and optim_step"):
            # All are submitted before the first is waited for: the endpoint works without pauses.
            passes = [
                self.client.forward_backward([_datum(row) for row in call], LOSS) for call in calls
            ]
            step = self.client.optim_step(adam)
            for each in passes:
                each.result()
            return dict(step.result().metrics or {})

    def save_state(self, name: str) -> str:
        """Save weights and optimizer at the endpoint; returns the path."""
        with _Reported("save_state"):
            return str(self.client.save_state(name).result().path)

    def save_for_sampling(self, name: str) -> str:
        """Save the weights for downloads; returns the path."""
        with _Reported("save_weights_for_sampler"):
            return str(self.client.save_weights_for_sampler(name).result().path)

    def sampler(self) -> AdapterSampler:
        """A sampler of the current weights. Never use one that is older than the last step.

        SkyRL 0.3 loads what is sampled into the slot that is trained.
        """
        with _Reported("save_weights_and_get_sampling_client"):
            return AdapterSampler(self.client.save_weights_and_get_sampling_client())

    def close(self) -> None:
        """Free the adapter's place at the endpoint; saved states stay."""
        from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
        from tinker.types import UnloadModelRequest

        holder = self.client.holder

        async def unload() -> None:
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                await client.models.unload(
                    request=UnloadModelRequest(model_id=self.client.model_id)
                )

        with _Reported("unload_model"):
            holder.run_coroutine_threadsafe(unload()).result()


class AdapterSampler:
    """Samples of an adapter's weights."""

    def __init__(self, client: Any) -> None:
        """`client` is a `tinker.SamplingClient`."""
        self.client = client

    async def sample(self, request: TokenRequest) -> Sampled:
        import tinker

        settings = tinker.SamplingParams(
            max_tokens=request.max_new_tokens,
            seed=request.seed % SEEDS,
            stop=list(request.stop_ids) or None,
            temperature=request.temperature,
        )
        prompt = tinker.ModelInput.from_ints(list(request.prompt_ids))
        with _Reported("sample"):
            reply = await asyncio.wrap_future(self.client.sample(prompt, 1, settings))
        sequence = reply.sequences[0]
        ids = tuple(sequence.tokens)
        return Sampled(
            token_ids=ids,
            logprobs=tuple(sequence.logprobs),
            stopped=bool(ids) and ids[-1] in request.stop_ids,
        )


def _server(address: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address. The beginning of a text is not enough to tell."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("the link is not an http(s) address")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


class _Reported:
    """Turns errors of the endpoint into `EngineError`."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import tinker

        if isinstance(error, tinker.TinkerError):
            reason = " ".join(str(error).split())[:500]
            raise EngineError("tinker", f"{self.what}: {reason}") from error


def _datum(row: Row) -> Any:
    import tinker

    # `forward` has the loss's name too; it wants the columns and does not use them.
    unused = [0.0] * len(row.target_ids)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(row.input_ids),
        loss_fn_inputs={
            "target_tokens": row.target_ids,
            "logprobs": row.logprobs or unused,
            "advantages": row.advantages or unused,
        },
    )


def _logprobs(reply: Any) -> Columns:
    return [[float(value) for value in each["logprobs"].data] for each in reply.loss_fn_outputs]
