"""The certificate of a world model: what was measured, on which data, and how far to trust it.

It is a JSON file next to the weights. The gate and the imagined world call `verdict` at each step.
    certificate = Certificate.load(Path("runs/lake/certificate/certificate.json"))
    certificate.verdict(0.02, depth=3)
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError, StoreError
from terrella.core.untrusted import read_json
from terrella.trust.risk import RiskModel


class Trust(enum.StrEnum):
    """Whether a step may be imagined."""

    TRUSTED = "trusted"
    TOO_RISKY = "too_risky"
    TOO_DEEP = "too_deep"
    NOT_CERTIFIED = "not_certified"


@dataclass(frozen=True)
class Certificate:
    """The sections of the file by name, with properties for what the gate needs."""

    sections: Mapping[str, Any]

    @property
    def certified(self) -> bool:
        """False if there was too little data or the model was too poor; see `reasons`."""
        return bool(self.sections["certified"])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the model is not certified; empty if it is."""
        return tuple(self.sections["reasons"])

    @property
    def safe_horizon(self) -> int:
        """Number of consecutive steps that may be imagined at the stated error."""
        return int(self.sections["safe_horizon"])

    @property
    def threshold(self) -> float:
        """Highest risk at which a step may be imagined; below 0 if no step may be."""
        threshold = self.sections["risk"].get("threshold")
        return -1.0 if threshold is None else float(threshold)

    @property
    def risk(self) -> RiskModel | None:
        """The calibrated risk model, or None if there was too little data to calibrate one."""
        fields = self.sections["risk"].get("model")
        return (
            None
            if fields is None
            else RiskModel(tuple(fields["weights"]), fields["quantile"], fields["level"])
        )

    def verdict(self, risk: float, *, depth: int) -> Trust:
        """Whether a step may be imagined; the first imagined step has depth 1."""
        if not self.certified:
            return Trust.NOT_CERTIFIED
        if depth > self.safe_horizon:
            return Trust.TOO_DEEP
        return Trust.TOO_RISKY if risk > self.threshold else Trust.TRUSTED

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        fresh = path.with_suffix(".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(self.sections, indent=1, allow_nan=False) + "\n", "utf-8")
        fresh.rename(path)

    @classmethod
    def load(cls, path: Path) -> Certificate:
        try:
            sections = dict(read_json(path))
        except (StoreError, ValueError, TypeError) as error:
            raise ConfigError(
                str(path), f"is not a certificate: {error}", "write one with `terrella certify`"
            ) from error
        missing = {"certified", "reasons", "safe_horizon", "risk"} - set(sections)
        if missing:
            raise ConfigError(
                str(path), f"is not a certificate: it lacks {', '.join(sorted(missing))}"
            )
        return cls(sections)
