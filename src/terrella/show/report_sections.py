"""The sections of a report: headings, notes, tables and plots.

Curves with intervals over seeds, metrics beside the baselines that need no model, certificates,
reproductions with their claims, cost, and the keys in which configs differ.
    for section in sections(load_report_data(paths)): section.title, section.rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from terrella.core.errors import MissingExtraError
from terrella.core.metric import Metric
from terrella.core.stats import student_t95, wilson
from terrella.core.untrusted import reading
from terrella.show import certificate_plots
from terrella.show.certificate import metric_tables
from terrella.show.certificate_plots import BLUE, GREEN, GREY, ORANGE, PURPLE
from terrella.show.evaluation import (
    evaluation_tables,
    horizon_figure,
    is_agent,
    pass_figure,
)
from terrella.show.report_data import ReportData, SeedGroup, config_differences
from terrella.show.tables import interval_text
from terrella.trust.certificate import Certificate

BASELINE_STYLES = ((ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (GREY, "-"))

ONE_BY_ONE = "a run holds strange values: report on each alone to find out which"

Row = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A heading with notes, a table and a picture, each of which may be missing."""

    title: str
    notes: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    picture: Any = field(default=None, compare=False)
    """A matplotlib figure."""


def sections(data: ReportData) -> list[Section]:
    """Return the sections in reading order, without empty ones."""
    with reading("report", ONE_BY_ONE):
        return _sections(data)


def _sections(data: ReportData) -> list[Section]:
    built = [_training(data.groups)]
    built += [_curves(group) for group in data.groups if group.runs[0].curve]
    for name, table in data.tables.items():
        built += [_arms(name, table), _claims(name, table)]
    built += _evaluations(data.evaluations)
    built.append(_comparisons(data.comparisons))
    built += [_certificate(name, certificate) for name, certificate in data.certificates.items()]
    for name, metrics in data.metrics.items():
        rows = tuple((key, _number(value)) for key, value in metrics.items())
        built.append(Section(f"Measured: {name}", (), ("", ""), rows))
    built += [_stores(data.stores), _cost(data.costs), _configs(data.configs)]
    return [section for section in built if section.rows or section.picture is not None]


# --- tables ---------------------------------------------------------------------------------------


def _number(value: float) -> str:
    """Counts in full, other values with four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _training(groups: Sequence[SeedGroup]) -> Section:
    rows: list[Row] = []
    for group in groups:
        for part, metric in (("after", group.after), ("before", group.before)):
            by_seed = ", ".join(f"{getattr(run, part)['mean']:.3f}" for run in group.runs)
            rows.append((group.name, f"{part} training", _mean(metric), by_seed, str(metric.n)))
        for name, metric in group.baselines().items():
            rows.append((group.name, f"baseline: {name}", _mean(metric), "", str(metric.n)))
    note = (
        "Held-out tasks; mean over seeds with Student's 95% interval. "
        "Each seed's own mean stands beside it."
    )
    header = ("run", "", "reward", "by seed", "seeds")
    return Section("Trained with verdicts", (note,), header, tuple(rows))


def _mean(metric: Metric) -> str:
    return f"{metric.mean:.3f}{metric.interval}"


def _arms(name: str, table: Mapping[str, Any]) -> Section:
    """The arms of a reproduction below random and optimal play."""
    arms = table["arms"]
    metrics = [key for key in next(iter(arms.values()), {}) if key.startswith("pass@")]
    rows = _reference_rows(table.get("reference_scores") or {}, metrics)
    for arm, results in arms.items():
        scores = [_arm_score(results[key]) for key in metrics]
        env_steps = f"{sum(results.get('env_steps', [])):,}"
        rows.append((arm, *scores, str(len(results["seeds"])), env_steps))
    paper = tuple(f"Published, {key}: {value}" for key, value in table.get("paper", {}).items())
    header = ("arm", *metrics, "seeds", "env steps")
    return Section(f"Reproduction {name}: arms", paper, header, tuple(rows))


def _reference_rows(scores: Mapping[str, Any], metrics: Sequence[str]) -> list[Row]:
    """Exact scores of random and optimal play, if the table has them."""
    if not scores:
        return []
    random = []
    for key in metrics:
        value = scores["random"].get(key.removeprefix("pass@"))
        random.append("" if value is None else f"{value:.3f}")
    optimal = [f"{scores['optimal']:.3f}" if key == "pass@1" else "" for key in metrics]
    return [("random play (exact)", *random, "", ""), ("optimal play (exact)", *optimal, "", "")]


def _arm_score(score: Mapping[str, Any]) -> str:
    low, high = score["interval"] or (None, None)
    return interval_text({"mean": score["mean"], "low": low, "high": high})


def _claims(name: str, table: Mapping[str, Any]) -> Section:
    rows = tuple(_claim_row(claim) for claim in table["claims"])
    header = ("claim", "difference", "verdict", "p", "seeds")
    return Section(f"Reproduction {name}: claims", (f"{table['test']}.",), header, rows)


def _claim_row(claim: Mapping[str, Any]) -> Row:
    relation = f"not {-claim['threshold']:g} below" if claim["not_below"] else "above"
    statement = f"{claim['better']} {relation} {claim['worse']}, pass@{claim['k']}"
    if not claim["seeds"]:
        return statement, "", "not run", "", "0"
    spread = ""
    if claim["low"] is not None:
        spread = f" [{claim['low']:+.3f}, {claim['high']:+.3f}]"
    difference = f"{claim['mean']:+.3f}{spread}"
    return statement, difference, claim["verdict"], f"{claim['p']:.3g}", str(claim["seeds"])


def _evaluations(evaluations: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """A table for each evaluated world, then one picture of all agents and one of all models."""
    built = []
    scored: dict[str, Mapping[str, Any]] = {}
    for name, metrics in evaluations.items():
        for title, header, rows in evaluation_tables(metrics):
            built.append(Section(f"Evaluation {name}: {title}", (), header, tuple(rows)))
        for world, scores in metrics["worlds"].items():
            scored[f"{name}: {world}"] = scores
    agents = {name: scores for name, scores in scored.items() if is_agent(scores)}
    models = {name: scores for name, scores in scored.items() if not is_agent(scores)}
    if agents:
        note = "95% intervals over instances. Dotted: random play. Star: optimal play."
        built.append(Section("pass@k", (note,), picture=pass_figure(agents)))
    if models:
        note = "95% intervals over instances. Dotted: predicting no change."
        built.append(Section("Accuracy by horizon", (note,), picture=horizon_figure(models)))
    return built


def _comparisons(comparisons: Sequence[Row]) -> Section:
    notes = ("Paired on the same instances, with 95% intervals.",)
    header = ("agents", "", "difference", "instances")
    return Section("Evaluated agents compared", notes, header, tuple(comparisons))


def _certificate(name: str, certificate: Certificate) -> Section:
    tables = metric_tables(certificate.sections)
    rows = tuple(row for _, table in tables for row in table)
    verdict = certificate.headline
    picture = certificate_plots.figure(certificate.sections)
    return Section(f"Certificate of {name}", (verdict,), ("", ""), rows, picture)


def _stores(stores: Mapping[str, Mapping[str, Any]]) -> Section:
    rows: list[Row] = []
    for name, counts in stores.items():
        totals = [f"{counts[key]:,}" for key in ("episodes", "transitions")]
        masked = sum(counts["masked"].values())
        success = _share(counts["successes"], counts["episodes"] - masked)
        rows.append((name, *totals, success, f"{masked:,}"))
    header = ("store", "episodes", "transitions", "success", "masked")
    note = "Success: the share of the episodes that are not masked, with Wilson's 95% interval."
    return Section("Episodes", (note,), header, tuple(rows), _store_picture(stores))


def _share(successes: int, n: int) -> str:
    if not n:
        return "unknown"
    low, high = wilson(successes, n)
    return f"{successes / n:.3f} [{low:.3f}, {high:.3f}]"


def _cost(costs: Mapping[str, Mapping[str, float]]) -> Section:
    names = tuple(dict.fromkeys(name for cost in costs.values() for name in cost))
    rows = [
        (run, *(_amount(cost.get(name), name) for name in names)) for run, cost in costs.items()
    ]
    return Section("Cost", ("Summed over the seeds of a run.",), ("", *names), tuple(rows))


def _amount(value: float | None, name: str) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name in ("hours", "price") else f"{value:,.0f}"


def _configs(configs: Mapping[str, Mapping[str, Any]]) -> Section:
    differences = config_differences(configs) if len(configs) > 1 else []
    rows = tuple((key, *cells) for key, cells in differences)
    return Section("Where the configs differ", (), ("key", *configs), rows)


# --- plots ----------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Any:
    """Return a matplotlib figure without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plots", "the pictures of a report") from error
    return Figure(figsize=(width, height), layout="constrained")


def _store_picture(stores: Mapping[str, Mapping[str, Any]]) -> Any:
    """Success of each store with its interval; None if no episode was scored."""
    scored = {
        name: (counts["successes"], counts["episodes"] - sum(counts["masked"].values()))
        for name, counts in stores.items()
    }
    shown = {name: count for name, count in scored.items() if count[1]}
    if not shown:
        return None
    drawing = new_figure(8, 1.0 + 0.4 * len(shown))
    axes = drawing.subplots()
    for place, (successes, n) in enumerate(reversed(shown.values())):
        low, high = wilson(successes, n)
        mean = successes / n
        axes.barh(place, mean, color=BLUE, alpha=0.35, height=0.6)
        axes.errorbar([mean], [place], xerr=[[mean - low], [high - mean]], fmt="o", color=BLUE)
    axes.set_yticks(range(len(shown)), list(reversed(shown)))
    axes.set(xlim=(0, 1.02), xlabel="success, with its 95% interval")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing


def _curves(group: SeedGroup) -> Section:
    """Plot reward by step: mean and interval over seeds, a thin line per seed, baselines."""
    values = _smooth(group.curves())
    seeds, count = values.shape
    steps = np.arange(1, count + 1)
    mean = values.mean(0)
    drawing = new_figure(8, 3.6)
    axes = drawing.subplots()
    if seeds > 1:
        half = student_t95(seeds - 1) * values.std(0, ddof=1) / seeds**0.5
        axes.fill_between(
            steps, mean - half, mean + half, color=BLUE, alpha=0.18, label="95% over seeds"
        )
        axes.plot(steps, values.T, color=BLUE, linewidth=0.6, alpha=0.5)
    label = f"reward, {seeds} seed{'s' * (seeds > 1)}"
    axes.plot(steps, mean, color=BLUE, linewidth=2, label=label)
    baselines = zip(group.baselines().items(), BASELINE_STYLES, strict=False)
    for (name, level), (colour, line) in baselines:
        axes.axhline(level.mean, color=colour, linestyle=line, linewidth=1.2, label=name)
    axes.set(xlabel="step", ylabel="reward (training tasks)", title=group.name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="best")
    note = f"Training reward of {group.name} by step, running mean over a twentieth of the run."
    return Section(f"Curve of {group.name}", (note,), picture=drawing)


def _smooth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    reach = max(1, values.shape[1] // 20)
    smoothed = []
    for row in values:
        smoothed.append([row[max(0, n - reach) : n + reach + 1].mean() for n in range(len(row))])
    return np.array(smoothed)
