"""A reproduction's table for people: every arm beside random and optimal play, and each claim with its interval.

    assert show_table(Reproduce(config).run(print))   # True when all claims that could be judged hold
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from terrella.show.progress import show_figures


def show_table(table: Mapping[str, Any]) -> bool:
    """Show it; whether all claims that could be judged hold."""
    show_figures("arms (test instances; mean over seeds [95% of seeds])", [*_known(table["known"]), *_arms(table)])
    judged = [claim for claim in table["claims"] if claim["holds"] is not None]
    show_figures("claims (paired on the same instances)", [(_claim(claim), _verdict(claim)) for claim in judged])
    return all(claim["holds"] for claim in judged)


def _known(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not known:
        return []
    random = ", ".join(f"pass@{k} {value:.3f}" for k, value in known["random"].items() if k in ("1", "8"))
    return [("random (exact)", random), ("optimal (exact)", f"pass@1 {known['optimal']:.3f}")]


def _arms(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, arm in table["arms"].items():
        figures = [_figure(arm, key) for key in ("pass@1", "pass@8") if key in arm]
        rows.append((name, ", ".join([*figures, f"{len(arm['seeds'])} seeds"])))
    return rows


def _figure(arm: Mapping[str, Any], key: str) -> str:
    spread = arm[key]["interval"]
    return f"{key} {arm[key]['mean']:.3f}" + (f" [{spread[0]:.3f}, {spread[1]:.3f}]" if spread else "")


def _claim(claim: Mapping[str, Any]) -> str:
    return f"{claim['better']} {'not below' if claim['not_below'] else 'above'} {claim['worse']}, pass@{claim['k']}"


def _verdict(claim: Mapping[str, Any]) -> str:
    word = "reproduced" if claim["holds"] else "NOT REPRODUCED"
    interval = f"{claim['mean']:+.3f} [{claim['low']:+.3f}, {claim['high']:+.3f}]"
    return f"{word}: {interval}, {claim['seeds']} seeds, n = {claim['n']}"
