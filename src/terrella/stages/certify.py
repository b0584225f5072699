"""`terrella certify MODEL`: measure a world model on held-out instances and write its certificate.

Validation instances calibrate, test instances are only read. Every real step that this takes is counted. The file says
for which data and which split it holds; where data is too thin or the model too poor it says "not certified", and why.
    certificate = Certify(Certify.Config(world=FrozenLake.Config(size=3), folder=Path("runs/lake"))).run(progress)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable, dump, load
from terrella.core.errors import ConfigError
from terrella.core.protocols import Progress
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.policies.basic import Mixture
from terrella.show.certificate import write_report
from terrella.show.progress import SilentProgress, make_progress, show_figures
from terrella.stages.certify_sections import Evidence, Sections
from terrella.trust.beliefs import Believer
from terrella.trust.certificate import Certificate
from terrella.trust.nearness import NearestData
from terrella.use.imagine import CERTIFICATE
from terrella.use.world_models import load_world_model

LADDER = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
"""Shares of random actions in the policies that are ranked, from the expert down to chance."""


class Certify(Configurable):
    """The stage: `run` writes and returns the certificate."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What to measure, on how much, and what may be wrong."""

        world: World.Config
        folder: Path
        """What `train-world-model` wrote; the certificate goes into it."""
        policy: Configurable.Config | None = None
        """Whose steps are asked about: the certificate holds for steps like these. Unless given, whoever took those
        that the model was fitted to."""
        policies: tuple[Configurable.Config, ...] | None = None
        """Policies to rank; `()` skips the section. Unless given, a ladder from the expert, if there is one, down to
        chance."""
        samples: int = 8
        level: float = 0.9
        """Share of steps whose prediction set must hold what happens."""
        step_error: float = 0.03
        """What may be wrong among the steps that the gate imagines."""
        horizon_error: float = 0.15
        """What may be wrong after as many imagined steps as the safe horizon."""
        calibration: int = 1500
        held_out: int = 1500
        horizon_episodes: int = 150
        depth: int = 8
        ranked_on: int = 100
        exploited_on: int = 100
        plan_depth: int = 6
        least: int = 100
        """Fewest calibration and held-out steps with which anything is certified."""
        least_episodes: int = 10
        """Fewest episodes alive at a depth for that depth to count."""
        seed: int = 0

    config: Config

    def run(self, progress: Progress) -> Certificate:
        """Measure, decide, write."""
        certificate = Certificate(self.measure(progress))
        certificate.save(self.config.folder / CERTIFICATE)
        return certificate

    def measure(
        self, progress: Progress | None = None, model: Believer | None = None, data: NearestData | None = None
    ) -> dict[str, Any]:
        """All sections and the verdict; model and data are the folder's unless given. Nothing is written."""
        world: World = self.config.world.build()
        config = self._settled(world)
        model = model or load_world_model(config.folder / "model", samples=config.samples)
        data = data or NearestData(EpisodeStore.open(config.folder / "data").transitions())
        sections = Sections(config, Evidence(world, model, data))
        found: dict[str, Any] = {"about": _about(config, data)}
        steps = (sections.risk, sections.one_step, sections.horizon, sections.coverage, sections.ranking,
                 sections.exploitability)  # fmt: skip
        progress = progress or SilentProgress()
        for number, section in enumerate(steps, 1):
            progress.phase(f"certify, {number} of {len(steps)}: {section.__name__.replace('_', ' ')}", 1)
            progress.advance(0)  # said before it is done: a section can take minutes
            found[section.__name__] = section()
            progress.advance(1)
        found["safe_horizon"] = sections.safe_horizon(found["horizon"])
        found["reasons"] = sections.reasons(found)
        return {**found, "certified": not found["reasons"], "real_steps": dict(sections.real_steps)}

    def _settled(self, world: World) -> Certify.Config:
        """With what the config leaves open: whose steps are asked about, and who is ranked."""
        config = self.config
        ladder = tuple(Mixture.Config(share=share) for share in LADDER) if world.has_expert else ()
        return config.replace(
            policy=config.policy or whose_steps(config.folder / "data"),
            policies=ladder if config.policies is None else config.policies,
        )


def whose_steps(store: Path) -> Configurable.Config:
    """The policy that took the steps of a store."""
    policy = EpisodeStore.open(store).manifest.get("config", {}).get("policy")
    if policy is None:
        raise ConfigError("policy", f"{store} does not say who took its steps", "give the config a policy")
    found = load(policy)
    assert isinstance(found, Configurable.Config)
    return found


def _about(config: Certify.Config, data: NearestData) -> dict[str, Any]:
    weights = config.folder / "model/model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else None
    assert config.policy is not None
    return {
        "world": dump(config.world), "weights_sha256": digest, "data_pairs": data.different,
        "calibrated_on": Split.VALIDATION.value, "held_out": Split.TEST.value, "steps_of": dump(config.policy),
        "samples": config.samples, "level": config.level, "step_error": config.step_error,
        "horizon_error": config.horizon_error, "seed": config.seed,
    }  # fmt: skip


def run(config: Certify.Config) -> Certificate:
    """Certify with a display, write the report, show the verdict."""
    with make_progress() as progress:
        certificate = Certify(config).run(progress)
    page = write_report(certificate, config.folder / "certificate")
    show_figures(f"certificate of {config.folder}", [*summary(certificate), ("report", str(page))])
    return certificate


def summary(certificate: Certificate) -> list[tuple[str, str]]:
    """The verdict and the figures behind it, as rows."""
    found, risk = certificate.sections, certificate.sections["risk"]
    rows = [("certified", "yes" if certificate.certified else "no: " + "; ".join(certificate.reasons))]
    rows.append(("safe horizon", f"{certificate.safe_horizon} steps"))
    if risk.get("coverage"):
        held = risk["coverage"]
        rows.append(
            ("conformal coverage", f"{held['mean']:.3f} [{held['low']:.3f}, {held['high']:.3f}], n = {held['n']}")
        )
        rows.append(("trusted steps", f"{risk['trusted_share']:.3f}, of which wrong {risk['trusted_wrong']['mean']}"))
    if found["ranking"]:
        value = found["ranking"]["spearman"]
        rows.append(("Spearman", f"{value['value']} [{value['low']}, {value['high']}]"))
    if found["exploitability"]:
        gap = found["exploitability"]["gap"]
        rows.append(("imagined minus real return", f"{gap['mean']:.3f} [{gap['low']:.3f}, {gap['high']:.3f}]"))
    return [*rows, ("real steps spent", f"{sum(found['real_steps'].values()):,}")]
