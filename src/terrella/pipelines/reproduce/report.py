"""Show a reproduction's table: the arms beside random and optimal play, and each tested claim.

show_table(Reproduce(config).run(print)) == {"holds"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from terrella.show.progress import show_metrics


def show_table(table: Mapping[str, Any]) -> set[str]:
    """Show the table; return the verdicts of the claims that could be tested."""
    show_metrics(
        "arms (test instances; mean over seeds [95% of seeds])",
        [*_reference_rows(table["reference_scores"]), *_arm_rows(table)],
    )
    tested = [claim for claim in table["claims"] if claim["seeds"]]
    show_metrics(
        f"claims ({table['test']})",
        [(_claim_text(claim), _outcome_text(claim)) for claim in tested],
    )
    return {str(claim["verdict"]) for claim in tested}


def _reference_rows(scores: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not scores:
        return []
    passes = [f"pass@{k} {value:.3f}" for k, value in scores["random"].items() if k in ("1", "8")]
    return [
        ("random (exact)", ", ".join(passes)),
        ("optimal (exact)", f"pass@1 {scores['optimal']:.3f}"),
    ]


def _arm_rows(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, arm in table["arms"].items():
        metrics = [_score_text(arm, key) for key in ("pass@1", "pass@8") if key in arm]
        masked = sum(arm.get("masked", ()))
        left_out = [f"{masked:,} masked episodes left out"] if masked else []
        rows.append((name, ", ".join([*metrics, f"{len(arm['seeds'])} seeds", *left_out])))
    return rows


def _score_text(arm: Mapping[str, Any], key: str) -> str:
    text = f"{key} {arm[key]['mean']:.3f}"
    interval = arm[key]["interval"]
    return text + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _claim_text(claim: Mapping[str, Any]) -> str:
    relation = f"not {-claim['threshold']:g} below" if claim["not_below"] else "above"
    return f"{claim['better']} {relation} {claim['worse']}, pass@{claim['k']}"


def _outcome_text(claim: Mapping[str, Any]) -> str:
    spread = ""
    if claim["low"] is not None:
        spread = f" [{claim['low']:+.3f}, {claim['high']:+.3f}]"
    tested = f"p = {claim['p']:.3g}, {claim['seeds']} seeds, n = {claim['n']}"
    return f"{claim['verdict']}: {claim['mean']:+.3f}{spread}, {tested}"
