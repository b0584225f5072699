"""Collect the contents of a report: seeds, metrics, certificates, costs and configs of runs.

Takes run folders and the JSON files in `results/`. A report, a card and a test read the same
numbers from here.
    data = load_report_data([Path("runs/a-0"), Path("runs/a-1"), Path("results/spa_sokoban.json")])
    data.groups[0].after.mean
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.config import leaves
from terrella.core.errors import ConfigError
from terrella.core.metric import Metric
from terrella.core.untrusted import reading
from terrella.show.runs import STRANGE, Run, read_json, read_run
from terrella.trust.certificate import Certificate

IGNORED_KEYS = ("seed", "base_cache")
"""Config keys in which the runs of one group may differ."""
LONGEST_LIST = 8
"""Lists with more items than this are data, not metrics."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training run: its rewards, its baselines, its curve and its cost."""

    seed: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    baselines: Mapping[str, float | None]
    curve: Sequence[float]
    cost: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class SeedGroup:
    """Training runs that share a config and differ in their seed."""

    name: str
    runs: tuple[TrainingRun, ...]

    @property
    def before(self) -> Metric:
        """Held-out reward before training, over seeds."""
        return Metric.over_seeds([run.before["mean"] for run in self.runs])

    @property
    def after(self) -> Metric:
        """Held-out reward after training, over seeds."""
        return Metric.over_seeds([run.after["mean"] for run in self.runs])

    def baselines(self) -> dict[str, Metric]:
        """Scores that need no model, over the held-out tasks of each seed."""
        values = defaultdict[str, list[float]](list)
        for run in self.runs:
            for name, value in run.baselines.items():
                if value is not None:
                    values[name].append(value)
        return {name: Metric.over_seeds(scores) for name, scores in values.items()}

    def cost(self) -> dict[str, float]:
        """Cost summed over seeds."""
        names = dict.fromkeys(name for run in self.runs for name in run.cost)
        return {name: sum(run.cost.get(name, 0.0) for run in self.runs) for name in names}

    def curves(self) -> np.ndarray[Any, Any]:
        """Reward as an array [seeds, steps], cut to the shortest run."""
        shortest = min(len(run.curve) for run in self.runs)
        return np.array([run.curve[:shortest] for run in self.runs], float)


@dataclass(slots=True)
class ReportData:
    """Everything that a report shows."""

    groups: list[SeedGroup] = field(default_factory=list[SeedGroup])
    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Reproductions by name."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Metrics of other runs, under the names that their manifests use."""
    evaluations: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Metrics of evaluations by name."""
    comparisons: list[tuple[str, str, str, str]] = field(
        default_factory=list[tuple[str, str, str, str]]
    )
    """Differences of evaluated agents on the same instances: who, k, difference, n."""
    stores: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Counts of episode stores by name."""
    costs: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


NamedRuns = list[tuple[str, TrainingRun]]


def load_report_data(paths: Iterable[Path]) -> ReportData:
    """Read run folders and files of results; a path that is named twice is read once."""
    data = ReportData()
    trained = defaultdict[str, NamedRuns](list)
    for path, name in short_names(paths).items():
        with reading(str(path), STRANGE):
            if path.is_file():
                _add_results(data, path, name)
            else:
                _add_run(data, read_run(path), name, trained)
    for named_runs in trained.values():
        _refuse_equal_seeds(named_runs)
        taken = {group.name for group in data.groups}
        name = _common_name([name for name, _ in named_runs], taken)
        runs = sorted((run for _, run in named_runs), key=lambda run: run.seed)
        data.groups.append(SeedGroup(name, tuple(runs)))
    for group in data.groups:
        data.costs[group.name] = group.cost()
    return data


def short_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Each path with the shortest end of it that no other one has, such as `model-a/eval`."""
    places: dict[tuple[str, ...], Path] = {}
    for path in paths:
        place = path.resolve()
        last = place.stem if path.is_file() else place.name
        places.setdefault((*place.parts[1:-1], last), path)
    names = {}
    for own, path in places.items():
        length = 1
        while length < len(own) and sum(own[-length:] == each[-length:] for each in places) > 1:
            length += 1
        names[path] = "/".join(own[-length:])
    return names


def _refuse_equal_seeds(named_runs: NamedRuns) -> None:
    """Refuse a run that was copied or repeated: it would make the interval too small."""
    names: dict[int, str] = {}
    for name, run in named_runs:
        if run.seed in names:
            raise ConfigError(
                name,
                f"has the config and the seed ({run.seed}) of {names[run.seed]}",
                "name one of them: each seed counts once",
            )
        names[run.seed] = name


def _add_run(data: ReportData, run: Run, name: str, trained: dict[str, NamedRuns]) -> None:
    """Add a run folder; training runs are collected in `trained` by their shared config."""
    if run.kind != "reproduction":
        data.configs[name] = run.config
    if run.kind == "rlvr":
        shared = {key: value for key, value in run.config.items() if key not in IGNORED_KEYS}
        trained[json.dumps(shared, sort_keys=True)].append((name, _training_run(run)))
    elif run.kind == "reproduction":
        _add_table(data, name, run.manifest)
    elif run.kind == "evaluation":
        data.evaluations[name] = run.metrics
        data.costs[name] = _evaluation_cost(run)
    elif run.kind == "store":
        data.stores[name] = run.manifest["counts"]
        data.costs[name] = {"real steps": run.manifest["counts"]["transitions"]}
    else:
        seconds = run.manifest["seconds"]
        data.metrics[name] = {**numeric_metrics(run.metrics), "seconds": seconds}
        data.costs[name] = {**_env_steps(run.metrics), "hours": seconds / 3600}
    if run.certificate is not None:
        data.certificates[name] = run.certificate


def _evaluation_cost(run: Run) -> dict[str, float]:
    cost = run.metrics["cost"]
    tokens = cost["usage"]["prompt_tokens"] + cost["usage"]["completion_tokens"]
    price = {} if cost["price"] is None else {"price": cost["price"]}
    return {"tokens": tokens, **price, "hours": run.manifest["seconds"] / 3600}


def _env_steps(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Real steps of a world model, an arm or another run, as far as its metrics state them."""
    rl = metrics.get("rl") or {}
    steps = sum(metrics.get("real_steps", {}).values()) + rl.get("env_steps", 0)
    return {"real steps": steps} if steps else {}


def numeric_metrics(value: Any, prefix: str = "") -> dict[str, float]:
    """Return the numbers of a result by dotted name, without configs, curves and long lists."""
    if isinstance(value, bool | str) or value is None:
        return {}
    if isinstance(value, int | float):
        return {prefix: float(value)}
    if isinstance(value, Mapping):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if len(value) <= LONGEST_LIST else []
    metrics: dict[str, float] = {}
    for key, inner in items:
        if key not in ("config", "curve"):
            metrics |= numeric_metrics(inner, f"{prefix}.{key}" if prefix else str(key))
    return metrics


def _training_run(run: Run) -> TrainingRun:
    rlvr = run.config["rlvr"]
    episodes = rlvr["groups"] * rlvr["group_size"]
    seconds = sum(
        row.get("seconds/generate", 0.0) + row.get("seconds/train", 0.0) for row in run.curve
    )
    cost = {}
    if run.config.get("ask") == "action":  # at least one env step per turn
        cost["real steps"] = sum(row.get("turns", 0.0) for row in run.curve) * episodes
    cost["tokens"] = sum(row.get("tokens", 0.0) for row in run.curve) * episodes
    cost["hours"] = seconds / 3600
    return TrainingRun(
        seed=run.config["seed"],
        before=run.metrics["before"],
        after=run.metrics["after"],
        baselines=run.metrics["baselines"],
        curve=[row["reward"] for row in run.curve],
        cost=cost,
        config=run.config,
    )


def _common_name(names: Sequence[str], taken: set[str]) -> str:
    """Return the common prefix of the folders of a group, without the seed's number.

    Falls back to the first folder's name if the prefix is empty or taken.
    """
    prefix = min(names, key=len) if len(names) > 1 else ""
    while prefix and not all(name.startswith(prefix) for name in names):
        prefix = prefix[:-1]
    shared = prefix.rstrip("-_0123456789")
    return shared if shared and shared not in taken else names[0]


# --- files of results -----------------------------------------------------------------------------


def _add_results(data: ReportData, path: Path, stem: str) -> None:
    record = read_json(path)
    if not isinstance(record, dict):
        record = {}
    if "arms" in record and "claims" in record:
        _add_table(data, stem, record)
    elif _holds_certificates(record):
        for name, sections in record["models"].items():
            data.certificates[name] = Certificate(sections)
    else:
        raise ConfigError(
            str(path),
            "holds nothing that a report can show",
            "name a run's folder, or a file of results with arms or certificates",
        )


def _holds_certificates(record: Mapping[str, Any]) -> bool:
    return "models" in record and all("certified" in model for model in record["models"].values())


def _add_table(data: ReportData, name: str, table: Mapping[str, Any]) -> None:
    data.tables[name] = table
    for arm, results in table["arms"].items():
        data.costs[f"{name}: {arm}"] = {
            "real steps": sum(results.get("env_steps", [])),
            "hours": sum(results.get("seconds", [])) / 3600,
        }


# --- configs --------------------------------------------------------------------------------------


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the keys in which configs differ, with the value in each config.

    A key that a config does not have is an empty cell.
    """
    texts = {
        name: {key: json.dumps(value) for key, value in leaves(config).items()}
        for name, config in configs.items()
    }
    keys = dict.fromkeys(key for each in texts.values() for key in each)
    rows = [(key, [texts[name].get(key, "") for name in configs]) for key in keys]
    return [(key, cells) for key, cells in rows if len(set(cells)) > 1]
