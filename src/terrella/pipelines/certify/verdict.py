"""Decide whether a model is certified, from the measured sections.

reasons = rejection_reasons(config, sections)   # empty: it is certified
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from terrella.pipelines.certify.records import CertifyConfig
from terrella.trust.horizon import least_reached


def rejection_reasons(config: CertifyConfig, sections: Mapping[str, Any]) -> list[str]:
    """Why the model is not certified; empty when it is."""
    risk = sections["risk"]
    reasons = []
    if min(risk["calibration"], risk["held_out"]) < config.least:
        reasons.append(
            f"too thin: {risk['calibration']} calibration and {risk['held_out']} held-out "
            f"instances, fewer than {config.least}"
        )
    if risk["model"] is None:
        return [*reasons, f"no risk can be calibrated at a level of {config.level:g}"]
    reasons += [
        f"the risk does not hold under {name}: {row['coverage']['mean']:.3f} covered, "
        f"{config.level:g} promised"
        for name, row in risk["by_policy"].items()
        if row["coverage"]["high"] is not None and row["coverage"]["high"] < config.level
    ]
    reasons += [
        f"trusted steps of {name} are wrong {row['trusted_wrong']['mean']:.3f} of the time on test "
        f"instances, more often than {config.step_error:g}"
        for name, row in risk["by_policy"].items()
        if (row["trusted_wrong"]["low"] or 0.0) > config.step_error
    ]
    reasons += risk["no_threshold"]
    if sections["safe_horizon"] == 0:
        reasons.append(_no_horizon(config, sections["horizon"]))
    if sections["coverage"]["actions_never_seen"]:
        unseen = ", ".join(sections["coverage"]["actions_never_seen"])
        reasons.append(f"actions never seen in the data: {unseen}")
    return reasons


def _no_horizon(config: CertifyConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    least = least_reached(config.horizon_error)
    episodes = rows[0]["episodes"] if rows else 0
    if episodes < least:
        return (
            f"{episodes} episodes of a policy cannot show an error of {config.horizon_error:g}: "
            f"set horizon_episodes={least} or more"
        )
    return f"wrong more often than {config.horizon_error:g} after a single step"
