"""Worlds: Gymnasium's own checker accepts them, seeds mean what they say, forks are independent."""

import warnings
from collections import Counter as Count_
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from terrella.core.errors import ConfigError, WorldError
from terrella.core.gym_world import GymWorld
from terrella.core.instances import split_of
from terrella.core.types import Outcome, Split, State, Text
from terrella.verify.text import Exact
from terrella.worlds.counter import Count, Counter


class Slippery(Counter):
    """A counter whose presses do nothing half of the time."""

    def outcomes(self, state, action):
        done = super().outcomes(state, action)[0]
        return [replace(done, probability=0.5), Outcome(state=state, probability=0.5)]


class Echo(Counter):
    """Takes free text; the goal is to say it."""

    def legal(self, state):
        return ()

    def outcomes(self, state, action):
        said = action == str(state.goal)
        return [Outcome(state=state, terminated=said, success=said)]


def newest(env_id):
    """Gymnasium warns about an old version of an env; which one is new depends on its own."""
    return max(
        known for known in gymnasium.registry if known.startswith(env_id.partition("-v")[0] + "-v")
    )


class Lake(GymWorld):
    env_id, action_names = newest("FrozenLake-v1"), ("Left", "Down", "Right", "Up")
    verifier = Exact.Config().build()

    def show(self, native):
        return Text(f"cell {native}")

    def succeeded(self, reward, terminated, info):
        return terminated and reward > 0


class Taxi(GymWorld):
    env_id, action_names = (
        newest("Taxi-v3"),
        ("South", "North", "East", "West", "Pickup", "Dropoff"),
    )
    verifier = Exact.Config().build()

    def show(self, native):
        return State.of([int(part) for part in self.env.unwrapped.decode(native)])

    def succeeded(self, reward, terminated, info):
        return terminated


class Pole(GymWorld):
    env_id, action_names = "CartPole-v1", ("Left", "Right")
    verifier = Exact.Config().build()

    def show(self, native):
        return State.of([round(float(x), 6) for x in native])

    def succeeded(self, reward, terminated, info):
        return not terminated and self.played >= self.config.max_steps


ALL = [Counter, Slippery, Echo, Lake, Taxi, Pole]
WRAPPED = [Lake, Taxi, Pole]


def walk(world, steps=8, **reset):
    """Everything that is seen on a fixed walk, to its end."""
    seen = [world.reset(**reset)]
    names = world.actions() or ("x",)
    for i in range(steps):
        seen.append(world.step(names[(i * i + 1) % len(names)]))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


@pytest.mark.parametrize("world", ALL)
def test_gymnasium_accepts_it(world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about text spaces; what it refuses, it raises
        check_env(world.Config().build(), skip_render_check=True)


@pytest.mark.parametrize("world", ALL)
def test_same_seeds_same_walk_in_another_world_and_again_in_this_one(world):
    one, two = world.Config().build(), world.Config().build()
    first = walk(one, seed=5, options={"noise_seed": 2})
    assert walk(two, seed=5, options={"noise_seed": 2}) == first
    walk(one, seed=6)
    assert walk(one, seed=5, options={"noise_seed": 2}) == first


@pytest.mark.parametrize("world", [Slippery, Lake])
def test_noise_is_apart_from_the_instance(world):
    built = world.Config(max_steps=30).build()
    walks = [walk(built, 20, seed=0, options={"noise_seed": k}) for k in range(20)]
    assert (
        len({seen[0][0] for seen in walks}) == 1
        and len({seen[0][1]["instance"] for seen in walks}) == 1
    )
    assert len({tuple(step[0] for step in seen) for seen in walks}) > 3


def test_noise_follows_the_stated_probabilities():
    world = Slippery.Config(max_steps=1).build()
    moved = Count_()
    for noise_seed in range(2000):
        world.reset(seed=1, options={"noise_seed": noise_seed})
        moved[world.step("up")[4]["effective"]] += 1
    assert moved[True] == pytest.approx(1000, abs=4 * np.sqrt(500))


def test_a_reset_without_a_seed_goes_on_to_new_instances():
    world = Counter.Config().build()
    world.reset(seed=0)
    drawn = {world.reset()[1]["seed"] for _ in range(10)}
    world.reset(seed=0)
    assert len(drawn) == 10 and world.reset()[1]["seed"] in drawn


@pytest.mark.parametrize("world", [Counter, Taxi])
@pytest.mark.parametrize("split", Split)
def test_the_split_is_respected(world, split):
    built = world.Config().build()
    for seed in range(20):
        _, info = built.reset(seed=seed, options={"split": split})
        assert split_of(info["instance"]) is split and info["split"] == split.value
        assert world.Config(split=split).build().reset(seed=seed)[1]["instance"] == info["instance"]


def test_a_split_without_instances_says_so():
    world = Lake.Config(
        split=Split.TEST
    ).build()  # it has one initial state, which is a train instance
    with pytest.raises(WorldError, match="no test instance in 2000 draws"):
        world.reset(seed=0)


@pytest.mark.parametrize(
    "options", [{"splitt": "test"}, {"split": "tset"}, {"split": "test", "sead": 1}]
)
def test_a_wrong_reset_option_is_named(options):
    with pytest.raises(ConfigError, match=r"splitt|tset|sead"):
        Counter.Config().build().reset(seed=0, options=options)


@pytest.mark.parametrize("world", ALL)
def test_no_step_before_the_first_reset_or_after_the_end(world):
    built = world.Config(max_steps=2).build()
    with pytest.raises(WorldError, match="call reset first"):
        built.step("x")
    built.reset(seed=0)
    assert built.step("nonsense")[2:4] == (False, False)
    observation, _, terminated, truncated, info = built.step("nonsense")
    assert (terminated, truncated) == (False, True) and not info["success"]
    with pytest.raises(WorldError, match="after the end"):
        built.step("x")
    assert built.reset(seed=0)[0] == observation


def test_winning_on_the_last_step_is_terminated_not_truncated():
    world = Counter.Config(max_steps=1).build()
    world.reset(seed=0)
    world._state = Count(4, 5)
    observation, reward, terminated, truncated, info = world.step("up")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert observation == State.of({"goal": 5, "value": 5})


@pytest.mark.parametrize("world", [Counter, Taxi])
def test_an_unknown_action_changes_nothing_and_is_marked(world):
    built = world.Config().build()
    before, _ = built.reset(seed=0)
    after, _, _, _, info = built.step("jump")
    assert after == before and info == {"valid": False, "effective": False, "success": False}


def test_free_text_is_always_valid():
    world = Echo.Config().build()
    world.reset(seed=0)
    assert world.step("hello")[4]["valid"]
    assert world.step(str(world.state.goal))[2:] == (
        True,
        False,
        {"valid": True, "effective": False, "success": True},
    )


@pytest.mark.parametrize("world", ALL)
def test_a_fork_goes_its_own_way_with_the_same_luck(world):
    built = world.Config(max_steps=12).build()
    for seed in range(6):
        built.reset(seed=seed, options={"noise_seed": seed})
        names = built.actions() or ("x", "y")
        if built.step(names[1])[2] or built.step("nonsense")[2]:
            continue
        here, twin = built._observe(), built.fork()
        ahead = [twin.step(names[i % len(names)]) for i in range(4) if not twin._over]
        assert built._observe() == here and built.steps == 2
        assert [built.step(names[i % len(names)]) for i in range(4) if not built._over] == ahead


def test_a_fork_of_a_finished_episode_is_finished():
    for world in (Counter, Taxi):
        built = world.Config(max_steps=1).build()
        built.reset(seed=0)
        built.step("x")
        with pytest.raises(WorldError, match="after the end"):
            built.fork().step("x")


@pytest.mark.parametrize("world", [Counter, Taxi])
def test_resetting_a_fork_does_not_move_the_original(world):
    built, reference = world.Config().build(), world.Config().build()
    built.reset(seed=4)
    reference.reset(seed=4)
    built.fork().reset()
    assert built.reset()[1] == reference.reset()[1]


@pytest.mark.parametrize("world", [Counter, Taxi])
def test_there_is_nothing_to_fork_before_reset(world):
    with pytest.raises(WorldError, match="call reset first"):
        world.Config().build().fork()


def test_a_wrapped_env_ends_when_its_own_rules_say_so():
    world = Pole.Config(max_steps=1000).build()
    world.reset(seed=0)
    while True:
        _, _, terminated, truncated, _ = world.step("Left")
        if terminated or truncated:
            break
    assert terminated and world.steps < 30


def test_the_time_limit_of_a_wrapped_env_is_ours_and_a_truncation():
    world = Lake.Config(
        max_steps=150, options={"is_slippery": False}
    ).build()  # the env itself would stop at 100
    world.reset(seed=0)
    steps = [world.step("Left") for _ in range(150)]
    assert [step[2] for step in steps] == [False] * 150
    assert [step[3] for step in steps] == [False] * 149 + [True]


def test_options_reach_the_wrapped_env():
    world = Lake.Config(options={"is_slippery": False}).build()
    for noise_seed in range(5):
        world.reset(seed=0, options={"noise_seed": noise_seed})
        assert [world.step("Right")[0] for _ in range(2)] == [Text("cell 1"), Text("cell 2")]


@pytest.mark.parametrize("world", ALL)
def test_a_world_says_what_it_is(world):
    built = world.Config().build()
    built.reset(seed=0)
    assert world.name == world.__name__.lower()
    assert all(name in built.instruction for name in built.actions())
    with pytest.raises(ConfigError, match="no view 'painting'"):
        world.Config(view="painting").build()
    with pytest.raises(ConfigError, match="max_steps"):
        world.Config(max_steps=0)


def test_a_world_without_an_expert_says_so():
    world = Lake.Config().build()
    world.reset(seed=0)
    with pytest.raises(WorldError, match="has no expert"):
        world.expert(None, 3, np.random.default_rng(0))


def test_the_exact_truth_includes_illegal_actions():
    world = Slippery.Config().build()
    world.reset(seed=0)
    state = world.state
    assert world.truth(state, "jump") == (Outcome(state=state),)
    assert sum(result.probability for result in world.truth(state, "up")) == 1.0
    assert world.state == state


def test_an_env_that_gymnasium_does_not_have_is_named_with_what_to_do():
    class Nowhere(Lake):
        env_id = "NoSuchEnv-v0"

    with pytest.raises(ConfigError, match="NoSuchEnv"):
        Nowhere.Config().build()
