"""`terrella plan`: what it plays."""

from pathlib import Path
from typing import ClassVar

import pytest

from terrella.commands.plan import Plan
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.evals.policy_eval import evaluate_policy
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.trust.certificate import Certificate
from terrella.world_models.certified import CERTIFICATE
from terrella.worlds.counter import Counter


def test_every_instance_is_played_once():
    plan = Plan(Plan.Config(world=Counter.Config(), folder=Path("nowhere"), instances=40))
    world, names = Counter.Config().build(), set()
    for seed in plan.seeds:
        world.reset(seed=seed, options={"split": Split.TEST})
        names.add(world.instance)
    assert len(names) == len(plan.seeds) == 40


def test_a_plan_tells_how_far_it_is():
    """One instance may take a minute: without a line, nothing shows that it runs."""

    class Told(SilentProgress):
        lines: ClassVar = []

        def phase(self, name, total):
            self.lines.append((name, total))

        def advance(self, done, **metrics):
            self.lines.append((done, *metrics))

    plan = Plan(Plan.Config(world=Counter.Config(), folder=Path("nowhere"), instances=3))
    found = plan._success(Random.Config().build(), Told())
    whole = evaluate_policy(
        Counter.Config().build, Random.Config().build(), seeds=plan.seeds, split=Split.TEST
    )
    assert found["mean"] == pytest.approx(sum(whole.successes) / 3)
    assert Told.lines[:2] == [("play test instances: random", 3), (0,)]
    assert Told.lines[2:] == [(done, "success") for done in (1, 2, 3)]


def test_samples_are_those_of_the_certificate(tmp_path):
    config = Plan.Config(world=Counter.Config(), folder=tmp_path)
    assert Plan(config).samples == 1  # there is no certificate
    made = {"certified": False, "reasons": [], "safe_horizon": 0, "risk": {}}
    for found in (8, 0, 257, True, "8", None):
        Certificate({**made, "about": {"samples": found}}).save(tmp_path / CERTIFICATE)
        if found == 8:
            assert Plan(config).samples == 8
            assert Plan(config.replace(samples=3)).samples == 3
        else:
            with pytest.raises(ConfigError, match="samples per query"):
                _ = Plan(config).samples


@pytest.mark.parametrize("assignment", ["instances=0", "samples=-1", "planner.depth=0"])
def test_a_plan_of_nothing_is_refused_by_name(assignment):
    config = Plan.Config(world=Counter.Config(), folder=Path("nowhere"))
    with pytest.raises(ConfigError) as error:
        override(config, [assignment])
    assert error.value.where == assignment.partition("=")[0]
