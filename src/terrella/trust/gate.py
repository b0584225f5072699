"""The gate: a step is imagined while risk and depth are inside the certificate, and real otherwise.

A share of the imagined steps is audited by a real one. When audits disagree more often than was certified, the gate
re-certifies itself from the audits it has paid for: it lowers the risk that it accepts, or closes. All is counted.
    gate = Gate(Gate.Config(audit_share=0.02), certificate); gate.verdict(risk, depth=1); gate.ledger.counts()
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from terrella.core.config import Configurable
from terrella.core.protocols import Verifier
from terrella.core.stats import wilson
from terrella.core.types import Frames, Observation
from terrella.trust.beliefs import Belief, held_of
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.risk import trusted_below

KEPT = 2000
"""Audits that are remembered: drift is about now."""


@dataclass
class Ledger:
    """What was paid, and what for."""

    real: int = 0
    """Real steps because the certificate did not allow to imagine them."""
    imagined: int = 0
    audited: int = 0
    """Imagined steps that were taken in the real world as well: each is one more real step."""
    disagreed: int = 0
    recertified: int = 0
    """How often the audits made the gate accept less."""
    refused: Counter[str] = field(default_factory=Counter)
    """Why steps were not imagined."""

    def counts(self) -> dict[str, int]:
        """All counters; `real_steps` is what the real world was asked for in all."""
        own = {name: getattr(self, name) for name in ("real", "imagined", "audited", "disagreed", "recertified")}
        return {**own, "real_steps": self.real + self.audited, **{f"refused_{k}": v for k, v in self.refused.items()}}


class Gate(Configurable):
    """Decides, audits, and learns from its audits. One gate serves any number of worlds at once."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How much to audit, and when to worry."""

        audit_share: float = 0.02
        least_audits: int = 30
        """Audits before a disagreement can close the gate."""

    config: Config

    def __init__(self, config: Config, certificate: Certificate | None) -> None:
        """Without a certificate nothing is imagined."""
        super().__init__(config)
        self.certificate, self.ledger = certificate, Ledger()
        self.threshold = certificate.threshold if certificate else -1.0
        self.audits: list[tuple[float, bool]] = []

    @property
    def allowed_error(self) -> float:
        """What the certificate says may be wrong among imagined steps."""
        return float(self.certificate.sections["about"]["step_error"]) if self.certificate else 0.0

    def verdict(self, risk: float, *, depth: int) -> Trust:
        """Whether this step may be imagined; a refusal is counted by its reason."""
        found = self.certificate.verdict(risk, depth=depth) if self.certificate else Trust.NOT_CERTIFIED
        if found is Trust.TRUSTED and risk > self.threshold:
            found = Trust.TOO_RISKY
        if found is not Trust.TRUSTED:
            self.ledger.refused[found.value] += 1
        return found

    def wants_audit(self, uniform: float) -> bool:
        """Whether this imagined step is one of those that are checked."""
        return uniform < self.config.audit_share

    def audit(self, risk: float, disagrees: bool) -> None:
        """Note what a real step said of an imagined one; too many disagreements lower what is accepted."""
        self.ledger.audited += 1
        self.ledger.disagreed += disagrees
        self.audits = [*self.audits[-KEPT + 1 :], (risk, disagrees)]
        bad = sum(wrong for _, wrong in self.audits)
        if len(self.audits) >= self.config.least_audits and wilson(bad, len(self.audits))[0] > self.allowed_error:
            self._recertify()

    def _recertify(self) -> None:
        """The highest risk at which the audits themselves show the certified error; none closes the gate."""
        risks, wrong = (np.array(column, float) for column in zip(*self.audits, strict=True))
        found = trusted_below(risks, wrong, error=self.allowed_error)
        self.threshold = -1.0 if found is None else min(self.threshold, found)
        self.ledger.recertified += 1
        self.audits = []

    def disagrees(self, belief: Belief, risk: float, seen: Belief, before: Observation, verifier: Verifier) -> bool:
        """Whether a real result is one that imagination would not have played; frames: outside the prediction set."""
        (result,) = seen.predictions
        held = held_of(belief, result, before, verifier)
        model = self.certificate.risk if self.certificate else None
        if isinstance(result.observation, Frames) and model is not None:
            return not model.inside(risk, held)
        return held == 0.0
