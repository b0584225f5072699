"""A world model with its calibrated risk and its certificate, as one object.

Callers use its methods and need not know which kind of model is behind it.
    model = load_certified_model(Path("runs/lake"), samples=8, world=FrozenLake.Config(size=3))
    ((distribution, risk),) = model.assess([query]); model.verdict(risk, depth=1)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from terrella.core.config import dump
from terrella.core.errors import ConfigError
from terrella.core.files import folder_stamp
from terrella.core.integrity import folder_sha256
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import AsyncWorldModel, Sampler, WorldModel
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.world import World
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
HOW_TO_CERTIFY = (
    "make it: terrella train-world-model RECIPE --out FOLDER, then terrella certify FOLDER"
)


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


def read_certificate(
    folder: Path,
    samples: int | None = None,
    world: World.Config | None = None,
    *,
    name: str = CERTIFICATE,
) -> Certificate | None:
    """The certificate in a folder, void unless it is of the model and the data beside it.

    If the model will predict, it is with `samples` per query, of steps in `world`. `name` is the
    path of the file in the folder.
    """
    return _read(folder / name, folder, samples, dump(world) if world else None)


def _read(
    path: Path, folder: Path, samples: int | None, world: Mapping[str, Any] | None
) -> Certificate | None:
    if not path.exists():
        return None
    hashes = certified_hashes(folder)
    return Certificate.load(path).held_to(**hashes, samples=samples, world=world)


def load_certified_model(
    folder: Path,
    samples: int,
    world: World.Config | None,
    cache_limit: int = CACHE_LIMIT,
    engine: EngineConfig | None = None,
) -> CertifiedModel:
    """Load what `train-world-model` and `certify` wrote; worlds with equal arguments share it.

    `world` is the one that will be imagined, with the length of its episodes. It is None only if
    none will be: the certificate is then not compared with it.
    """
    if not folder.is_dir():
        raise ConfigError(str(folder), "there is no such folder", HOW_TO_CERTIFY)
    stamp = certified_stamp(folder)
    certificate = cached_certificate(folder, stamp, samples, world_key(world))
    model, data = _load(folder, stamp, samples, cache_limit, engine)
    risk = certificate.risk if certificate else None
    return CertifiedModel(RiskEstimator(model, data, risk), certificate)


def world_key(world: World.Config | None) -> str:
    """The config of a world as text: a key for caches, also where a setting is a mapping."""
    return json.dumps(dump(world) if world else None, sort_keys=True)


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
) -> tuple[WorldModel, NearestData]:
    """A model and the data it was fitted to: once for all worlds that it imagines."""
    data = NearestData(EpisodeStore.open(folder / DATA).transitions())
    model = load_world_model(
        folder / MODEL, samples=samples, cache_limit=cache_limit, engine=engine
    )
    return model, data


@lru_cache(maxsize=16)
def cached_certificate(folder: Path, stamp: object, samples: int, world: str) -> Certificate | None:
    """The certificate for a world (`world_key`), read and warned about once."""
    certificate = _read(folder / CERTIFICATE, folder, samples, json.loads(world))
    if certificate is not None and certificate.void:
        logger.warning("%s: not certified: %s", folder, "; ".join(certificate.void))
    return certificate
