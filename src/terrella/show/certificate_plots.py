"""The plots of a certificate: one panel per section.

Colours are Okabe and Ito's, which people with colour blindness can tell apart; markers and line
styles differ as well.
    draw(Certificate.load(path).sections, Path("certificate.png"))
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import MissingExtraError
from terrella.trust.certificate import Certificate

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
HORIZON_STYLES = {
    "open": (BLUE, "o", "-", "open loop"),
    "from_reset": (PURPLE, "d", "-", "open loop from reset"),
    "closed": (GREEN, "s", "--", "closed loop"),
    "no_change": (GREY, "x", ":", "no change"),
    "nearest": (ORANGE, "^", "-.", "nearest neighbour"),
}
ONE_STEP_STYLES = {"model": (BLUE, ""), "no_change": (GREY, "//"), "nearest": (ORANGE, "..")}

TITLE_COLUMNS = 85

Panel = Callable[[Any, Mapping[str, Any]], None]


def draw(sections: Mapping[str, Any], path: Path) -> Path:
    """Save all sections as one picture; return its path."""
    with plain_labels():
        figure(sections).savefig(path, dpi=110)
    return path


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """Draw and save with labels as they are written: dollars in a run's name are no formula."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):
        yield


def require_plots() -> Any:
    """The `Figure` of matplotlib; the error names the extra that it needs."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plots", "the plots of a certificate") from error
    return Figure


def figure(sections: Mapping[str, Any]) -> Any:
    """Draw all sections as panels of one matplotlib figure."""
    drawing = require_plots()(figsize=(13, 7.8), layout="constrained")
    verdict = "\n".join(textwrap.wrap(Certificate(sections).headline, TITLE_COLUMNS))
    drawing.suptitle(verdict, fontsize=15, fontweight="bold")
    panels: tuple[Panel, ...] = (
        _draw_horizon,
        _draw_one_step,
        _draw_risk,
        _draw_ranking,
        _draw_exploitability,
        _draw_coverage,
    )
    for axes, panel in zip(drawing.subplots(2, 3).flat, panels, strict=True):
        panel(axes, sections)
        axes.spines[["top", "right"]].set_visible(False)
    return drawing


def _draw_horizon(axes: Any, sections: Mapping[str, Any]) -> None:
    for name, (colour, marker, line, label) in HORIZON_STYLES.items():
        points = [
            (row["depth"], row[name])
            for row in sections["horizon"]
            if name in row and row[name]["mean"] is not None
        ]
        depths = [depth for depth, _ in points]
        means = [accuracy["mean"] for _, accuracy in points]
        axes.plot(depths, means, color=colour, marker=marker, linestyle=line, label=label)
        with_interval = [point for point in points if point[1]["low"] is not None]
        axes.fill_between(
            [depth for depth, _ in with_interval],
            [accuracy["low"] for _, accuracy in with_interval],
            [accuracy["high"] for _, accuracy in with_interval],
            color=colour,
            alpha=0.15,
        )
    horizon = sections["safe_horizon"]
    axes.axhline(1 - sections["about"]["horizon_error"], color="black", linewidth=0.8)
    axes.axvline(horizon + 0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set(title=f"accuracy by horizon (safe: {horizon})", xlabel="depth", ylim=(0, 1.03))
    # Below the axes: inside, it covers a band.
    axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)


def _draw_one_step(axes: Any, sections: Mapping[str, Any]) -> None:
    kinds = ("changed", "unchanged")
    one_step = sections["one_step"]
    for column, (name, (colour, hatch)) in enumerate(ONE_STEP_STYLES.items()):
        bars = [(n + 0.27 * column, one_step[kind][name]["mean"]) for n, kind in enumerate(kinds)]
        drawn = [(position, mean) for position, mean in bars if mean is not None]
        axes.bar(
            [position for position, _ in drawn],
            [mean for _, mean in drawn],
            0.25,
            color=colour,
            hatch=hatch,
            label=name,
            edgecolor="white",
        )
        for position, mean in bars:
            if mean is None:
                _mark_no_value(axes, position)
    labels = [f"{kind} (n={one_step[kind]['model']['n']})" for kind in kinds]
    axes.set_xticks([0.27, 1.27], labels)
    axes.set(title="one held-out step", xlim=(-0.2, 1.74), ylim=(0, 1.25))
    axes.legend(fontsize=8, ncols=3, loc="upper center")


def _mark_no_value(axes: Any, position: float) -> None:
    """Say that nothing was measured: a bar of height 0 would claim an accuracy of 0."""
    axes.text(position, 0.02, "no value", rotation=90, ha="center", va="bottom", fontsize=7)


def _draw_risk(axes: Any, sections: Mapping[str, Any]) -> None:
    risk = sections["risk"]
    if not risk.get("coverage"):
        axes.set_title("risk: not calibrated")
        return
    shares = [point["share"] for point in risk["curve"]]
    errors = [point["wrong"] for point in risk["curve"]]
    axes.plot(shares, errors, color=BLUE, marker="o")
    axes.axvline(risk["trusted_share"], color="black", linestyle=":", linewidth=0.8)
    axes.axhline(sections["about"]["step_error"], color="black", linewidth=0.8)
    covered = risk["coverage"]["mean"]
    promised = sections["about"]["level"]
    axes.set(
        title=f"risk: prediction sets hold {covered:.3f} (asked: {promised:g})",
        xlabel="share of steps accepted, safest first",
        ylabel="wrong among them",
    )
    axes.set_ylim(bottom=0)


def _draw_ranking(axes: Any, sections: Mapping[str, Any]) -> None:
    ranking = sections["ranking"]
    if not ranking:
        axes.set_title("ranking: not measured")
        return
    policies = ranking["policies"]
    x = [policy["real"] for policy in policies]
    y = [policy["imagined"] for policy in policies]
    x_error = [policy["real"] - policy["real_interval"][0] for policy in policies]
    y_error = [policy["imagined"] - policy["imagined_interval"][0] for policy in policies]
    axes.errorbar(
        x,
        y,
        xerr=[x_error] * 2,
        yerr=[y_error] * 2,
        fmt="o",
        color=BLUE,
        ecolor=GREY,
        elinewidth=0.8,
    )
    ends = [min(x + y), max(x + y)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    spearman = ranking["spearman"]["value"]
    suffix = "" if spearman is None else f" (Spearman {spearman:.3f})"
    axes.set(title=f"ranking of policies{suffix}", xlabel="real return", ylabel="imagined return")


def _draw_exploitability(axes: Any, sections: Mapping[str, Any]) -> None:
    exploit = sections["exploitability"]
    if not exploit:
        axes.set_title("exploitability: not measured")
        return
    for position, (name, colour) in enumerate((("imagined", ORANGE), ("real", BLUE))):
        returns = exploit[name]
        half = 0.0 if returns["low"] is None else returns["mean"] - returns["low"]
        axes.bar(position, returns["mean"], 0.6, yerr=half, color=colour, capsize=4)
    axes.set_xticks([0, 1], ["imagined", "real"])
    axes.set(title=f"return of {exploit['agent']}: gap {exploit['gap']['mean']:+.3f}")


def _draw_coverage(axes: Any, sections: Mapping[str, Any]) -> None:
    distance = sections["coverage"]["distance"]
    quantiles = [float(quantile) for quantile in distance]
    axes.plot(quantiles, list(distance.values()), color=PURPLE, marker="D")
    seen = sections["coverage"]["seen"]["share"]
    axes.set(
        title=f"distance to the data ({seen:.0%} in it)",
        xlabel="quantile of held-out steps",
        ylabel="share that differs",
    )
    axes.set_ylim(bottom=0)
