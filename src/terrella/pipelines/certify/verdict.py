"""Decide whether a model is certified, from the measured sections.

reasons = rejection_reasons(config, sections)   # empty: it is certified
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from terrella.pipelines.certify.records import CertifyConfig
from terrella.trust.risk import FIT_SHARE


def rejection_reasons(config: CertifyConfig, sections: Mapping[str, Any]) -> list[str]:
    """Why the model is not certified; empty when it is."""
    risk = sections["risk"]
    reasons = []
    if min(risk["calibration"], risk["held_out"]) < config.least:
        reasons.append(
            f"too thin: {risk['calibration']} calibration and {risk['held_out']} held-out steps, "
            f"fewer than {config.least}"
        )
    if risk["model"] is None:
        return [*reasons, f"no risk can be calibrated at a level of {config.level:g}"]
    if risk["coverage"]["high"] < config.level - _calibration_slack(config, risk["calibration"]):
        reasons.append(
            f"the risk does not hold: {risk['coverage']['mean']:.3f} covered, "
            f"{config.level:g} promised"
        )
    if risk["threshold"] is None:
        reasons.append(f"no steps can be shown to be wrong less often than {config.step_error:g}")
    if sections["safe_horizon"] == 0:
        reasons.append(f"wrong more often than {config.horizon_error:g} after a single step")
    if sections["coverage"]["actions_never_seen"]:
        unseen = ", ".join(sections["coverage"]["actions_never_seen"])
        reasons.append(f"actions never seen in the data: {unseen}")
    return reasons


def _calibration_slack(config: CertifyConfig, calibration: int) -> float:
    """Two standard errors: one calibration also misses its level by chance."""
    variance = config.level * (1 - config.level) / (calibration * (1 - FIT_SHARE))
    return 2 * math.sqrt(variance)
