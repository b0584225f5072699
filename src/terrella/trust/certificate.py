"""The certificate of a world model: what was measured, on which data, and how far to trust it.

It is a JSON file next to the weights. The gate and the imagined world call `verdict` at each step.
    certificate = Certificate.load(Path("runs/lake/certificate/certificate.json"))
    certificate.verdict(0.02, depth=3)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import leaves
from terrella.core.errors import ConfigError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.trust.risk import RiskModel

RULES = 2
"""Version of the rules of certifying: a certificate of other rules may promise too much.

2: a horizon needs episodes that last as long, and calibration instances are shuffled.
"""
NOT_COMPARED = ("split",)
"""Settings of a world in which use may differ.

Shorter episodes are no part of longer ones: their steps are the first ones, whose errors may be
above the mean, and a policy that knows how many steps are left acts differently.
"""


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
    void: tuple[str, ...] = ()
    """Why it does not hold for the model, the data and the world here; empty if it does."""

    @property
    def certified(self) -> bool:
        """False if it is void, if there was too little data or the model was too poor."""
        return bool(self.sections["certified"]) and not self.void

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the model is not certified; empty if it is."""
        return (*self.void, *self.sections["reasons"])

    @property
    def headline(self) -> str:
        """The verdict in one sentence: for how many steps, under which policies, at which error."""
        if not self.certified:
            return f"NOT CERTIFIED: {'; '.join(self.reasons)}"
        about = self.sections["about"]
        each = " for each" if len(about["policies"]) > 1 else ""
        return (
            f"CERTIFIED for {self.safe_horizon} steps under {', '.join(about['policies'])} at an "
            f"error of {about['horizon_error']:g} ({about['confidence']:.0%} confidence{each})"
        )

    def held_to(
        self,
        *,
        weights: str | None,
        data: str | None,
        samples: int | None = None,
        world: Mapping[str, Any] | None = None,
    ) -> Certificate:
        """The same certificate, void unless it was made for this model, this data and this world.

        It must also be of today's rules. The first two are hashes: of the model's folder, and of
        the store that it was fitted to. If the model is going to predict, `samples` are those per
        query: fewer make a narrower distribution than the one that was measured. `world` is the
        dumped config of the world that is going to be imagined: a prediction that is right in one
        world is wrong in another.
        """
        about = self.sections.get("about", {})
        loaded = {"weights": weights, "data": data}
        void = tuple(
            f"the certificate is of other {name} ({_short(about.get(f'{name}_sha256'))}) than "
            f"those here ({_short(sha256)}): certify again"
            for name, sha256 in loaded.items()
            if sha256 is None or about.get(f"{name}_sha256") != sha256
        )
        rules = about.get("rules", 1)
        if rules != RULES:
            void += (f"it was made by rules {rules}, and those here are {RULES}: certify again",)
        measured = about.get("samples")
        if samples is not None and samples != measured:
            void += (
                f"it was measured with {measured} samples per query, and predicts here with "
                f"{samples}: set samples={measured}, or certify again",
            )
        if world is not None:
            void += _other_world(about.get("world"), world)
        return Certificate(self.sections, void)

    @property
    def safe_horizon(self) -> int:
        """Number of consecutive steps that may be imagined at the stated error."""
        return int(self.sections["safe_horizon"])

    @property
    def threshold(self) -> float:
        """Highest risk at which a step may be imagined; below 0 if no step may be."""
        threshold = None if self.void else self.sections["risk"].get("threshold")
        return -1.0 if threshold is None else float(threshold)

    @property
    def risk(self) -> RiskModel | None:
        """The calibrated risk model; None if it is void, or if there was too little data."""
        fields = None if self.void else self.sections["risk"].get("model")
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
        return Trust.TRUSTED if risk <= self.threshold else Trust.TOO_RISKY  # NaN is too risky

    def save(self, path: Path) -> None:
        """Write the file atomically, with the hash of its content."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, self.sections)

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read a certificate; a damaged one is refused by name."""
        sections = read_sealed(path, "write one with `terrella certify`")
        missing = {"certified", "reasons", "safe_horizon", "risk"} - set(sections)
        if missing:
            raise ConfigError(
                str(path), f"is not a certificate: it lacks {', '.join(sorted(missing))}"
            )
        return cls(sections)


def _other_world(measured: Any, world: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a certificate of the `measured` world does not hold in this one; empty if it does."""
    if not isinstance(measured, Mapping):
        return ("the certificate does not say which world it was measured in: certify again",)
    there, here = leaves(measured), leaves(world)
    names = [
        name
        for name in dict.fromkeys((*there, *here))
        if name not in NOT_COMPARED and there.get(name, "unset") != here.get(name, "unset")
    ]
    if not names:
        return ()
    differing = ", ".join(
        f"{name} ({there.get(name, 'unset')} there, {here.get(name, 'unset')} here)"
        for name in names
    )
    return (
        f"it was measured in a world with other settings: {differing}: set them as there, or "
        "certify for this world",
    )


def _short(sha256: str | None) -> str:
    return sha256[:12] if isinstance(sha256, str) else "unknown"
