"""The page about a world model: its certificate as tables and plots in one HTML file.

The page has no links, so it can be sent around as it is. The plots are in
`certificate_plots.py`.
    page = write_report(Certificate.load(path), Path("runs/lake/certificate"))
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.show.certificate_plots import draw
from terrella.show.tables import interval_text
from terrella.trust.certificate import Certificate

STYLE = (
    "body{font:15px sans-serif;max-width:70em;margin:2em auto}"
    "td,th{padding:.15em .8em;text-align:left}table{margin:1em 0}img{max-width:100%}"
)

Rows = list[tuple[str, str]]


def remove_report(folder: Path) -> None:
    """Delete the page and the picture of an earlier certificate."""
    for name in ("certificate.png", "certificate.html"):
        (folder / name).unlink(missing_ok=True)


def write_report(certificate: Certificate, folder: Path) -> Path:
    """Write `certificate.png` and `certificate.html` into a folder; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(certificate.sections, folder / "certificate.png")
    encoded = base64.b64encode(picture.read_bytes()).decode()
    caveat = certificate.sections["about"].get("caveat")
    told = f"<p>{html.escape(caveat)}</p>" if caveat else ""
    body = "".join(_table(name, rows) for name, rows in metric_tables(certificate.sections))
    page = folder / "certificate.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>Certificate</title><style>{STYLE}</style>"
        f"<h1>{html.escape(certificate.headline)}</h1>{told}"
        f"<img alt='the sections as plots' src='data:image/png;base64,{encoded}'>{body}",
        "utf-8",
    )
    return page


def _table(name: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in rows)
    return f"<h2>{html.escape(name)}</h2><table>{cells}</table>"


def metric_tables(sections: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """Return two named tables: what the certificate holds for, and its metrics."""
    metrics = [
        *_horizon_and_risk_rows(sections),
        *_one_step_rows(sections),
        *_exploitability_rows(sections["exploitability"]),
        *_ranking_rows(sections["ranking"]),
    ]
    return [("Holds for", _scope_rows(sections)), ("Metrics", metrics)]


def _scope_rows(sections: Mapping[str, Any]) -> Rows:
    about = sections["about"]
    return [
        ("world", _world_text(about["world"])),
        ("weights", str(about["weights_sha256"])),
        ("steps like those of", ", ".join(about["policies"])),
        ("calibrated on / held out", f"{about['calibrated_on']} / {about['held_out']} instances"),
        ("different steps in the data", f"{about['data_pairs']:,}"),
        ("real steps spent on this certificate", f"{sum(sections['real_steps'].values()):,}"),
    ]


def _world_text(world: Mapping[str, Any]) -> str:
    """The class of a dumped config, and its settings."""
    settings = [f"{name}={value}" for name, value in world.items() if name != "class"]
    return ", ".join([str(world["class"]).rpartition(":")[2], *settings])


def _horizon_and_risk_rows(sections: Mapping[str, Any]) -> Rows:
    about = sections["about"]
    risk = sections["risk"]
    horizon = f"{sections['safe_horizon']} steps at an error of {about['horizon_error']:g}"
    rows = [("safe horizon", horizon), *_reached_rows(sections)]
    if risk.get("coverage"):
        covered = (
            "results inside their prediction set, at a random step of a random episode "
            f"(asked: {about['level']:g})"
        )
        wrong = f"{_interval(risk['trusted_wrong'])} (at most {about['step_error']:g})"
        rows += [
            (covered, _interval(risk["coverage"])),
            ("prediction sets that are empty", f"{risk['empty_sets']:.3f}"),
            *(
                (f"inside their set, steps of {name}", _interval(row["coverage"]))
                for name, row in risk["by_policy"].items()
            ),
            *(
                (f"steps of {name} that tested which may be imagined", f"{count:,}")
                for name, count in risk.get("threshold_steps", {}).items()
            ),
            ("share of all steps that may be imagined", f"{risk['trusted_share']:.3f}"),
            ("wrong among them, each step counted alike", wrong),
        ]
    return rows


def _reached_rows(sections: Mapping[str, Any]) -> Rows:
    """How many episodes stand behind each depth: an ended one keeps its last accuracy there."""
    rows = [row["reached"]["from_reset"] for row in sections["horizon"] if "reached" in row]
    return [
        (
            f"episodes of {name} that had a step at depth 1, 2, ...",
            ", ".join(str(counts[number]) for counts in rows),
        )
        for number, name in enumerate(sections["about"]["policies"])
        if rows
    ]


def _one_step_rows(sections: Mapping[str, Any]) -> Rows:
    rows = []
    for kind, accuracies in sections["one_step"].items():
        cells = (f"{name} {_interval(accuracy)}" for name, accuracy in accuracies.items())
        rows.append((f"one step, {kind}", "; ".join(cells)))
    seen = sections["coverage"]["seen"]
    share = f"{seen['share']:.3f} [{seen['low']:.3f}, {seen['high']:.3f}]"
    return [*rows, ("held-out steps that are in the data", share)]


def _exploitability_rows(exploit: Mapping[str, Any]) -> Rows:
    if not exploit:
        return []
    gap = _interval({**exploit["gap"], "n": exploit["n"]})
    return [(f"imagined minus real return of {exploit['agent']}", gap)]


def _ranking_rows(ranking: Mapping[str, Any]) -> Rows:
    if not ranking:
        return []
    rows = []
    for name in ("spearman", "kendall"):
        correlation = ranking[name]
        metric = {"mean": correlation["value"], **correlation, "n": ranking["instances"]}
        rows.append((f"{name} over {len(ranking['policies'])} policies", _interval(metric)))
    for pair in ranking["inversions"]:
        chance = "beyond chance" if pair["beyond_chance"] else "within chance"
        swap = f"{pair['better']} over {pair['worse']} by {pair['real_difference']:.3f}, {chance}"
        rows.append(("inversion", swap))
    return rows


def _interval(metric: Mapping[str, Any]) -> str:
    if metric["mean"] is None:
        return f"unknown (n = {metric['n']})"
    return f"{interval_text(metric)}, n = {metric['n']}"
