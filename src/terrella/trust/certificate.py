"""The certificate: what was measured about a world model, for which data, and how far it may be followed.

A JSON file that travels with the weights. `verdict` is what the gate and the imagined world ask at each step.
    certificate = Certificate.load(Path("runs/lake/certificate/certificate.json")); certificate.verdict(0.02, depth=3)
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError
from terrella.trust.risk import RiskModel


class Trust(enum.StrEnum):
    """Whether a step may be imagined."""

    TRUSTED = "trusted"
    TOO_RISKY = "too_risky"
    TOO_DEEP = "too_deep"
    NOT_CERTIFIED = "not_certified"


@dataclass(frozen=True)
class Certificate:
    """Sections by name, as they stand in the file; what the gate needs has names of its own."""

    sections: Mapping[str, Any]

    @property
    def certified(self) -> bool:
        """False when data was too thin or the model too poor; `reasons` says why."""
        return bool(self.sections["certified"])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not certified."""
        return tuple(self.sections["reasons"])

    @property
    def safe_horizon(self) -> int:
        """Steps that may be imagined in a row at the stated error."""
        return int(self.sections["safe_horizon"])

    @property
    def threshold(self) -> float:
        """Highest risk of a step that may be imagined; below 0 when there is none."""
        found = self.sections["risk"].get("threshold")
        return -1.0 if found is None else float(found)

    @property
    def risk(self) -> RiskModel | None:
        """The calibrated risk, or None when there was too little to calibrate it."""
        found = self.sections["risk"].get("model")
        return None if found is None else RiskModel(tuple(found["weights"]), found["quantile"], found["level"])

    def verdict(self, risk: float, *, depth: int) -> Trust:
        """Whether a step of this risk, at this depth of imagination (the first is 1), may be imagined."""
        if not self.certified:
            return Trust.NOT_CERTIFIED
        if depth > self.safe_horizon:
            return Trust.TOO_DEEP
        return Trust.TOO_RISKY if risk > self.threshold else Trust.TRUSTED

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        fresh = path.with_suffix(".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(self.sections, indent=1, allow_nan=False) + "\n", "utf-8")
        fresh.rename(path)

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read it back."""
        try:
            sections = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(str(path), f"is no certificate: {error}", "write one with `terrella certify`") from error
        missing = {"certified", "reasons", "safe_horizon", "risk"} - set(sections)
        if missing:
            raise ConfigError(str(path), f"is no certificate: lacks {', '.join(sorted(missing))}")
        return cls(sections)
