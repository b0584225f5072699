"""`terrella reproduce NAME`: run the arms of a published comparison and test its claims.

Each arm x seed is a job with a folder of its own. A finished job is not run again, so a comparison
that takes hours can be killed, resumed and extended. Claims are decided by the test of
`core/claims.py`: instances paired inside a seed, seeds as the unit. An arm is the config of any
pipeline whose result has `test` and `rl` (`evals/results.py`) and that has `reference_scores()`.
    table = Reproduce(spa_frozen_lake()).run(print)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.claims import LEAST_SEEDS, MARGIN, Claim, stated_test
from terrella.core.config import (
    Configurable,
    Local,
    Recorded,
    field_types,
    record_from_json,
)
from terrella.core.config_override import Named, override
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked, refuse_links, write_json
from terrella.core.instances import plain
from terrella.core.integrity import MAKE_AGAIN, read_sealed, write_sealed
from terrella.core.known_names import known_names
from terrella.core.result_rows import write_rows
from terrella.core.run_folder import (
    MANIFEST,
    SPEC,
    check_spec,
    read_manifest,
    run_spec,
    wait_for,
)
from terrella.core.versions import installed_versions
from terrella.engines.launcher import Launch
from terrella.evals.arm_tables import InstanceRows, arm_passes, decide_claims
from terrella.evals.results import ArmResult, TestScores
from terrella.pipelines.base import Pipeline
from terrella.pipelines.reproduce.jobs import JobProcesses, log_file, run_jobs

TABLE = "table.json"
REFERENCE_SCORES = "reference_scores.json"


@dataclass(frozen=True)
class FinishedJob:
    """The result of one arm with one seed."""

    result: ArmResult
    seconds: float


Finished = Mapping[str, Mapping[int, FinishedJob]]
"""Finished jobs by arm and seed."""


class Reproduce(Configurable):
    """A comparison of arms, and the claims that it should support."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        arms: Recorded[Mapping[str, Pipeline.Config]]
        first: Recorded[tuple[str, ...]]
        """Arms that run first, for all seeds."""
        seeds: int = 5
        claims: Recorded[tuple[tuple[str, str, int, bool], ...]] = ()
        """(better, worse, k, not_below): see `core.claims.Claim`. The first one is the main one.

        All of them are corrected for their number, so a claim that nobody needs weakens the others.
        """
        margin: float = MARGIN
        """How far below still counts as "not below"."""
        looks: int = 1
        """How often the claims are to be decided as seeds are added, stated before the first time.

        Each p-value is multiplied by it.
        """
        brief: Recorded[tuple[str, ...]] = ()
        """What `quick` sets in each arm, written as on the command line."""
        paper: Recorded[Mapping[str, str]] = field(default_factory=dict[str, str])
        """Published numbers, for the reader: from other models of other sizes."""
        at_once: int = 1
        """Jobs that run at the same time, one core each."""
        out: Local[Path] = Path("runs/reproduce")

        def __post_init__(self) -> None:
            counts = {"--seeds": self.seeds, "--jobs": self.at_once, "--looks": self.looks}
            for option, value in counts.items():
                if value < 1:
                    raise ConfigError(f"{option} {value}", "is below 1", f"give {option} 1 or more")

        def quick(self) -> Reproduce.Config:
            """The first arms with one seed: a check of the direction.

            If it shortens the arms, they have a folder of their own.
            """
            arms = {name: override(self.arms[name], self.brief) for name in self.first}
            out = self.out.with_name(f"{self.out.name}_quick") if self.brief else self.out
            claims = tuple(claim for claim in self.claims if {claim[0], claim[1]} <= arms.keys())
            return self.replace(arms=arms, seeds=1, claims=claims, out=out)

        @property
        def shortfall(self) -> str:
            """Why these seeds decide no claim; empty if they may."""
            if not self.claims or self.seeds >= LEAST_SEEDS:
                return ""
            count = "1 seed decides" if self.seeds == 1 else f"{self.seeds} seeds decide"
            return (
                f"{count} no claim: each will be undecided, for which {LEAST_SEEDS} are needed; "
                f"with --seeds {LEAST_SEEDS} the same command adds those that are missing"
            )

        def with_overrides(self, assignments: Sequence[str], named: Named) -> Reproduce.Config:
            """Apply `--set`: `arms.NAME.FIELD=x` to one arm, `FIELD=x` to all that have it."""
            config = self
            for assignment in assignments:
                arms = override_arms(config.arms, assignment, named)
                config = config.replace(arms=arms)
            return config

    config: Config

    def run(
        self, log: Callable[[str], None], *, processes: JobProcesses | None = None
    ) -> dict[str, Any]:
        """Run the jobs that are not finished; the table is written again after each of them.

        With several nodes, each of them calls this; the first one locks the folder and writes.
        """
        self.check_settings()
        with locked(self.config.out) if is_first_node() else contextlib.nullcontext():
            refuse_links(self.config.out)
            return self._run_jobs(log, processes)

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        """Refuse an arm that cannot run now, and not when its turn comes. Jobs share the ranks."""
        for name, arm in self.config.arms.items():
            try:
                arm.build().check_settings(ranks=ranks // self.config.at_once, machines=machines)
            except ConfigError as error:
                where = f"{error.where} of the arm {name}"
                raise ConfigError(where, error.what, error.remedy) from error

    def _run_jobs(
        self, log: Callable[[str], None], processes: JobProcesses | None
    ) -> dict[str, Any]:
        jobs = [self.job_config(arm, seed) for arm, seed in self.jobs()]
        numbers = {job.out.name: number for number, job in enumerate(jobs, 1)}
        missing = [job for job in jobs if read_finished(job) is None]

        def started(job: Pipeline.Config) -> None:
            number = f"job {numbers[job.out.name]} of {len(jobs)}"
            log(f"{job.out.name}: started, {number}; progress is in {log_file(job.out)}")

        for job in run_jobs(
            missing, at_once=self.config.at_once, started=started, processes=processes
        ):
            wait_for(job.out / MANIFEST)  # the first node may still be writing it
            finished = read_finished(job)
            assert finished is not None
            log(f"{job.out.name}: {_one_line(finished)}")
            if is_first_node():
                self.write_table()
        return self.write_table() if is_first_node() else self.table()

    def processes(self, launch: Launch, command: Sequence[str]) -> JobProcesses:
        """Several processes for each job: `command` runs one of them with `--only NAME`."""
        jobs = [self.job_config(arm, seed) for arm, seed in self.jobs()]
        return JobProcesses(
            launch=dataclasses.replace(launch, devices=launch.devices // self.config.at_once),
            command=lambda job: [*command, "--only", job.out.name],
            numbers={job.out.name: number for number, job in enumerate(jobs)},
        )

    def find_job(self, name: str) -> Pipeline.Config:
        """The job of that name, such as `spa-0`."""
        known = {job.out.name: job for job in (self.job_config(*each) for each in self.jobs())}
        if name not in known:
            raise ConfigError(name, "no such job", known_names(name, list(known)))
        return known[name]

    def jobs(self) -> Iterator[tuple[str, int]]:
        """(arm, seed) in the order in which they run."""
        rest = [name for name in self.config.arms if name not in self.config.first]
        for names in (self.config.first, *([name] for name in rest)):
            yield from ((name, seed) for seed in range(self.config.seeds) for name in names)

    def job_config(self, arm: str, seed: int) -> Pipeline.Config:
        """The arm with this seed, in its own folder; shared base models lie beside the arms."""
        config = self.config.arms[arm].replace(seed=seed, out=self.config.out / f"{arm}-{seed}")
        if hasattr(config, "base_cache"):
            return config.replace(base_cache=self.config.out / "bases")
        return config

    # --- the table --------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """Write the table of jobs that ran elsewhere; of each, two files are enough."""
        if not any(self.finished().values()):
            names = ", ".join(f"{arm}-0" for arm in self.config.first)
            remedy = f"copy {SPEC} and {MANIFEST} of each job into a folder of its name ({names})"
            raise StoreError(str(self.config.out), "has no finished job", remedy)
        return self.write_table()

    def write_table(self) -> dict[str, Any]:
        """Write the table of the jobs that are finished so far."""
        table = self.table()
        write_sealed(self.config.out / TABLE, table)
        return table

    def table(self) -> dict[str, Any]:
        """Arms and claims, from the jobs that are finished so far."""
        finished = self.finished()
        rows = instance_rows(finished)
        claims = [Claim(*claim) for claim in self.config.claims]
        return {
            "arms": {name: arm_metrics(runs) for name, runs in finished.items() if runs},
            "reference_scores": self._reference_scores(),
            "test": stated_test(self.config.looks),
            "margin": self.config.margin,
            "looks": self.config.looks,
            "claims": decide_claims(
                rows, claims, margin=self.config.margin, looks=self.config.looks
            ),
            "paper": dict(self.config.paper),
        }

    def rows(self) -> dict[str, Any]:
        """The per-instance rows of the finished jobs, as they are kept beside a published table."""
        rows = instance_rows(self.finished())
        return {
            "arms": {
                arm: {seed: _kept_row(row) for seed, row in seeds.items()}
                for arm, seeds in rows.items()
            }
        }

    def write_results(self, path: Path, table: Mapping[str, Any], command: str) -> None:
        """Write a table to publish, and its rows to `rows/` beside it."""
        write_rows(path.parent / "rows" / f"{path.stem}.json.gz", self.rows())
        write_json(path, {"command": command, "versions": installed_versions(), **table})

    def finished(self) -> dict[str, dict[int, FinishedJob]]:
        jobs: dict[str, dict[int, FinishedJob]] = {}
        for arm in self.config.arms:
            by_seed = {
                seed: read_finished(self.job_config(arm, seed)) for seed in range(self.config.seeds)
            }
            jobs[arm] = {seed: job for seed, job in by_seed.items() if job is not None}
        return jobs

    def _reference_scores(self) -> dict[str, Any]:
        """Scores of random and optimal play on seed 0's instances, where the arms have them.

        Computed once.
        """
        path = self.config.out / REFERENCE_SCORES
        if not path.exists():
            any_arm = next(iter(self.config.arms.values()))
            scores = any_arm.build().reference_scores()
            write_sealed(path, plain(scores) if scores else {})
        return dict(read_sealed(path, MAKE_AGAIN))


def is_first_node() -> bool:
    """Whether this is the node that writes, or the only one."""
    return os.environ.get("NODE_RANK", "0") == "0"


def read_finished(job: Pipeline.Config) -> FinishedJob | None:
    """The result of a job, or None if it has not finished.

    A folder that another config has filled is refused: its numbers are not this job's.
    """
    if not (job.out / MANIFEST).exists():
        return None
    pipeline = job.owner
    assert issubclass(pipeline, Pipeline)
    check_spec(job.out, run_spec(job, pipeline.ignored))
    manifest = read_manifest(job.out)
    if not pipeline(job).is_finished(manifest):
        return None
    result = record_from_json(pipeline.result_type, manifest.metrics)
    return FinishedJob(result, manifest.seconds)


def instance_rows(finished: Finished) -> dict[str, dict[str, InstanceRows]]:
    """What each arm and seed won on each test instance: all that arms and claims rest on."""
    return {
        arm: {
            str(seed): InstanceRows(
                successes=job.result.test.successes,
                samples=job.result.test.samples,
                judged=job.result.test.judged,
            )
            for seed, job in runs.items()
        }
        for arm, runs in finished.items()
        if runs
    }


def _kept_row(row: InstanceRows) -> dict[str, Any]:
    """A row as it is published: without `judged` where nothing was masked."""
    return {name: value for name, value in plain(row).items() if value is not None}


def arm_metrics(runs: Mapping[int, FinishedJob]) -> dict[str, Any]:
    """Means over seeds with Student's interval, and the values of each seed."""
    results = [run.result for run in runs.values()]
    tests = [result.test for result in results]
    metrics: dict[str, Any] = {"seeds": sorted(runs)}
    metrics |= arm_passes(instance_rows({"": runs})[""])
    for name in tests[0].means():
        known = [test.means()[name] for test in tests if name in test.means()]
        metrics[name] = sum(known) / len(known)
    if any(test.judged for test in tests):
        metrics["masked"] = [test.masked for test in tests]
    return {
        **metrics,
        "env_steps": [result.rl.env_steps for result in results],
        "iterations": [result.rl.iterations for result in results],
        "collapsed": [seed for seed, run in runs.items() if run.result.rl.collapse],
        "after_sft": _after_sft(results),
        "seconds": [round(run.seconds) for run in runs.values()],
    }


def _after_sft(results: Sequence[ArmResult]) -> list[dict[str, float]]:
    """Validation scores before RL, of arms that have an SFT part."""
    rows = []
    for result in results:
        scores: TestScores | None = getattr(result, "after_sft", None)
        if scores is not None:
            passes = {f"pass@{k}": scores.passes[k].mean for k in ("1", "8") if k in scores.passes}
            predictions = {
                name: value for name, value in scores.means().items() if name.startswith("true_")
            }
            rows.append({**passes, **predictions})
    return rows


def _one_line(job: FinishedJob) -> str:
    passes = job.result.test.passes
    means = ", ".join(f"pass@{k} {metric.mean:.3f}" for k, metric in passes.items())
    masked = f", {job.result.test.masked:,} masked episodes" if job.result.test.judged else ""
    return f"{means}{masked}; {job.result.rl.env_steps:,} env steps, {job.seconds:.0f} s"


def override_arms(
    arms: Mapping[str, Pipeline.Config], assignment: str, named: Named
) -> dict[str, Pipeline.Config]:
    """The arms with one assignment applied."""
    if assignment.startswith("arms."):
        name, _, rest = assignment.removeprefix("arms.").partition(".")
        if name not in arms:
            raise ConfigError(assignment, f"no arm {name!r}", known_names(name, arms))
        return {**arms, name: override(arms[name], [rest], named=named)}
    field_name = assignment.partition("=")[0].partition(".")[0].strip()
    having = [name for name, arm in arms.items() if field_name in field_types(type(arm))]
    if not having:
        fields_known = {field for arm in arms.values() for field in field_types(type(arm))}
        remedy = known_names(field_name, sorted(fields_known))
        raise ConfigError(assignment, f"no arm has a field {field_name!r}", remedy)
    changed = {name: override(arms[name], [assignment], named=named) for name in having}
    return {**arms, **changed}
