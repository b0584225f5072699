"""`terrella plan`: what it plays."""

from pathlib import Path

from terrella.commands.plan import Plan
from terrella.core.types import Split
from terrella.worlds.counter import Counter


def test_every_instance_is_played_once():
    plan = Plan(Plan.Config(world=Counter.Config(), folder=Path("nowhere"), instances=40))
    world, names = Counter.Config().build(), set()
    for seed in plan.seeds:
        world.reset(seed=seed, options={"split": Split.TEST})
        names.add(world.instance)
    assert len(names) == len(plan.seeds) == 40
