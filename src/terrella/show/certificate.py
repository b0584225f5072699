"""One page about a world model: the certificate's sections as plots and a table, in one HTML file without links.

Colours are Okabe and Ito's, which people with colour-blindness can tell apart; marks and line styles differ as well.
    page = write_report(Certificate.load(path), Path("runs/lake/certificate"))
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.core.errors import MissingExtraError
from terrella.trust.certificate import Certificate

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
STYLES = {
    "open": (BLUE, "o", "-", "open loop"),
    "closed": (GREEN, "s", "--", "closed loop"),
    "no_change": (GREY, "x", ":", "no change"),
    "nearest": (ORANGE, "^", "-.", "nearest neighbour"),
}


def write_report(certificate: Certificate, folder: Path) -> Path:
    """`certificate.png` and `certificate.html` in this folder; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(certificate.sections, folder / "certificate.png")
    encoded = base64.b64encode(picture.read_bytes()).decode()
    verdict = "certified" if certificate.certified else "NOT CERTIFIED"
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in certificate.reasons)
    body = "".join(_table(name, rows) for name, rows in figure_tables(certificate.sections))
    page = folder / "certificate.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>Certificate</title><style>body{font:15px sans-serif;max-width:70em;"
        "margin:2em auto}td,th{padding:.15em .8em;text-align:left}table{margin:1em 0}img{max-width:100%}</style>"
        f"<h1>World model: {verdict}</h1><ul>{reasons}</ul>"
        f"<img alt='the sections as plots' src='data:image/png;base64,{encoded}'>{body}",
        "utf-8",
    )
    return page


def _table(name: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in rows)
    return f"<h2>{html.escape(name)}</h2><table>{cells}</table>"


def figure_tables(found: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What it holds for and its figures, as named rows."""
    about, risk = found["about"], found["risk"]
    holds = [
        ("world", str(about["world"])), ("weights", str(about["weights_sha256"])),
        ("steps like those of", str(about["steps_of"])),
        ("calibrated on / held out", f"{about['calibrated_on']} / {about['held_out']} instances"),
        ("different steps in the data", f"{about['data_pairs']:,}"),
        ("real steps spent on this page", f"{sum(found['real_steps'].values()):,}"),
    ]  # fmt: skip
    figures = [("safe horizon", f"{found['safe_horizon']} steps at an error of {about['horizon_error']:g}")]
    if risk.get("coverage"):
        figures.append(
            (f"results inside their prediction set ({about['level']:g} promised)", _interval(risk["coverage"]))
        )
        figures.append(("steps that may be imagined", f"{risk['trusted_share']:.3f}"))
        figures.append(("wrong among them", f"{_interval(risk['trusted_wrong'])} (at most {about['step_error']:g})"))
    for kind, row in found["one_step"].items():
        figures.append((f"one step, {kind}", "; ".join(f"{name} {_interval(value)}" for name, value in row.items())))
    seen = found["coverage"]["seen"]
    figures.append(
        ("held-out steps that are in the data", f"{seen['share']:.3f} [{seen['low']:.3f}, {seen['high']:.3f}]")
    )
    if found["exploitability"]:
        gap = found["exploitability"]
        figures.append((f"imagined minus real return of {gap['agent']}", _interval({**gap["gap"], "n": gap["n"]})))
    if found["ranking"]:
        figures += _ranking_rows(found["ranking"])
    return [("Holds for", holds), ("Figures", figures)]


def _ranking_rows(ranking: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(f"{name} over {len(ranking['policies'])} policies", _interval({"mean": ranking[name]["value"],
             **ranking[name], "n": ranking["instances"]})) for name in ("spearman", "kendall")]  # fmt: skip
    for pair in ranking["inversions"]:
        chance = "beyond chance" if pair["beyond_chance"] else "within chance"
        rows.append(("inversion", f"{pair['better']} over {pair['worse']} by {pair['real_difference']:.3f}, {chance}"))
    return rows


def _interval(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"unknown (n = {row['n']})"
    spread = "" if row.get("low") is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['mean']:.3f}{spread}, n = {row['n']}"


# --- plots --------------------------------------------------------------------------------------------------------


def draw(found: Mapping[str, Any], path: Path) -> Path:
    """All sections in one picture."""
    figure(found).savefig(path, dpi=110)
    return path


def figure(found: Mapping[str, Any]) -> Any:
    """All sections as panels of one matplotlib figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plots", "the plots of a certificate") from error
    drawing = Figure(figsize=(13, 7.5), layout="constrained")
    panels: tuple[Callable[[Any, Mapping[str, Any]], None], ...] = (
        _draw_horizon, _draw_one_step, _draw_risk, _draw_ranking, _draw_exploit, _draw_coverage,
    )  # fmt: skip
    for axes, panel in zip(drawing.subplots(2, 3).flat, panels, strict=True):
        panel(axes, found)
        axes.spines[["top", "right"]].set_visible(False)
    return drawing


def _draw_horizon(axes: Any, found: Mapping[str, Any]) -> None:
    rows = found["horizon"]
    for name, (colour, mark, line, label) in STYLES.items():
        some = [(row["depth"], row[name]) for row in rows if row[name]["mean"] is not None]
        depths, means = [d for d, _ in some], [r["mean"] for _, r in some]
        axes.plot(depths, means, color=colour, marker=mark, linestyle=line, label=label)
        known = [(d, r) for d, r in some if r["low"] is not None]
        axes.fill_between([d for d, _ in known], [r["low"] for _, r in known], [r["high"] for _, r in known],
                          color=colour, alpha=0.15)  # fmt: skip
    axes.axhline(1 - found["about"]["horizon_error"], color="black", linewidth=0.8)
    axes.axvline(found["safe_horizon"] + 0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set(title=f"accuracy by horizon (safe: {found['safe_horizon']})", xlabel="depth", ylim=(0, 1.03))
    axes.legend(fontsize=8)


def _draw_one_step(axes: Any, found: Mapping[str, Any]) -> None:
    kinds, names = ("changed", "unchanged"), ("model", "no_change", "nearest")
    for offset, (name, colour, hatch) in enumerate(zip(names, (BLUE, GREY, ORANGE), ("", "//", ".."), strict=True)):
        rows = [found["one_step"][kind][name] for kind in kinds]
        places = [place + 0.27 * offset for place in range(len(kinds))]
        axes.bar(places, [r["mean"] or 0 for r in rows], 0.25, color=colour, hatch=hatch, label=name, edgecolor="white")
    axes.set_xticks([0.27, 1.27], [f"{kind} (n={found['one_step'][kind]['model']['n']})" for kind in kinds])
    axes.set(title="one held-out step", ylim=(0, 1.25))
    axes.legend(fontsize=8, ncols=3, loc="upper center")


def _draw_risk(axes: Any, found: Mapping[str, Any]) -> None:
    risk = found["risk"]
    if not risk.get("coverage"):
        axes.set_title("risk: not calibrated")
        return
    axes.plot([r["share"] for r in risk["curve"]], [r["wrong"] for r in risk["curve"]], color=BLUE, marker="o")
    axes.axvline(risk["trusted_share"], color="black", linestyle=":", linewidth=0.8)
    axes.axhline(found["about"]["step_error"], color="black", linewidth=0.8)
    held = f"{risk['coverage']['mean']:.3f} covered, {found['about']['level']:g} promised"
    axes.set(title=f"risk ({held})", xlabel="share of steps accepted, safest first", ylabel="wrong among them")
    axes.set_ylim(bottom=0)


def _draw_ranking(axes: Any, found: Mapping[str, Any]) -> None:
    ranking = found["ranking"]
    if not ranking:
        axes.set_title("ranking: not measured")
        return
    rows = ranking["policies"]
    x, y = [r["real"] for r in rows], [r["imagined"] for r in rows]
    across = [[r["real"] - r["real_interval"][0] for r in rows]] * 2
    up = [[r["imagined"] - r["imagined_interval"][0] for r in rows]] * 2
    axes.errorbar(x, y, xerr=across, yerr=up, fmt="o", color=BLUE, ecolor=GREY, elinewidth=0.8)
    ends = [min(x + y), max(x + y)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    value = ranking["spearman"]["value"]
    axes.set(title="ranking of policies" + (f" (Spearman {value:.3f})" if value is not None else ""),
             xlabel="real return", ylabel="imagined return")  # fmt: skip


def _draw_exploit(axes: Any, found: Mapping[str, Any]) -> None:
    exploit = found["exploitability"]
    if not exploit:
        axes.set_title("exploitability: not measured")
        return
    for place, (name, colour) in enumerate((("imagined", ORANGE), ("real", BLUE))):
        row = exploit[name]
        half = 0.0 if row["low"] is None else row["mean"] - row["low"]
        axes.bar(place, row["mean"], 0.6, yerr=half, color=colour, capsize=4)
    axes.set_xticks([0, 1], ["imagined", "real"])
    axes.set(title=f"return of {exploit['agent']}: gap {exploit['gap']['mean']:+.3f}")


def _draw_coverage(axes: Any, found: Mapping[str, Any]) -> None:
    distance = found["coverage"]["distance"]
    axes.plot([float(q) for q in distance], list(distance.values()), color=PURPLE, marker="D")
    seen = found["coverage"]["seen"]["share"]
    axes.set(title=f"distance to the data ({seen:.0%} in it)", xlabel="quantile of held-out steps",
             ylabel="share that differs")  # fmt: skip
    axes.set_ylim(bottom=0)
