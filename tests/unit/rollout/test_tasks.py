"""Tasks by number: which instances a run plays."""

from collections import Counter

import pytest

from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.pipelines.rlvr import Rlvr
from terrella.rollout.source import WorldTasks
from terrella.rollout.tasks import EvenTasks
from terrella.worlds.frozen_lake import FrozenLake

LAKE = FrozenLake.Config(size=3, hole_rate=0.1)


def instances_of(tasks, count):
    world = LAKE.build()
    names = []
    for task in map(tasks, range(count)):
        world.reset(seed=task.seed, options={"split": task.split})
        names.append(world.instance)
    return names


def test_even_tasks_play_every_instance_once_before_any_again_and_in_another_order():
    tasks = EvenTasks(LAKE, 60)
    played = instances_of(tasks, 180)
    rounds = [played[first : first + 60] for first in (0, 60, 120)]
    assert all(len(set(each)) == 60 for each in rounds)
    assert set(rounds[0]) == set(rounds[1]) and rounds[0] != rounds[1]


def test_drawn_as_the_world_does_a_few_instances_are_most_of_what_is_played():
    drawn = Counter(instances_of(WorldTasks(world=LAKE).make(), 400))
    assert sum(count for _, count in drawn.most_common(50)) > 120


def test_a_world_with_fewer_instances_plays_all_that_it_has():
    tiny = FrozenLake.Config(size=2, hole_rate=0.0)
    assert 0 < len(EvenTasks(tiny, 500).seeds) < 50


def test_validation_is_drawn_as_the_world_does():
    """So that metrics of runs with and without it are over the same instances."""
    even, plain = (
        WorldTasks(world=LAKE, train_instances=count, split=Split.VALIDATION).make()
        for count in (60, 0)
    )
    assert [even(i).seed for i in range(20)] == [plain(i).seed for i in range(20)]


def test_a_world_model_has_no_instances_to_play():
    with pytest.raises(ConfigError, match="train_instances"):
        Rlvr(Rlvr.Config(world=LAKE, ask="observation", train_instances=10))
