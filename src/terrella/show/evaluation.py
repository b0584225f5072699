"""Tables and plots of evaluations (`terrella evaluate`), for the terminal, reports and pages.

Everything is read from a manifest's metrics, so that a table on the terminal and a report about the
folder show the same numbers.
    for title, header, rows in evaluation_tables(run.metrics): ...
    pass_figure({"smollm2: sokoban": run.metrics["worlds"]["sokoban"]})
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from terrella.core.errors import MissingExtraError
from terrella.show.certificate_plots import BLUE, GREEN, GREY, ORANGE, PURPLE
from terrella.show.tables import interval_text

Row = tuple[str, ...]
EvaluationTable = tuple[str, Row, list[Row]]
"""Title, header and rows."""
STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GREY, "v"))
AGENT_METRICS = {
    "score": "mean verdict",
    "well_formed": "well-formed replies",
    "valid_actions": "valid actions",
    "effective_actions": "effective actions",
    "steps": "steps",
    "turns": "turns",
    "reply_tokens": "tokens a reply",
}
WRITTEN_METRICS = {
    "truncated": "replies cut off by the limit",
    "thought_tokens": "tokens a thought",
    "truncated_thoughts": "thoughts that did not end",
}
ACCURACIES = {"overall": "all steps", "changed": "changed", "unchanged": "unchanged"}


def is_agent(scores: Mapping[str, Any]) -> bool:
    """Whether the scores of a world are those of an agent, not of a world model."""
    return "passes" in scores


def evaluation_tables(metrics: Mapping[str, Any]) -> list[EvaluationTable]:
    """One table for each world, and one of the cost."""
    model = metrics["model"]["name"]
    tables = []
    for name, scores in metrics["worlds"].items():
        if is_agent(scores):
            header: Row = (name, model, "random", "optimal", "instances", "masked")
            tables.append((f"{model} on {name}", header, agent_rows(scores)))
        else:
            header = (name, model, "no change", "instances", "steps")
            tables.append((f"{model} as a model of {name}", header, prediction_rows(scores)))
    return [*tables, ("Cost", ("", "amount"), cost_rows(metrics["cost"]))]


def agent_rows(scores: Mapping[str, Any]) -> list[Row]:
    """pass@k beside random play, success beside optimal play, then how the replies were.

    Optimal play is the bound of pass@1 alone: several tries may win more often, even random ones.
    """
    reference = scores["reference"]
    rows: list[Row] = []
    for k, metric in scores["passes"].items():
        random = f"{reference['random'][k]:.3f}" if reference else "unknown"
        optimal = (f"{reference['optimal']:.3f}" if reference else "unknown") if k == "1" else ""
        name = "success (pass@1)" if k == "1" else f"pass@{k}"
        rows.append((name, interval_text(metric), random, optimal, *_counts(metric)))
    for key, name in AGENT_METRICS.items():
        rows.append((name, interval_text(scores[key]), "", "", *_counts(scores[key])))
    for name, metric in written_metrics(scores):
        rows.append((name, interval_text(metric), "", "", *_counts(metric)))
    for cause, count in scores["masked"].items():
        rows.append((f"masked: {cause}", f"{count} episodes", "", "", "", scores["masked_reason"]))
    return rows


def written_metrics(scores: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the limits on tokens cut off, and the thoughts; nothing where there was nothing."""
    written = scores.get("written", {})
    named = [(name, written.get(key)) for key, name in WRITTEN_METRICS.items()]
    named.append(("episodes out of tokens", scores.get("out_of_tokens")))
    return [(name, metric) for name, metric in named if metric and metric["mean"]]


def _counts(metric: Mapping[str, Any]) -> Row:
    return str(metric["n"]), str(metric["masked"])


def prediction_rows(scores: Mapping[str, Any]) -> list[Row]:
    """Accuracy beside predicting no change, then the accuracy by horizon."""
    rows: list[Row] = []
    named = [(f"accuracy, {name}", scores[key]) for key, name in ACCURACIES.items()]
    ahead = [(f"{k} ahead in imagination", row) for k, row in enumerate(scores["horizon"], start=1)]
    for name, accuracy in (*named, *ahead):
        if accuracy is None:
            rows.append((name, "no such step", "", "0", "0"))
            continue
        model, no_change = accuracy["model"], accuracy["no_change"]
        beside = interval_text(no_change) if no_change else "unknown"
        rows.append((name, interval_text(model), beside, str(model["n"]), str(accuracy["steps"])))
    rows.append(("invalid replies", interval_text(scores["invalid"]), "", "", ""))
    for name, metric in written_metrics(scores):
        rows.append((name, interval_text(metric), "", str(metric["n"]), ""))
    rows.append(("mean verdict", interval_text(scores["score"]), "", "", ""))
    if scores["masked"]:
        rows.append(("masked instances", str(scores["masked"]), scores["masked_reason"], "", ""))
    return rows


def cost_rows(cost: Mapping[str, Any]) -> list[Row]:
    """Tokens, and their price where one was given."""
    usage = cost["usage"]
    rows: list[Row] = [
        ("requests", f"{usage['requests']:,}"),
        ("prompt tokens", f"{usage['prompt_tokens']:,}"),
        ("written tokens", f"{usage['completion_tokens']:,}"),
    ]
    if usage["reasoning_tokens"]:
        rows.append(("of these in thoughts", f"{usage['reasoning_tokens']:,}"))
    if usage["unreported"]:
        rows.append(("replies without a count", f"{usage['unreported']:,}"))
    if cost["price"] is not None:
        rows.append(("price", f"{cost['price']:.4f}"))
    return rows


# --- plots ----------------------------------------------------------------------------------------


def pass_figure(scores: Mapping[str, Mapping[str, Any]]) -> Any:
    """pass@k by k, with intervals over instances, beside random play (dotted).

    A star is the success of optimal play.
    """
    drawing = _new_figure()
    axes = drawing.subplots()
    for (name, each), (colour, marker) in zip(scores.items(), _styles(len(scores)), strict=True):
        ks = [int(k) for k in each["passes"]]
        metrics = list(each["passes"].values())
        means = [metric["mean"] for metric in metrics]
        axes.plot(ks, means, color=colour, marker=marker, label=name)
        axes.fill_between(ks, *_bounds(metrics), color=colour, alpha=0.15)
        reference = each["reference"]
        if reference:
            random = [reference["random"][str(k)] for k in ks]
            axes.plot(ks, random, color=colour, linestyle=":", linewidth=1.2)
            axes.plot([1], [reference["optimal"]], color=colour, marker="*", markersize=11)
    axes.set_xscale("log", base=2)
    shown = sorted({int(k) for each in scores.values() for k in each["passes"]})
    axes.set_xticks(shown, [str(k) for k in shown])
    axes.set(xlabel="k", ylabel="pass@k", ylim=(-0.02, 1.05))
    return _finished(drawing, axes)


def horizon_figure(scores: Mapping[str, Mapping[str, Any]]) -> Any:
    """Accuracy by steps ahead in imagination, beside predicting no change (dotted)."""
    drawing = _new_figure()
    axes = drawing.subplots()
    for (name, each), (colour, marker) in zip(scores.items(), _styles(len(scores)), strict=True):
        measured = [pair for pair in enumerate(each["horizon"], start=1) if pair[1] is not None]
        depths = [depth for depth, _ in measured]
        rows = [row for _, row in measured]
        metrics = [row["model"] for row in rows]
        axes.plot(depths, [m["mean"] for m in metrics], color=colour, marker=marker, label=name)
        axes.fill_between(depths, *_bounds(metrics), color=colour, alpha=0.15)
        known = [(depth, row["no_change"]) for depth, row in zip(depths, rows, strict=True)]
        beside = [(depth, metric["mean"]) for depth, metric in known if metric]
        axes.plot(*zip(*beside, strict=True), color=colour, linestyle=":", linewidth=1.2)
    axes.set(xlabel="steps ahead in imagination", ylabel="accuracy", ylim=(-0.02, 1.05))
    return _finished(drawing, axes)


def _bounds(metrics: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Lower and upper bounds; a gap (NaN) where a metric has no interval."""
    low, high = (
        [math.nan if metric[end] is None else metric[end] for metric in metrics]
        for end in ("low", "high")
    )
    return low, high


def _styles(count: int) -> Sequence[tuple[str, str]]:
    return [STYLES[number % len(STYLES)] for number in range(count)]


def _new_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plots", "the pictures of a report") from error
    return Figure(figsize=(8, 4), layout="constrained")


def _finished(drawing: Any, axes: Any) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="best")
    return drawing
