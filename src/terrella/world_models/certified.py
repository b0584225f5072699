"""A world model with its calibrated risk and its certificate, as one object.

Callers use its methods and need not know which kind of model is behind it.
    model = load_certified_model(Path("runs/lake"), samples=8)
    ((distribution, risk),) = model.assess([query]); model.verdict(risk, depth=1)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError
from terrella.core.files import folder_stamp
from terrella.core.integrity import folder_sha256
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import AsyncWorldModel, Sampler, WorldModel
from terrella.core.tokens import Sampled, TokenRequest
from terrella.data.store import EpisodeStore
from terrella.engines.configs import EngineConfig
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.nearness import NearestData
from terrella.trust.risk import RiskEstimator
from terrella.world_models.language import CACHE_LIMIT, LearnedWorldModel, load_world_model

logger = logging.getLogger("terrella")

CERTIFICATE = "certificate/certificate.json"
MODEL, DATA = "model", "data"
"""Folders that a certificate holds for, beside it."""


@dataclass(frozen=True)
class CertifiedModel:
    """A world model, the risk of its predictions, and its certificate if it has one."""

    risk_estimator: RiskEstimator
    certificate: Certificate | None = None

    @property
    def model(self) -> WorldModel:
        return self.risk_estimator.model

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        return self.model.predict(queries)

    @property
    def is_async(self) -> bool:
        """Whether concurrent calls share batches, and can be cancelled one by one."""
        return isinstance(self.model, AsyncWorldModel)

    async def predict_async(
        self, queries: Sequence[Query], prompts: Sequence[tuple[int, ...]] | None = None
    ) -> list[PredictiveDistribution]:
        """As `predict`; a model without an async path of its own runs in a thread.

        `prompts` are those of a language model, if they are known.
        """
        if prompts is not None:
            return await self._require_language_model().predict_async(queries, prompts)
        if isinstance(self.model, AsyncWorldModel):
            return await self.model.predict_async(queries)
        return await asyncio.to_thread(self.model.predict, queries)

    def assess(self, queries: Sequence[Query]) -> list[tuple[PredictiveDistribution, float]]:
        """One distribution with its risk per query."""
        return self.risk_estimator.assess(queries)

    async def assess_async(
        self, queries: Sequence[Query]
    ) -> list[tuple[PredictiveDistribution, float]]:
        """As `assess`, without blocking the caller's event loop."""
        return self.rate(queries, await self.predict_async(queries))

    def rate(
        self, queries: Sequence[Query], distributions: list[PredictiveDistribution]
    ) -> list[tuple[PredictiveDistribution, float]]:
        """Each distribution with its risk."""
        return self.risk_estimator.rate(queries, distributions)

    def verdict(self, risk: float, depth: int) -> Trust:
        """Whether the certificate allows this step; without a certificate it does not."""
        return (
            Trust.NOT_CERTIFIED
            if self.certificate is None
            else self.certificate.verdict(risk, depth=depth)
        )

    # --- text: only for a `LearnedWorldModel` -----------------------------------------------------

    @property
    def _language_model(self) -> LearnedWorldModel | None:
        return self.model if isinstance(self.model, LearnedWorldModel) else None

    @property
    def sampler(self) -> Sampler | None:
        """The sampler of a language model; None for other models."""
        return self._language_model.sampler if self._language_model else None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a language model; None for other models."""
        return self._language_model.tokenizer if self._language_model else None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion; empty if the model is not a language model."""
        return self._language_model.codec.stop_ids if self._language_model else ()

    @property
    def measures_prompts(self) -> bool:
        """Whether `prompt` can be asked."""
        return self._language_model is not None

    def prompt(self, query: Query) -> tuple[int, ...]:
        """The token ids that a language model is asked with."""
        return self._require_language_model().prompt(query)

    @property
    def samples(self) -> int:
        """Samples per query of a language model."""
        return self._language_model.samples if self._language_model else 0

    @property
    def turn_tokens(self) -> int:
        """Tokens that a language model may add to a prompt."""
        return self._language_model.turn_tokens if self._language_model else 0

    async def complete(self, request: TokenRequest) -> Sampled:
        """Sample one continuation, in the same batches as the predictions."""
        return await self._require_language_model().complete(request)

    def _require_language_model(self) -> LearnedWorldModel:
        if self._language_model is None:
            raise ConfigError(type(self.model).__name__, "is not a language model")
        return self._language_model


def certified_hashes(folder: Path) -> dict[str, str | None]:
    """What a certificate is bound to: hashes of the model and of the data in a folder."""
    data = folder / DATA
    return {
        "weights": folder_sha256(folder / MODEL),
        "data": EpisodeStore.open(data).sha256 if data.is_dir() else None,
    }


def read_certificate(folder: Path, samples: int | None = None) -> Certificate | None:
    """The certificate in a folder, void unless it is of the model and the data beside it.

    `samples` are those per query with which the model will predict, if it will.
    """
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    return Certificate.load(path).held_to(**certified_hashes(folder), samples=samples)


def load_certified_model(
    folder: Path,
    samples: int,
    cache_limit: int = CACHE_LIMIT,
    engine: EngineConfig | None = None,
) -> CertifiedModel:
    """Load what `train-world-model` and `certify` wrote; worlds with equal arguments share it."""
    return _load(folder, certified_stamp(folder), samples, cache_limit, engine)


def certified_stamp(folder: Path) -> object:
    """Changes with the model, the data or the certificate of a folder: a key for caches."""
    parts = (folder / MODEL, folder / DATA, (folder / CERTIFICATE).parent)
    return tuple(map(folder_stamp, parts))


@lru_cache(maxsize=4)
def _load(
    folder: Path,
    stamp: object,
    samples: int,
    cache_limit: int,
    engine: EngineConfig | None,
) -> CertifiedModel:
    certificate = read_certificate(folder, samples)
    if certificate is not None and certificate.void:
        logger.warning("%s: not certified: %s", folder, "; ".join(certificate.void))
    data = NearestData(EpisodeStore.open(folder / DATA).transitions())
    model = load_world_model(
        folder / MODEL, samples=samples, cache_limit=cache_limit, engine=engine
    )
    return CertifiedModel(
        RiskEstimator(model, data, certificate.risk if certificate else None), certificate
    )
