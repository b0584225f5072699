"""`terrella certify MODEL`: measure a world model on held-out instances and write its certificate.

Calibration uses validation instances; test instances are only measured on. Every real step that
this takes is counted. The file states the data, the split and the policies that it holds for. If
there is too little data or the model is too poor, it says "not certified", and why.
    config = Certify.Config(world=FrozenLake.Config(size=3), folder=Path("runs/lake"))
    certificate = Certify(config).run(progress)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable, dump, load
from terrella.core.errors import ConfigError
from terrella.core.files import locked, subfolder
from terrella.core.protocols import Progress, WorldModel
from terrella.core.stats import CONFIDENCE
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.pipelines.certify.records import CertifyConfig, Evidence
from terrella.pipelines.certify.sections import Sections
from terrella.pipelines.certify.verdict import rejection_reasons
from terrella.pipelines.certify.watch import section_sizes
from terrella.policies.basic import Expert, Mixture, Random, require_policy
from terrella.show.certificate import remove_report, write_report
from terrella.show.certificate_plots import require_plots
from terrella.show.progress import SilentProgress, make_progress, show_metrics
from terrella.show.tables import interval_text
from terrella.trust.certificate import RULES, Certificate
from terrella.trust.nearness import NearestData
from terrella.trust.truth import TrueModel
from terrella.world_models.certified import CERTIFICATE, DATA, MODEL, certified_hashes
from terrella.world_models.language import load_world_model

LADDER = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)
"""Shares of random actions in the policies that are ranked, from the expert to random play."""

MET_IN_THE_DATA = 0.1
"""Share of held-out steps that the data have, from which on the certificate says it above all."""


class Certify(Configurable):
    """Measures a world model. Its folder is the model's own: a certificate lies beside it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(CertifyConfig):
        """See `CertifyConfig`."""

    config: Config

    def run(self, progress: Progress) -> Certificate:
        """Measure, decide, write. The folder is locked meanwhile: nobody may train in it."""
        if not self.config.folder.is_dir():
            raise ConfigError(
                str(self.config.folder),
                "there is no such folder",
                "name one that `terrella train-world-model` wrote",
            )
        for name in ("ranked_on", "exploited_on"):
            count = getattr(self.config, name)
            if count == 1:
                raise ConfigError(name, "one episode has no interval", f"set {name}=2 or more")
            if count < 0:
                raise ConfigError(
                    name, f"{count} is not a number of episodes", f"set {name}=0 to skip"
                )
        require_plots()  # not after an hour of measuring
        with locked(self.config.folder):
            subfolder(self.config.folder, self.report_folder.name)
            certificate = Certificate(self.measure(progress))
            remove_report(self.report_folder)  # a page never shows another verdict than the file
            certificate.save(self.config.folder / CERTIFICATE)
            write_report(certificate, self.report_folder)
        return certificate

    @property
    def report_folder(self) -> Path:
        return (self.config.folder / CERTIFICATE).parent

    def measure(
        self,
        progress: Progress | None = None,
        model: WorldModel | None = None,
        data: NearestData | None = None,
    ) -> dict[str, Any]:
        """All sections and the verdict; writes nothing.

        Model and data are those of the folder unless given.
        """
        world: World = self.config.world.build()
        config = self._with_defaults(world)
        model = model or load_world_model(
            config.folder / MODEL, samples=config.samples, engine=self.config.engine_settings
        )
        data = data or NearestData.of_episodes(EpisodeStore.open(config.folder / DATA).episodes())
        sections = Sections(config, Evidence(world, model, data))
        measured: dict[str, Any] = {
            "about": _about(config, data, sections.policy_names),
            **_measure_all(sections, progress or SilentProgress()),
        }
        caveats = (world.caveat, chance_caveat(world, data), met_caveat(measured["coverage"]))
        measured["about"]["caveat"] = "; ".join(filter(None, caveats))
        measured["safe_horizon"] = sections.safe_horizon(measured["horizon"])
        reasons = rejection_reasons(config, measured)
        return {
            **measured,
            "reasons": reasons,
            "certified": not reasons,
            "real_steps": dict(sections.real_steps),
        }

    def _with_defaults(self, world: World) -> Certify.Config:
        """The config with the policies that it leaves open."""
        config = self.config
        policy = config.policy or data_policy(config.folder / DATA)
        beside = config.beside
        if beside is None:
            mixed = config.policy is None and isinstance(policy, Mixture.Config)
            beside = (Random.Config(), Expert.Config()) if mixed and world.has_expert else ()
        ladder = tuple(Mixture.Config(share=share) for share in LADDER) if world.has_expert else ()
        return config.replace(
            policy=policy,
            beside=beside,
            policies=ladder if config.policies is None else config.policies,
        )


def _measure_all(sections: Sections, progress: Progress) -> dict[str, Any]:
    """All sections in order, by name."""
    methods = {
        "risk": sections.risk,
        "one_step": sections.one_step,
        "horizon": sections.horizon,
        "coverage": sections.coverage,
        "ranking": sections.ranking,
        "exploitability": sections.exploitability,
    }
    measured: dict[str, Any] = {}
    totals = section_sizes(sections.config)
    for number, (name, method) in enumerate(methods.items(), 1):
        title = f"certify, {number} of {len(methods)}: {name.replace('_', ' ')}"
        sections.watch.begin(progress, title, totals[name])
        measured[name] = method()
        sections.watch.end()
    return measured


def data_policy(store: Path) -> Configurable.Config:
    """The policy that took the steps of a store."""
    dumped = EpisodeStore.open(store).manifest.get("config", {}).get("policy")
    if dumped is None:
        raise ConfigError(
            "policy",
            f"{store} does not say which policy took its steps",
            "set `policy` in the config",
        )
    remedy = "name it: --policy random, expert, mixture or endpoint, with --set policy.FIELD=VALUE"
    try:
        policy: Configurable.Config = load(dumped)
        require_policy(policy)
    except ConfigError as error:
        raise ConfigError("policy", f"that of {store}: {error.what}", remedy) from error
    return policy


def _about(config: Certify.Config, data: NearestData, names: list[str]) -> dict[str, Any]:
    hashes = certified_hashes(config.folder)
    return {
        "rules": RULES,
        "world": dump(config.world),
        "weights_sha256": hashes["weights"],
        "data_sha256": hashes["data"],
        "data_pairs": data.unique_pairs,
        "calibrated_on": Split.VALIDATION.value,
        "held_out": Split.TEST.value,
        "policies": dict(zip(names, map(dump, config.under), strict=True)),
        "confidence": CONFIDENCE,
        "samples": config.samples,
        "level": config.level,
        "step_error": config.step_error,
        "horizon_error": config.horizon_error,
        "seed": config.seed,
    }


def chance_caveat(world: World, data: NearestData) -> str:
    """What a refusal may be due to, in a world that is random and cannot list its outcomes."""
    if TrueModel.supports(world) or not data.varied_pairs:
        return ""
    share = data.varied_pairs / data.repeated_pairs
    return (
        f"{share:.0%} of the {data.repeated_pairs:,} steps that repeat in the data had different "
        "results, and this world cannot list its outcomes: a prediction is compared with the one "
        "result that was seen, so chance, and what the view leaves out, count as error"
    )


def met_caveat(coverage: Mapping[str, Any]) -> str:
    """Held-out episodes are new, and what they pass through may not be: small worlds repeat."""
    share = coverage["seen"]["share"]
    if share < MET_IN_THE_DATA:
        return ""
    return (
        f"{share:.0%} of the held-out steps, observation and action, are in the data too, where "
        "other episodes pass: it holds for new episodes, and says less about new states"
    )


def run(config: Certify.Config) -> Certificate:
    """Certify with a display, write the report, show the verdict."""
    pipeline = Certify(config)
    with make_progress() as progress:
        certificate = pipeline.run(progress)
    page = pipeline.report_folder / "certificate.html"
    show_metrics(f"certificate of {config.folder}", [*summary(certificate), ("report", str(page))])
    return certificate


def summary(certificate: Certificate) -> list[tuple[str, str]]:
    """The verdict and the metrics behind it, as rows of a table."""
    sections = certificate.sections
    rows = [
        ("verdict", certificate.headline),
        *[("but", caveat) for caveat in [sections["about"].get("caveat")] if caveat],
        *_risk_rows(sections["risk"]),
    ]
    if sections["ranking"]:
        value = sections["ranking"]["spearman"]
        rows.append(("Spearman", f"{value['value']} [{value['low']}, {value['high']}]"))
    if sections["exploitability"]:
        gap = interval_text(sections["exploitability"]["gap"])
        rows.append(("imagined minus real return", gap))
    return [*rows, ("real steps spent", f"{sum(sections['real_steps'].values()):,}")]


def _risk_rows(risk: dict[str, Any]) -> list[tuple[str, str]]:
    covered = risk.get("coverage")
    if not covered:
        return []
    interval = f"[{covered['low']:.3f}, {covered['high']:.3f}]"
    trusted = f"{risk['trusted_share']:.3f}, of which wrong {interval_text(risk['trusted_wrong'])}"
    return [
        ("coverage, by episode", f"{covered['mean']:.3f} {interval}, n = {covered['n']}"),
        ("empty prediction sets", f"{risk['empty_sets']:.3f}"),
        ("steps that tested the threshold", ", ".join(map(str, risk["threshold_steps"].values()))),
        ("trusted steps", trusted),
    ]
