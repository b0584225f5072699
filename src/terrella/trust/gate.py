"""The gate decides for each step whether it is imagined or taken in the real world.

A step is imagined while its risk and depth are within the certificate. A share of the imagined
steps is audited with a real step, by the measure that was certified: the share of the truth that
the prediction misses. If audits find more error than the certificate allows, the gate recertifies
itself from them: it lowers the risk that it accepts, or closes. The ledger counts all steps.
    gate = Gate(Gate.Config(audit_share=0.02), certificate)
    gate.verdict(risk, depth=1); gate.ledger.counts()
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from terrella.core.config import Configurable
from terrella.core.predictive import PredictiveDistribution
from terrella.core.protocols import Verifier
from terrella.core.stats import CONFIDENCE, mean_p_value
from terrella.core.types import Observation
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.predictive import overlap
from terrella.trust.risk import trusted_below

MAX_AUDITS = 2000
"""Most recent audits that count: the gate looks for drift, and old audits would hide it."""


@dataclass
class Ledger:
    """Counts of real and imagined steps."""

    real: int = 0
    """Real steps that were taken because the certificate did not allow imagining them."""
    imagined: int = 0
    audited: int = 0
    """Imagined steps that were also taken in the real world: each costs one real step."""
    disagreed: int = 0
    """Audits that found more wrong than right."""
    recertified: int = 0
    """How often the gate has recertified itself."""
    refused: Counter[str] = field(default_factory=Counter)
    """Steps that were not imagined, by reason."""

    def counts(self) -> dict[str, int]:
        """All counters; `real_steps` is the total number of steps in the real world."""
        own = {
            name: getattr(self, name)
            for name in ("real", "imagined", "audited", "disagreed", "recertified")
        }
        return {
            **own,
            "real_steps": self.real + self.audited,
            **{f"refused_{k}": v for k, v in self.refused.items()},
        }


class Gate(Configurable):
    """Decides, audits, and adapts to its audits. Any number of worlds may share one gate."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        audit_share: float = 0.02
        least_audits: int = 30
        """Audits that are needed before the gate may recertify itself."""

    config: Config

    def __init__(self, config: Config, certificate: Certificate | None) -> None:
        """Without a certificate, no step is imagined."""
        super().__init__(config)
        self.certificate, self.ledger = certificate, Ledger()
        self.threshold = certificate.threshold if certificate else -1.0
        self.audits: list[tuple[float, float]] = []

    @property
    def allowed_error(self) -> float:
        """Share of imagined steps that may be wrong, according to the certificate."""
        return float(self.certificate.sections["about"]["step_error"]) if self.certificate else 0.0

    def verdict(self, risk: float, *, depth: int) -> Trust:
        """Whether this step may be imagined; refusals are counted by reason."""
        trust = (
            self.certificate.verdict(risk, depth=depth) if self.certificate else Trust.NOT_CERTIFIED
        )
        if trust is Trust.TRUSTED and not risk <= self.threshold:  # NaN is too risky
            trust = Trust.TOO_RISKY
        if trust is not Trust.TRUSTED:
            self.ledger.refused[trust.value] += 1
        return trust

    def wants_audit(self, uniform: float) -> bool:
        """Whether to audit this imagined step, given a uniform random number."""
        return uniform < self.config.audit_share

    def audit(self, risk: float, wrong: float) -> None:
        """Record how wrong an imagined step was (`audit_error`).

        Too much error makes the gate recertify itself.
        """
        self.ledger.audited += 1
        self.ledger.disagreed += wrong > 0.5
        self.audits = [*self.audits[-MAX_AUDITS + 1 :], (risk, wrong)]
        n = len(self.audits)
        if n < self.config.least_audits:
            return
        right = n - sum(error for _, error in self.audits)
        if mean_p_value(right, n, 1.0 - self.allowed_error) <= 1.0 - CONFIDENCE:
            self._recertify()

    def _recertify(self) -> None:
        """Lower the threshold to the highest risk at which the audits meet the certified error.

        If there is no such risk, the gate closes.
        """
        risks, wrong = (np.array(column, float) for column in zip(*self.audits, strict=True))
        threshold = trusted_below(risks, wrong, error=self.allowed_error)
        self.threshold = -1.0 if threshold is None else min(self.threshold, threshold)
        self.ledger.recertified += 1
        self.audits = []


def audit_error(
    distribution: PredictiveDistribution,
    truth: PredictiveDistribution,
    before: Observation,
    verifier: Verifier,
) -> float:
    """Share of the truth that an imagined step misses: what `step_error` bounds.

    The truth is what the certificate measured with: the exact distribution where the world gives
    it, else the one real result.
    """
    return 1.0 - overlap(distribution, truth, before, verifier)
