"""Reproductions: jobs run once, claims are tested on paired instances, failures are reported."""

import json
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.support.manifests import write_manifest

from terrella.core.claims import Claim
from terrella.core.config import Configurable, dump, rebuild
from terrella.core.errors import EngineError, StoreError
from terrella.core.files import locked
from terrella.core.instances import plain
from terrella.core.result_rows import read_rows
from terrella.core.run_folder import check_spec, run_spec
from terrella.core.world import World
from terrella.evals.agents import Evaluate, instance_seeds, reference_policies
from terrella.evals.arm_tables import InstanceRows, decide_claims
from terrella.evals.pass_at_k import pass_metrics
from terrella.evals.results import RlCost, TestScores
from terrella.pipelines.base import Pipeline
from terrella.pipelines.reproduce import pipeline as reproduce
from terrella.pipelines.reproduce.jobs import run_jobs
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.reproduce.report import show_table
from terrella.recipes import all_recipes
from terrella.recipes.spa.paper import CLAIMS
from terrella.show.progress import SilentProgress
from terrella.worlds.frozen_lake import FrozenLake

SAMPLES = 8
CHANCES = {"base": 0.2, "vanilla": 0.25, "spa": 0.6}


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    test: TestScores
    rl: RlCost
    after_sft: TestScores | None = None


class Arm(Pipeline[ArmResult]):
    """An arm that succeeds by chance, without a model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        world: World.Config = field(default_factory=lambda: FrozenLake.Config(size=3))
        test: Evaluate.Config = field(
            default_factory=lambda: Evaluate.Config(instances=50, samples=SAMPLES)
        )
        chance: float = 0.5
        max_turns: int = 5
        base_cache: Path = Path("bases")

    result_type = ArmResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "base_cache")

    def train(self, run):
        rng = np.random.default_rng([self.config.seed, round(100 * self.config.chance)])
        hardness = rng.random(self.config.test.instances)
        chances = np.clip(self.config.chance + 0.3 * (hardness - 0.5), 0, 1)
        successes = rng.binomial(SAMPLES, chances).tolist()
        test = TestScores(
            successes=successes,
            samples=SAMPLES,
            passes=pass_metrics(successes, [SAMPLES] * len(successes), SAMPLES),
            well_formed=1.0,
        )
        return ArmResult(test=test, rl=RlCost(env_steps=10))

    def reference_scores(self):
        return reference_policies(self.config.world, self.config.test, most_actions=100)


def reproduction(out, chances=CHANCES, **changes):
    arms = {name: Arm.Config(chance=chance) for name, chance in chances.items()}
    settings = {"first": tuple(chances), "claims": CLAIMS, "seeds": 3, **changes}
    return Reproduce.Config(arms=arms, out=out, **settings)


def run_in_this_process(monkeypatch):
    """Run jobs without a process of their own; returns the list of those that ran."""
    ran = []

    def jobs(configs, *, at_once, started, processes=None):
        for config in configs:
            started(config)
            name, seed = config.out.name.rsplit("-", 1)
            ran.append((name, int(seed)))
            config.build().run(SilentProgress())
            yield config

    monkeypatch.setattr(reproduce, "run_jobs", jobs)
    return ran


def test_jobs_run_once_and_the_first_arms_first(tmp_path, monkeypatch):
    ran = run_in_this_process(monkeypatch)
    config = reproduction(tmp_path, first=("vanilla", "spa"))
    Reproduce(config).run(lambda line: None)
    assert ran[:2] == [("vanilla", 0), ("spa", 0)] and ran[-3:] == [
        ("base", 0),
        ("base", 1),
        ("base", 2),
    ]
    Reproduce(config.replace(seeds=4)).run(lambda line: None)
    assert len(ran) == 9 + 3 and ran[-1] == ("base", 3)


def test_quick_is_the_first_arms_once_and_what_it_changes_has_a_folder_of_its_own(tmp_path):
    whole = reproduction(tmp_path / "runs", first=("vanilla", "spa"))
    quick = whole.quick()
    assert list(Reproduce(quick).jobs()) == [("vanilla", 0), ("spa", 0)] and quick.out == whole.out
    # The other claim is about an arm that is not run.
    assert quick.claims == (("spa", "vanilla", 1, False),)
    briefer = whole.replace(brief=("max_turns=7",)).quick()
    assert {arm.max_turns for arm in briefer.arms.values()} == {7}
    assert briefer.out == tmp_path / "runs_quick"


def test_the_log_says_which_job_runs_and_where_to_look(tmp_path, monkeypatch):
    run_in_this_process(monkeypatch)
    lines = []
    Reproduce(reproduction(tmp_path)).run(lines.append)
    assert lines[2].startswith("vanilla-0: started, job 2 of 9")
    assert str(tmp_path / "vanilla-0.log") in lines[2]


def test_claims_hold_with_their_interval(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    table = Reproduce(reproduction(tmp_path)).run(lambda line: None)
    first, second = table["claims"]
    assert first["verdict"] == "holds" and first["n"] == 50 and first["seeds"] == 3
    assert 0.2 < first["low"] < first["mean"] < first["high"] < 0.5
    assert second["verdict"] == "holds" and second["k"] == 8 and len(first["per_seed"]) == 3
    assert second["threshold"] == -0.05 and "Holm" in table["test"]
    scores = table["reference_scores"]
    assert 0.0 < scores["random"]["1"] < scores["random"]["8"] < scores["optimal"] == 1.0
    assert show_table(table) == {"holds"} and "fails" not in capsys.readouterr().out


def test_a_claim_that_does_not_hold_is_reported(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    config = reproduction(tmp_path, {**CHANCES, "spa": 0.1})
    table = Reproduce(config).run(lambda line: None)
    assert table["claims"][0]["verdict"] == "fails" and "fails" in show_table(table)
    assert "fails: -0." in capsys.readouterr().out


def test_one_seed_decides_nothing(tmp_path, monkeypatch, capsys):
    run_in_this_process(monkeypatch)
    table = Reproduce(reproduction(tmp_path, seeds=1)).run(lambda line: None)
    assert show_table(table) == {"undecided"} and table["claims"][0]["low"] is None


def test_a_published_table_has_its_rows_beside_it(tmp_path, monkeypatch):
    run_in_this_process(monkeypatch)
    reproduction_of = Reproduce(reproduction(tmp_path / "runs"))
    table = reproduction_of.run(lambda line: None)
    reproduction_of.write_results(tmp_path / "out/x.json", table, "terrella reproduce x")
    written = json.loads((tmp_path / "out/x.json").read_text())
    assert written["command"] == "terrella reproduce x" and "numpy" in written["versions"]
    rows = read_rows(tmp_path / "out/rows/x.json.gz")["arms"]
    back = {
        arm: {seed: InstanceRows(**job) for seed, job in seeds.items()}
        for arm, seeds in rows.items()
    }
    claims = [Claim(*claim) for claim in CLAIMS]
    assert plain(decide_claims(back, claims)) == written["claims"]


def test_a_table_does_not_take_over_jobs_of_another_config(tmp_path, monkeypatch):
    ran = run_in_this_process(monkeypatch)
    config = reproduction(tmp_path / "table", {"one": 0.5}, claims=(), seeds=1)
    Reproduce(config).run(lambda line: None)
    Reproduce(config).run(lambda line: None)
    assert ran == [("one", 0)]
    changed = config.replace(arms={"one": config.arms["one"].replace(max_turns=3)})
    with pytest.raises(StoreError, match=r"one-0.*max_turns is 5 there, 3 here"):
        Reproduce(changed).run(lambda line: None)


def test_a_table_that_was_moved_is_still_finished(tmp_path, monkeypatch):
    ran = run_in_this_process(monkeypatch)
    config = reproduction(tmp_path / "table", {"one": 0.5}, claims=(), seeds=1)
    Reproduce(config).run(lambda line: None)
    config.out.rename(tmp_path / "moved")
    Reproduce(config.replace(out=tmp_path / "moved")).run(lambda line: None)
    assert ran == [("one", 0)]


def test_scores_between_sft_and_rl_are_in_the_table(tmp_path):
    config = reproduction(tmp_path, {"one": 0.5}, claims=(), seeds=1)
    job = Reproduce(config).job_config("one", 0)
    job.out.mkdir()
    check_spec(job.out, run_spec(job, Arm.ignored))
    scores = TestScores(
        successes=[1, 0], samples=1, passes=pass_metrics([1, 0], [1, 1], 1), true_predictions=0.25
    )
    result = ArmResult(test=scores, rl=RlCost(env_steps=7), after_sft=scores)
    write_manifest(job.out, dump(job), plain(result), seconds=2.0)
    arm = Reproduce(config).write_table()["arms"]["one"]
    assert arm["after_sft"] == [{"pass@1": 0.5, "true_predictions": 0.25}]
    assert arm["env_steps"] == [7] and arm["seconds"] == [2] and arm["true_predictions"] == 0.25


class Nap(Configurable):
    """A job that records when it began and ended."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        out: Path
        seconds: float = 0.5

    def run(self, progress):
        began = time.monotonic()
        time.sleep(self.config.seconds)
        if not self.config.seconds:
            raise ValueError("could not sleep")
        sys.stdout.write("awake")
        (self.config.out.with_suffix(".times")).write_text(json.dumps([began, time.monotonic()]))


def test_as_many_jobs_run_together_as_asked(tmp_path):
    naps = [Nap.Config(out=tmp_path / f"nap-{n}") for n in range(3)]
    begun = []
    done = [
        config.out
        for config in run_jobs(naps, at_once=2, started=lambda config: begun.append(config.out))
    ]
    assert sorted(done) == begun == [config.out for config in naps]
    first, second, third = (json.loads((tmp_path / f"nap-{n}.times").read_text()) for n in range(3))
    assert second[0] < first[1] and third[0] >= min(first[1], second[1])  # two at once, never three
    assert "awake" in (tmp_path / "nap-1.log").read_text()


def test_a_job_that_fails_is_named_with_its_log_after_the_running_ones_have_ended(tmp_path):
    naps = [
        Nap.Config(out=tmp_path / f"nap-{n}", seconds=seconds)
        for n, seconds in enumerate((0.5, 0.0, 0.5))
    ]
    done = []
    with pytest.raises(EngineError, match=r"nap-1(.|\n)*could not sleep"):
        for config in run_jobs(naps, at_once=2, started=lambda config: None):
            done.append(config.out.name)
    assert done == ["nap-0"] and not (tmp_path / "nap-2.log").exists()


def test_held_out_instances_are_all_different():
    world = FrozenLake.Config(size=3)
    seeds = instance_seeds(world, Evaluate.Config(instances=100))
    built = world.build()
    names = set()
    for seed in seeds:
        built.reset(seed=seed, options={"split": "test"})
        names.add(built.instance)
    assert len(names) == 100


def test_random_and_optimal_play_have_as_many_actions_as_the_agent():
    world, chosen = FrozenLake.Config(size=3, success_rate=0.5), Evaluate.Config(instances=20)
    long, short = (reference_policies(world, chosen, most_actions=most) for most in (100, 2))
    assert long.random["1"] < long.optimal < 1.0
    assert short.random["1"] < long.random["1"] and short.optimal < long.optimal


PAPER = [name for name in all_recipes() if name.startswith("spa_")]


@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_of_the_paper_survives_disk_and_says_what_to_expect(name):
    config = all_recipes()[name]()
    assert rebuild(json.loads(json.dumps(dump(config)))) == config
    assert {"base", "vanilla", "spa"} <= set(config.arms) and (
        all_recipes()[name].__doc__ or ""
    ).strip()
    for arm in config.arms.values():
        arm.rlvr.check(processes=1)
        assert arm.world.build() is not None
    assert len(PAPER) >= 15


def test_the_table_of_jobs_that_ran_elsewhere_is_the_table_of_one_machine(tmp_path, monkeypatch):
    run_in_this_process(monkeypatch)
    config = reproduction(tmp_path / "here")
    expected = Reproduce(config).run(lambda line: None)
    for job in (tmp_path / "here").glob("*-[0-9]"):
        copy = tmp_path / "collected" / job.name
        copy.mkdir(parents=True)
        for name in ("spec.json", "manifest.json"):
            shutil.copy(job / name, copy)
    collected = config.replace(out=tmp_path / "collected")
    assert Reproduce(collected).collect() == expected

    other = collected.replace(arms={name: Arm.Config(chance=0.9) for name in CHANCES})
    with pytest.raises(StoreError, match=r"started with other settings: config\.chance"):
        Reproduce(other).collect()
    with pytest.raises(StoreError, match="has no finished job"):
        Reproduce(config.replace(out=tmp_path / "empty")).collect()


def test_two_processes_do_not_write_one_table(tmp_path):
    config = Reproduce.Config(arms={"a": Arm.Config()}, first=("a",), out=tmp_path / "runs")
    with locked(config.out), pytest.raises(StoreError, match="another process is writing here"):
        Reproduce(config).run(print)


def test_jobs_are_not_written_through_a_link(tmp_path):
    config = Reproduce.Config(arms={"a": Arm.Config()}, first=("a",), out=tmp_path / "runs")
    config.out.mkdir()
    (config.out / "a-0.log").symlink_to(tmp_path / "profile")
    with pytest.raises(StoreError, match="is a link to"):
        Reproduce(config).run(print)
    assert not (tmp_path / "profile").exists()


def test_two_processes_do_not_write_one_arm(tmp_path):
    config = Arm.Config(out=tmp_path / "spa-0")
    with locked(config.out), pytest.raises(StoreError, match="another process is writing here"):
        Arm(config).run(SilentProgress())
