"""What runs say, gathered for a reader: seeds, figures with intervals, certificates, cost, configs.

Takes run folders and the JSON files in `results/`; a report, a card and a test read the same numbers from here.
    facts = gather([Path("runs/a-0"), Path("runs/a-1"), Path("results/engine.json")]); facts.groups[0].after.mean
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.stats import mean_interval
from terrella.show.runs import Run, read_json, read_run
from terrella.trust.certificate import Certificate

NOT_THE_RUN = ("seed", "out", "bases")
"""Config keys in which members of a group may differ."""


@dataclass(frozen=True)
class Figure:
    """A mean, its 95% interval where there is one, and what it is a mean of."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        spread = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.mean:.3f}{spread}"


def over_seeds(values: Sequence[float]) -> Figure:
    """The mean over seeds with Student's interval; one seed has none."""
    low, high = mean_interval(values)
    known = len(values) > 1
    return Figure(sum(values) / len(values), low if known else None, high if known else None, len(values))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One training run, as far as a reader cares."""

    seed: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    baselines: Mapping[str, float | None]
    curve: Sequence[float]
    cost: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Group:
    """The seeds of one config."""

    name: str
    runs: tuple[Trained, ...]

    @property
    def before(self) -> Figure:
        """Held-out reward before training, over seeds."""
        return over_seeds([run.before["mean"] for run in self.runs])

    @property
    def after(self) -> Figure:
        """Held-out reward after training, over seeds."""
        return over_seeds([run.after["mean"] for run in self.runs])

    def baselines(self) -> dict[str, Figure]:
        """What needs no model, over the seeds' own questions."""
        names = dict.fromkeys(name for run in self.runs for name, value in run.baselines.items() if value is not None)
        return {name: over_seeds([value for run in self.runs if (value := run.baselines.get(name)) is not None])
                for name in names}  # fmt: skip

    def cost(self) -> dict[str, float]:
        """Summed over seeds."""
        names = dict.fromkeys(name for run in self.runs for name in run.cost)
        return {name: sum(run.cost.get(name, 0.0) for run in self.runs) for name in names}

    def curves(self) -> np.ndarray[Any, Any]:
        """[seeds, steps] of reward, cut to the shortest."""
        shortest = min(len(run.curve) for run in self.runs)
        return np.array([run.curve[:shortest] for run in self.runs], float)


@dataclass(slots=True)
class Facts:
    """All that a report is made of."""

    groups: list[Group] = field(default_factory=list[Group])
    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Reproductions by name."""
    measured: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Figures of other runs, as their manifests name them."""
    stores: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Counts of episode stores by name."""
    costs: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def gather(paths: Iterable[Path]) -> Facts:
    """Everything that these folders and files say."""
    facts, trained = Facts(), defaultdict[str, list[tuple[str, Trained]]](list)
    for path in paths:
        if path.is_file():
            _add_results(facts, path)
        else:
            _add_run(facts, read_run(path), trained)
    for runs in trained.values():
        name = _common_name([name for name, _ in runs], {group.name for group in facts.groups})
        facts.groups.append(Group(name, tuple(run for _, run in sorted(runs, key=lambda pair: pair[1].seed))))
    for group in facts.groups:
        facts.costs[group.name] = group.cost()
    return facts


def _add_run(facts: Facts, run: Run, trained: dict[str, list[tuple[str, Trained]]]) -> None:
    if run.kind != "reproduction":
        facts.configs[run.name] = run.config
    if run.kind == "rlvr":
        same = json.dumps({key: value for key, value in run.config.items() if key not in NOT_THE_RUN}, sort_keys=True)
        trained[same].append((run.name, _trained(run)))
    elif run.kind == "reproduction":
        _add_table(facts, run.name, run.manifest)
    elif run.kind == "store":
        facts.stores[run.name] = run.manifest["counts"]
        facts.costs[run.name] = {"real steps": run.manifest["counts"]["transitions"]}
    else:
        facts.measured[run.name] = figures_in(run.manifest)
        facts.costs[run.name] = _cost_of(run.manifest)
    if run.certificate is not None:
        facts.certificates[run.name] = run.certificate


def _cost_of(manifest: Mapping[str, Any]) -> dict[str, float]:
    """What the manifest of a world model, an arm or another run says that it took."""
    found = {}
    steps = {**manifest.get("real_steps", {}), "rl": manifest.get("rl", {}).get("world_steps", 0)}
    if any(steps.values()):
        found["real steps"] = sum(steps.values())
    if "seconds" in manifest:
        found["hours"] = manifest["seconds"] / 3600
    return found


def figures_in(value: Any, where: str = "") -> dict[str, float]:
    """The numbers of a manifest by dotted name; configs, curves and long lists are not figures."""
    if isinstance(value, bool | str) or value is None:
        return {}
    if isinstance(value, int | float):
        return {where: float(value)}
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if len(value) <= 8 else ()
    found: dict[str, float] = {}
    for key, inner in inside:
        if key not in ("config", "curve"):
            found |= figures_in(inner, f"{where}.{key}" if where else str(key))
    return found


def _trained(run: Run) -> Trained:
    rlvr = run.config["rlvr"]
    episodes = rlvr["groups"] * rlvr["group_size"]
    cost = {
        "tokens": sum(row.get("tokens", 0.0) for row in run.curve) * episodes,
        "hours": sum(row.get("seconds/generate", 0.0) + row.get("seconds/train", 0.0) for row in run.curve) / 3600,
    }
    if run.config.get("ask") == "action":  # one step of the world per turn, at least
        cost = {"real steps": sum(row.get("turns", 0.0) for row in run.curve) * episodes, **cost}
    return Trained(
        seed=run.config["seed"], before=run.manifest["before"], after=run.manifest["after"],
        baselines=run.manifest["baselines"], curve=[row["reward"] for row in run.curve], cost=cost, config=run.config,
    )  # fmt: skip


def _common_name(names: Sequence[str], taken: set[str]) -> str:
    """What the folders of a group share, without the seed's number; the first one's own where that says too little."""
    first = min(names, key=len) if len(names) > 1 else ""
    while first and not all(name.startswith(first) for name in names):
        first = first[:-1]
    shared = first.rstrip("-_0123456789")
    return shared if shared and shared not in taken else names[0]


# --- files of results ---------------------------------------------------------------------------------------------


def _add_results(facts: Facts, path: Path) -> None:
    record = read_json(path)
    if isinstance(record, dict) and "recipes" in record.get("curves", {}):
        for name, seeds in record["curves"]["recipes"].items():
            facts.groups.append(Group(name, tuple(_recorded(int(seed), row) for seed, row in sorted(seeds.items()))))
    elif isinstance(record, dict) and "arms" in record and "claims" in record:
        _add_table(facts, path.stem, record)
    elif isinstance(record, dict) and all("certified" in model for model in record.get("models", {"": {}}).values()):
        facts.certificates.update({name: Certificate(model) for name, model in record["models"].items()})
    else:
        remedy = "name a run's folder, or a file of results with curves, arms or certificates"
        raise ConfigError(str(path), "holds nothing that a report can show", remedy)


def _recorded(seed: int, row: Mapping[str, Any]) -> Trained:
    return Trained(seed=seed, before=row["before"], after=row["after"], baselines=row["baselines"], curve=row["curve"],
                   cost={"hours": row["seconds"] / 3600})  # fmt: skip


def _add_table(facts: Facts, name: str, table: Mapping[str, Any]) -> None:
    facts.tables[name] = table
    for arm, found in table["arms"].items():
        hours = sum(found.get("seconds", [])) / 3600
        facts.costs[f"{name}: {arm}"] = {"real steps": sum(found.get("world_steps", [])), "hours": hours}


# --- configs ------------------------------------------------------------------------------------------------------


def flat(config: Mapping[str, Any], where: str = "") -> dict[str, str]:
    """Every leaf of a config by its dotted name, as `--set` spells it."""
    found: dict[str, str] = {}
    for key, value in config.items():
        name = f"{where}.{key}" if where else key
        found |= flat(value, name) if isinstance(value, Mapping) else {name: json.dumps(value)}
    return found


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Keys in which the configs differ, with each one's value; a key that is absent is an empty cell."""
    leaves = {name: flat(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for each in leaves.values() for key in each)
    rows = [(key, [leaves[name].get(key, "") for name in configs]) for key in keys]
    return [(key, cells) for key, cells in rows if len(set(cells)) > 1 and key != "out"]
