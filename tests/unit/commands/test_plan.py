"""`terrella plan`: what it plays."""

from pathlib import Path

import pytest

from terrella.commands.plan import Plan
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.types import Split
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
