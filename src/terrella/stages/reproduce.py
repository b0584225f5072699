"""`terrella reproduce NAME`: arms x seeds as jobs of their own, a table with intervals, and whether the claims hold.

A job is a folder with a manifest; a folder that has one is not run again, so a table of hours can be killed, resumed
and extended. Claims are paired on the same instances. An arm is the config of any stage with `seed` and `out` whose
`run` leaves a manifest with `test` successes, and with `known`.
    Reproduce(spa_frozen_lake()).run(lambda line: print(line))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrella.core.config import Configurable, override
from terrella.core.stats import mean_interval
from terrella.data.store import write_atomic
from terrella.stages.jobs import log_of, run_jobs
from terrella.use.pass_at_k import paired_difference, pass_at_k


class Claim(NamedTuple):
    """`better` earns more than `worse` at pass@k, or, with `not_below`, not less."""

    better: str
    worse: str
    k: int
    not_below: bool = False

    def holds(self, low: float, high: float) -> bool:
        """Whether the interval of the difference says so."""
        return high >= 0.0 if self.not_below else low > 0.0


class Reproduce(Configurable):
    """A table and what it should show."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Arms by name; those of `first` are run first, for all seeds."""

        arms: Mapping[str, Configurable.Config]
        first: tuple[str, ...]
        seeds: int = 5
        claims: tuple[tuple[str, str, int, bool], ...] = ()
        """(better, worse, k, not_below): see `Claim`."""
        brief: tuple[str, ...] = ()
        """What `quick` sets in each arm, as on the command line: `budget=80000`, `evaluate.instances=256`."""
        paper: Mapping[str, str] = field(default_factory=dict[str, str])
        """What was published, for the reader: other models, other sizes."""
        at_once: int = 1
        """Jobs that run together, a core each."""
        out: Path = Path("runs/reproduce")

        def quick(self) -> Reproduce.Config:
            """The first arms with one seed: does it go the right way? Briefer arms have a folder of their own."""
            arms = {name: override(self.arms[name], self.brief) for name in self.first}
            out = self.out.with_name(f"{self.out.name}_quick") if self.brief else self.out
            claims = tuple(claim for claim in self.claims if {claim[0], claim[1]} <= arms.keys())
            return self.replace(arms=arms, seeds=1, claims=claims, out=out)

    config: Config

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """All jobs that are not done yet; the table is written again after each."""
        jobs = {f"{arm}-{seed}": self._job_config(arm, seed) for arm, seed in self.jobs()}
        numbers = {name: number for number, name in enumerate(jobs, 1)}
        missing = [job for name, job in jobs.items() if not (self.config.out / name / "manifest.json").exists()]

        def started(job: Any) -> None:
            which = f"job {numbers[job.out.name]} of {len(jobs)}"
            say(f"{job.out.name}: started, {which}; how far it is: {log_of(job.out)}")

        for job in run_jobs(missing, at_once=self.config.at_once, started=started):
            say(f"{job.out.name}: {_short(_manifest(job.out))}")
            self.write_table()
        return self.write_table()

    def jobs(self) -> Iterator[tuple[str, int]]:
        """(arm, seed) in the order of running."""
        rest = [name for name in self.config.arms if name not in self.config.first]
        for names in (self.config.first, *([name] for name in rest)):
            yield from ((name, seed) for seed in range(self.config.seeds) for name in names)

    def _job_config(self, arm: str, seed: int) -> Configurable.Config:
        """The arm in its own folder; what arms can share goes beside them."""
        config = self.config.arms[arm].replace(seed=seed, out=self.config.out / f"{arm}-{seed}")
        shares = any(one.name == "bases" for one in fields(config))
        return config.replace(bases=self.config.out / "bases") if shares else config

    # --- the table ---------------------------------------------------------------------------------------------------

    def write_table(self) -> dict[str, Any]:
        """What is known so far."""
        found = self.finished()
        any_arm = next(iter(self.config.arms.values()))
        table = {
            "arms": {name: arm_figures(runs) for name, runs in found.items() if runs},
            "known": self._known(any_arm),
            "claims": [self.judge(Claim(*claim), found) for claim in self.config.claims],
            "paper": dict(self.config.paper),
        }
        write_atomic(self.config.out / "table.json", json.dumps(table, indent=1).encode())
        return table

    def finished(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Manifests by arm and seed."""
        folders = {arm: {seed: self.config.out / f"{arm}-{seed}" for seed in range(self.config.seeds)}
                   for arm in self.config.arms}  # fmt: skip
        return {arm: {seed: _manifest(folder) for seed, folder in seeds.items() if (folder / "manifest.json").exists()}
                for arm, seeds in folders.items()}  # fmt: skip

    def _known(self, arm: Configurable.Config) -> dict[str, Any]:
        """Random and optimal play on the same instances, where the stage can tell: computed once."""
        path = self.config.out / "known.json"
        if not path.exists():
            write_atomic(path, json.dumps(arm.build().known()).encode())
        return dict(json.loads(path.read_text("utf-8")))

    def judge(self, claim: Claim, found: Mapping[str, Mapping[int, dict[str, Any]]]) -> dict[str, Any]:
        """The paired difference over the seeds that both arms have, and whether the claim holds."""
        better, worse = found.get(claim.better, {}), found.get(claim.worse, {})
        seeds = sorted(better.keys() & worse.keys())
        if not seeds:
            return {**claim._asdict(), "seeds": 0, "holds": None}
        values = [np.stack([instance_values(runs[seed], claim.k) for seed in seeds]) for runs in (better, worse)]
        estimate = paired_difference(*values)
        per_seed = (values[0] - values[1]).mean(axis=1).tolist()
        return {**claim._asdict(), "seeds": len(seeds), **asdict(estimate), "per_seed": per_seed,
                "over_seeds": _finite(mean_interval(per_seed)),
                "holds": claim.holds(estimate.low, estimate.high)}  # fmt: skip


def instance_values(manifest: Mapping[str, Any], k: int) -> Any:
    """pass@k per test instance of one run."""
    return pass_at_k(manifest["test"]["successes"], samples=manifest["test"]["samples"], k=k)


def arm_figures(runs: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds with Student's interval, and each seed's own."""
    tests = [run["test"] for run in runs.values()]
    shown = [name for name, value in tests[0].items() if isinstance(value, float)]
    passes = {f"pass@{k}": [test["pass"][k]["mean"] for test in tests] for k in tests[0]["pass"]}
    return {
        "seeds": sorted(runs),
        **{name: _over_seeds(values) for name, values in passes.items()},
        **{name: sum(test[name] for test in tests) / len(tests) for name in shown},
        "world_steps": [run["rl"]["world_steps"] for run in runs.values()],
        "iterations": [run["rl"].get("iterations", 0) for run in runs.values()],
        "collapsed": [seed for seed, run in runs.items() if run["rl"].get("collapse")],
        "after_sft": [_glance(run["learnt"]) for run in runs.values() if "pass" in run["learnt"]],
        "seconds": [round(run["seconds"]) for run in runs.values()],
    }


def _glance(part: Mapping[str, Any]) -> dict[str, float]:
    means = {f"pass@{k}": found["mean"] for k, found in part["pass"].items() if k in ("1", "8")}
    said = {name: part[name] for name in ("true_observations", "true_predictions") if name in part}
    return {**means, **said}


def _over_seeds(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": sum(values) / len(values), "interval": _finite(mean_interval(values)), "per_seed": list(values)}


def _finite(interval: tuple[float, float]) -> list[float] | None:
    return list(interval) if np.isfinite(interval).all() else None


def _manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text("utf-8")))


def _short(manifest: Mapping[str, Any]) -> str:
    means = ", ".join(f"pass@{k} {found['mean']:.3f}" for k, found in manifest["test"]["pass"].items())
    return f"{means}; {manifest['rl']['world_steps']:,} world steps, {manifest['seconds']:.0f} s"
