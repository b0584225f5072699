"""Several worlds in one run: names, shares, limits."""

import pytest

from terrella.core.errors import ConfigError
from terrella.pipelines.several_worlds import OtherWorld, named_worlds, split_among
from terrella.pipelines.spa.pipeline import Spa
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

LAKE, COUNTER = (OtherWorld(world=world.Config()) for world in (FrozenLake, Counter))


def test_a_world_whose_name_is_taken_gets_a_number():
    assert list(named_worlds(LAKE, (COUNTER, LAKE))) == ["frozen_lake", "counter", "frozen_lake-2"]


def test_nothing_of_a_total_is_lost():
    worlds = named_worlds(LAKE, (COUNTER.replace(share=2), LAKE))
    assert split_among(worlds, 10) == {"frozen_lake": 3, "counter": 5, "frozen_lake-2": 2}
    assert split_among(named_worlds(LAKE, ()), 7) == {"frozen_lake": 7}


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="share: is 0"):
        OtherWorld(world=Counter.Config(), share=0)


def test_bases_of_other_worlds_are_other_bases():
    alone = Spa.Config(world=LAKE.world)
    mixed = alone.replace(others=(COUNTER,))
    more = alone.replace(others=(COUNTER.replace(share=2),))
    assert len({Spa(each).base_name() for each in (alone, mixed, more)}) == 3


def test_each_world_of_an_spa_run_keeps_its_own_limits():
    config = Spa.Config(
        world=LAKE.world,
        max_turns=3,
        max_actions=2,
        others=(OtherWorld(world=Counter.Config(), max_turns=7, max_actions=4),),
    )
    source = Spa(config).episode_source()
    limits = [each.source.rollout for each in source.tasks.worlds]
    assert [(each.max_turns, each.max_actions) for each in limits] == [(3, 2), (7, 4)]
    assert [each.source.codec.max_actions for each in source.tasks.worlds] == [2, 4]
    assert all(each.source.shaping is not None for each in source.tasks.worlds)


def test_an_spa_run_without_a_test_is_refused():
    config = Spa.Config(world=LAKE.world)
    with pytest.raises(ConfigError, match="instances: is 0"):
        config.replace(test=config.test.replace(instances=0))
