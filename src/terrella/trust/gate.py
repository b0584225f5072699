"""The gate decides for each step whether it is imagined or taken in the real world.

A step is imagined while its risk and depth are within the certificate. A share of the imagined
steps is audited with a real step, by the measure that was certified: the share of the truth that
the prediction misses. If audits find more error than the certificate allows, the gate recertifies
itself from them: it lowers the risk that it accepts, or closes. The ledger counts all steps. A gate
of a run keeps its state in the run's folder, so a gate that has closed stays closed when the run is
resumed.
    gate = Gate(Gate.Config(audit_share=0.02), certificate)
    gate.verdict(risk, depth=1); gate.ledger.counts()
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from terrella.core.bounds import check_least, check_share
from terrella.core.config import Configurable, Local, record_from_json
from terrella.core.errors import StoreError
from terrella.core.integrity import RESTORE, content_sha256, read_sealed, write_sealed
from terrella.core.predictive import PredictiveDistribution
from terrella.core.protocols import Verifier
from terrella.core.stats import CONFIDENCE, mean_p_value
from terrella.core.types import Observation
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.predictive import overlap
from terrella.trust.risk import trusted_below

MAX_AUDITS = 2000
"""Most recent audits that count: the gate looks for drift, and old audits would hide it."""
SAVE_SECONDS = 1.0
"""Least time between two saves of a gate that did not recertify itself."""

Audit = tuple[float, float]
"""The risk of an audited step, and how wrong it was."""


@dataclass
class Ledger:
    """Counts of real and imagined steps."""

    real: int = 0
    """Real steps that were taken because the certificate did not allow imagining them."""
    imagined: int = 0
    audited: int = 0
    """Imagined steps that were also taken in the real world: each costs one real step."""
    replayed: int = 0
    """Real steps that bring a copy of the world to its state, for an audit or a fork."""
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
            for name in ("real", "imagined", "audited", "replayed", "disagreed", "recertified")
        }
        return {
            **own,
            "real_steps": self.real + self.audited + self.replayed,
            **{f"refused_{k}": v for k, v in self.refused.items()},
        }


@dataclass(frozen=True, kw_only=True)
class GateState:
    """What one session of a gate leaves to the next."""

    certificate: str
    """Hash of the certificate that the gate follows."""
    threshold: float
    audits: list[Audit]
    """Audits of this session, since the gate last recertified itself."""
    ledger: dict[str, int]


class Gate(Configurable):
    """Decides, audits, and adapts to its audits. Any number of worlds may share one gate."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        audit_share: float = 0.02
        """Share of the imagined steps that are also taken in the real world."""
        least_audits: int = 30
        """Audits that are needed before the gate may recertify itself."""
        folder: Local[Path] = Path()
        """Where the gate keeps its state; without a folder it is lost with the process."""

        def __post_init__(self) -> None:
            """Refuse a share of audits that is none."""
            check_share(self, "audit_share")
            check_least(self, least_audits=1)

    config: Config

    def __init__(self, config: Config, certificate: Certificate | None) -> None:
        """Without a certificate, no step is imagined."""
        super().__init__(config)
        self.certificate, self.ledger = certificate, Ledger()
        self.threshold = certificate.threshold if certificate else -1.0
        self.audits: list[Audit] = []
        self.earlier_audits: list[Audit] = []
        """Audits of earlier sessions."""
        self._name, self._saved = uuid.uuid4().hex, 0.0
        if self.keeps_state:
            self._resume()
            _kept_gates.append(self)

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
        # Earlier audits come from a file: they may add to the evidence, but not outweigh it.
        for audits in (self.audits, [*self.earlier_audits, *self.audits][-MAX_AUDITS:]):
            if self._breaks_promise(audits):
                self._recertify(audits)
                return

    def _breaks_promise(self, audits: Sequence[Audit]) -> bool:
        """Whether these audits show more error than was certified."""
        n = len(audits)
        if n < self.config.least_audits:
            return False
        right = n - sum(error for _, error in audits)
        return mean_p_value(right, n, 1.0 - self.allowed_error) <= 1.0 - CONFIDENCE

    def _recertify(self, audits: Sequence[Audit]) -> None:
        """Lower the threshold to the highest risk at which the audits meet the certified error.

        If there is no such risk, the gate closes.
        """
        risks, wrong = (np.array(column, float) for column in zip(*audits, strict=True))
        threshold = trusted_below(risks, wrong, error=self.allowed_error)
        self.threshold = -1.0 if threshold is None else min(self.threshold, threshold)
        self.ledger.recertified += 1
        self.audits, self.earlier_audits = [], []
        self.save()

    # --- state of a run ---------------------------------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return self.config.folder != Path()

    def save(self) -> None:
        """Write the state of this session; each has a file of its own."""
        if not self.keeps_state:
            return
        self.config.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "certificate": self._certificate_sha256,
            "threshold": self.threshold,
            "audits": self.audits,
            "ledger": self.ledger.counts(),
        }
        write_sealed(self.config.folder / f"{self._name}.json", content)
        self._saved = time.monotonic()

    def save_sometimes(self) -> None:
        """Write the state unless that was done a moment ago: worlds call it at every reset."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    @cached_property
    def _certificate_sha256(self) -> str:
        return content_sha256(self.certificate.sections) if self.certificate else ""

    def _resume(self) -> None:
        """Continue after the sessions that saved their state for the same certificate.

        The folder may come from anywhere: a state can close this gate further, and never open it.
        """
        states = [
            state
            for state in read_states(self.config.folder)
            if state.certificate == self._certificate_sha256
        ]
        self.threshold = min([self.threshold, *(state.threshold for state in states)])
        self.earlier_audits = [
            (risk, min(1.0, max(0.0, wrong)))
            for state in states
            for risk, wrong in state.audits
            if risk <= self.threshold
        ]


_kept_gates: list[Gate] = []
"""Gates of this process that keep their state in a folder."""


def read_states(folder: Path) -> list[GateState]:
    """What sessions of a gate have saved, the oldest first; numbers that are none are refused."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    states = [record_from_json(GateState, read_sealed(path)) for path in paths]
    for path, state in zip(paths, states, strict=True):
        numbers = (state.threshold, *(number for audit in state.audits for number in audit))
        if not all(map(math.isfinite, numbers)) or min(state.ledger.values(), default=0) < 0:
            raise StoreError(str(path), "holds numbers that no gate writes", RESTORE)
    return states


def kept_counts(folder: Path) -> dict[str, int]:
    """The ledgers of all sessions that kept their state in a folder, summed.

    Other processes save about once a second: of theirs the last steps may be missing.
    """
    for gate in _kept_gates:
        if gate.config.folder == folder:
            gate.save()
    total: Counter[str] = Counter()
    for state in read_states(folder):
        total.update(state.ledger)
    return dict(total)


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
