"""The table: jobs are run once, claims are judged on paired instances, and what does not hold is said."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.config import Configurable, dump, load
from terrella.core.errors import EngineError, StoreError
from terrella.data.store import locked
from terrella.recipes import all_recipes
from terrella.recipes.spa.paper import CLAIMS
from terrella.show.progress import SilentProgress
from terrella.stages import reproduce
from terrella.stages.evaluate import Evaluate, instance_seeds, known_policies, pass_figures
from terrella.stages.jobs import run_jobs
from terrella.stages.reproduce import Reproduce
from terrella.stages.reproduce_report import show_table
from terrella.stages.spa import Spa
from terrella.worlds.frozen_lake import FrozenLake

SAMPLES = 8
CHANCES = {"base": 0.2, "vanilla": 0.25, "spa": 0.6}


def reproduction(tmp_path, **changes):
    arm = Spa.Config(world=FrozenLake.Config(size=3), evaluate=Evaluate.Config(instances=50, samples=SAMPLES))
    plan = {"first": tuple(CHANCES), "claims": CLAIMS, **changes}
    return Reproduce.Config(arms=dict.fromkeys(CHANCES, arm), seeds=3, out=tmp_path, **plan)


def pretend(monkeypatch, chances=CHANCES):
    """Jobs that leave a manifest at once; returns the list of those that ran."""
    ran = []

    def jobs(configs, *, at_once, started):
        for config in configs:
            started(config)
            job(config)
            yield config

    def job(config):
        name, seed = config.out.name.rsplit("-", 1)
        ran.append((name, int(seed)))
        rng = np.random.default_rng(int(seed))
        hardness = rng.random(50)
        right = rng.binomial(SAMPLES, np.clip(chances[name] + 0.3 * (hardness - 0.5), 0, 1)).tolist()
        test = {"successes": right, "samples": SAMPLES, "pass": pass_figures(right, SAMPLES), "well_formed": 1.0}
        config.out.mkdir(parents=True)
        manifest = {"test": test, "rl": {"world_steps": 10}, "learnt": {}, "seconds": 1.0}
        (config.out / "manifest.json").write_text(json.dumps(manifest))

    monkeypatch.setattr(reproduce, "run_jobs", jobs)
    return ran


def test_jobs_run_once_and_the_first_arms_first(tmp_path, monkeypatch):
    ran = pretend(monkeypatch)
    config = reproduction(tmp_path, first=("vanilla", "spa"))
    Reproduce(config).run(lambda line: None)
    assert ran[:2] == [("vanilla", 0), ("spa", 0)] and ran[-3:] == [("base", 0), ("base", 1), ("base", 2)]
    Reproduce(config.replace(seeds=4)).run(lambda line: None)
    assert len(ran) == 9 + 3 and ran[-1] == ("base", 3)


def test_quick_is_the_first_arms_once_and_what_it_changes_has_a_folder_of_its_own(tmp_path):
    whole = reproduction(tmp_path / "runs", first=("vanilla", "spa"))
    quick = whole.quick()
    assert list(Reproduce(quick).jobs()) == [("vanilla", 0), ("spa", 0)] and quick.out == whole.out
    assert quick.claims == (("spa", "vanilla", 1, False),)  # the other one is about an arm that is not run
    briefer = whole.replace(brief=("budget=7",)).quick()
    assert {arm.budget for arm in briefer.arms.values()} == {7} and briefer.out == tmp_path / "runs_quick"


def test_one_is_told_which_job_runs_and_where_to_look(tmp_path, monkeypatch):
    pretend(monkeypatch)
    told = []
    Reproduce(reproduction(tmp_path)).run(told.append)
    assert told[2].startswith("vanilla-0: started, job 2 of 9") and str(tmp_path / "vanilla-0.log") in told[2]


def test_claims_hold_with_their_interval(tmp_path, monkeypatch, capsys):
    pretend(monkeypatch)
    table = Reproduce(reproduction(tmp_path)).run(lambda line: None)
    first, second = table["claims"]
    assert first["holds"] and 0.2 < first["low"] < first["mean"] < first["high"] < 0.5 and first["n"] == 50
    assert second["holds"] and second["k"] == 8 and len(first["per_seed"]) == 3
    assert 0.0 < table["known"]["random"]["1"] < table["known"]["random"]["8"] < table["known"]["optimal"] == 1.0
    assert show_table(table) and "NOT" not in capsys.readouterr().out


def test_what_is_not_there_is_said(tmp_path, monkeypatch, capsys):
    pretend(monkeypatch, {**CHANCES, "spa": 0.2})
    table = Reproduce(reproduction(tmp_path)).run(lambda line: None)
    assert not table["claims"][0]["holds"] and not show_table(table)
    assert "NOT REPRODUCED" in capsys.readouterr().out


class Nap(Configurable):
    """A stage that says when it began and ended."""

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
    done = [config.out for config in run_jobs(naps, at_once=2, started=lambda config: begun.append(config.out))]
    assert sorted(done) == begun == [config.out for config in naps]
    first, second, third = (json.loads((tmp_path / f"nap-{n}.times").read_text()) for n in range(3))
    assert second[0] < first[1] and third[0] >= min(first[1], second[1])  # two at once, never three
    assert "awake" in (tmp_path / "nap-1.log").read_text()


def test_a_job_that_dies_is_named_with_its_last_words_after_those_that_run_have_ended(tmp_path):
    naps = [Nap.Config(out=tmp_path / f"nap-{n}", seconds=seconds) for n, seconds in enumerate((0.5, 0.0, 0.5))]
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
    known = known_policies(world.replace(success_rate=0.5), Evaluate.Config(instances=20))
    assert known["random"]["1"] < known["optimal"] < 1.0


PAPER = [name for name in all_recipes() if name.startswith("spa_")]


@pytest.mark.parametrize("name", PAPER)
def test_every_recipe_of_the_paper_survives_disk_and_says_what_to_expect(name):
    config = all_recipes()[name]()
    assert load(json.loads(json.dumps(dump(config)))) == config
    assert {"base", "vanilla", "spa"} <= set(config.arms) and (all_recipes()[name].__doc__ or "").strip()
    for arm in config.arms.values():
        arm.rlvr.check()
        assert arm.world.build() is not None
    assert len(PAPER) >= 15


def test_two_processes_do_not_write_one_arm(tmp_path):
    with locked(tmp_path / "spa-0"), pytest.raises(StoreError, match="another process is writing here"):
        Spa(Spa.Config(world=FrozenLake.Config(size=3), out=tmp_path / "spa-0")).run(SilentProgress())
