"""Hand-made world models: exact ones, and ones that are wrong on purpose."""

import zlib
from dataclasses import replace

from terrella.core.episode import play
from terrella.core.predictive import PredictiveDistribution
from terrella.policies.basic import Random
from terrella.trust.nearness import NearestData
from terrella.trust.risk import RiskEstimator
from terrella.trust.truth import TrueModel
from terrella.world_models.certified import CertifiedModel


class Lying:
    """The exact model, except for queries for which `lies` is true.

    Its wrong predictions are as confident as its right ones.
    """

    def __init__(self, world, lies):
        self.truth, self.lies, self.query_count = TrueModel(world), lies, 0

    def predict(self, queries):
        self.query_count += len(queries)
        return [
            self.lie(query, distribution) if self.lies(query) else distribution
            for query, distribution in zip(queries, self.truth.predict(queries), strict=True)
        ]

    def lie(self, query, distribution):
        """Predicts that nothing happens."""
        before = query.situation.observation
        return PredictiveDistribution(
            tuple(
                replace(p, observation=before, terminated=False, success=False, reward=0.0)
                for p in distribution.predictions[:1]
            )
        )


class Doubting(Lying):
    """A model whose wrong predictions are improbable, and whose samples then disagree."""

    def lie(self, query, distribution):
        lied = super().lie(query, distribution)
        return PredictiveDistribution(
            tuple(replace(p, logprob=-1.5) for p in lied.predictions), counts=(2,), unreadable=3
        )


def by_chance(share, seed=0):
    """True for a fixed share of all queries, as a function of the query."""

    def lies(query):
        text = f"{seed} {query.situation.observation} {query.action}"
        return zlib.crc32(text.encode()) / 2**32 < share

    return lies


def data_of(world, episodes=60):
    policy = Random.Config().build()
    return NearestData(
        step for seed in range(episodes) for step in play(world, policy, seed=seed).transitions
    )


def certified_model_of(model, certificate=None, data=None):
    risk = certificate.risk if certificate else None
    return CertifiedModel(RiskEstimator(model, data or NearestData([]), risk), certificate)
