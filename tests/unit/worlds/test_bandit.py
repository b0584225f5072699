"""Bandit: exact probabilities, one pull, mirror images in one split, noise apart from instances."""

from itertools import pairwise

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Split, State, Text
from terrella.policies.basic import Expert, Random
from terrella.worlds import find_world
from terrella.worlds.bandit import Bandit
from terrella.worlds.bandit.names import BOLD, STEADY
from terrella.worlds.bandit.views import Offer


def all_offers():
    return [Offer(pair) for s in STEADY for b in BOLD for pair in ((s, b), (b, s))]


def test_there_are_enough_names_and_no_duplicates():
    assert min(len(STEADY), len(BOLD)) >= 16
    assert len({*STEADY, *BOLD}) == len(STEADY) + len(BOLD)


def test_both_orders_of_two_arms_are_one_instance_in_one_split():
    world = Bandit.Config().build()
    names = {instance_id(world.key(offer)) for offer in all_offers()}
    assert len(names) == len(STEADY) * len(BOLD)
    assert {split_of(name) for name in names} == set(Split)


def test_both_orders_are_drawn_and_splits_share_no_pair():
    world = Bandit.Config().build()
    pairs = {split: set() for split in Split}
    bold_first = 0
    for split, seen in pairs.items():
        for seed in range(200):
            world.reset(seed=seed, options={"split": split})
            seen.add(frozenset(world.state.arms))
            bold_first += world.state.arms[0] in BOLD
    assert 250 < bold_first < 350  # of 600
    assert all(not a & b for a, b in pairwise([*pairs.values(), pairs[Split.TRAIN]]))


def test_the_exact_probabilities_agree_with_playing():
    world = Bandit.Config().build()
    n = 3000
    world.reset(seed=0)
    bold = world.expert(world.state, 1, np.random.default_rng(0))
    paid = {round(o.probability, 9): o.reward for o in world.truth(world.state, bold)}
    assert paid == {0.25: 1.0, 0.75: 0.0}
    mean = np.mean(
        [play(world, Expert.Config().build(), seed=0, noise_seed=k).total_reward for k in range(n)]
    )
    assert abs(mean - 0.25) < 4 * (0.25 * 0.75 / n) ** 0.5


def test_a_steady_arm_pays_the_same_each_time_and_is_not_a_success():
    world = Bandit.Config(low=0.15).build()
    for noise_seed in range(20):
        world.reset(seed=0, options={"noise_seed": noise_seed})
        steady = next(arm for arm in world.actions() if arm in STEADY)
        _, reward, terminated, truncated, info = world.step(steady)
        assert (reward, terminated, truncated, info["success"]) == (0.15, True, False, False)


def test_group_members_share_the_offer_and_differ_in_luck():
    world = Bandit.Config().build()
    group = [play(world, Expert.Config().build(), seed=0, noise_seed=k) for k in range(30)]
    assert len({episode.first for episode in group}) == 1
    assert {episode.total_reward for episode in group} == {0.0, 1.0}
    assert all(episode.success for episode in group)  # choosing well is the success, not luck
    assert group[3] == play(world, Expert.Config().build(), seed=0, noise_seed=3)


def test_random_wins_half_and_the_best_policy_always():
    world = Bandit.Config().build()
    world.reset(seed=0)
    assert world.solver.random_value(world.state, 1) == 0.5
    assert world.solver.best_value(world.state, 1) == 1.0
    wins = sum(play(world, Random.Config().build(), seed=seed).success for seed in range(1000))
    assert abs(wins / 1000 - 0.5) < 4 * (0.25 / 1000) ** 0.5
    assert all(play(world, Expert.Config().build(), seed=seed).success for seed in range(200))


@pytest.mark.parametrize("action", ["", "no such arm", BOLD[0], "a" * 5000])
def test_an_arm_that_is_not_on_offer_uses_up_the_pull(action):
    world = Bandit.Config().build()
    world.reset(seed=next(s for s in range(50) if BOLD[0] not in world.reset(seed=s)[0].text))
    before = world.state
    _, reward, terminated, truncated, info = world.step(action)
    assert (world.state, reward, terminated, truncated) == (before, 0.0, True, False)
    assert info == {"valid": False, "effective": False, "success": False}


def test_every_offer_and_every_result_reads_back():
    world = Bandit.Config(low=0, high=3).build()
    for offer in all_offers()[::7]:
        results = [o.state for arm in offer.arms for o in world.truth(offer, arm)]
        assert len(results) == 3
        for state in (offer, *results):
            assert world.view.read(world.view.show(state)) == state


def test_other_offers_are_not_read():
    view, s, b = Bandit.Config().build().view, STEADY[0], BOLD[0]
    fields = [
        {"arms": [s, b], "pulled": None},
        {"arms": [s, "x"], "pulled": None, "paid": None},
        {"arms": [b, b], "pulled": None, "paid": None},
        {"arms": [s, b], "pulled": s, "paid": 1.0},
        {"arms": [s, b], "pulled": BOLD[1], "paid": 1.0},
        {"arms": [s, b], "pulled": None, "paid": 0.1},
        [],
        None,
    ]
    texts = ["not json", "[" * 100_000, '{"arms": NaN}', "1" * 5000]
    bad = [*map(State.of, fields), *map(State, texts), Text("{}")]
    assert [view.read(observation) for observation in bad] == [None] * len(bad)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_reading_never_raises(text):
    assert Bandit.Config().build().view.read(State(text)) is None


def test_gymnasium_accepts_it_and_discovery_finds_it():
    for _ in range(5):  # the checker samples actions: most name arms that are not on offer
        check_env(Bandit.Config().build(), skip_render_check=True)
    assert find_world("bandit") is Bandit


@pytest.mark.parametrize(
    "bad", [{"chance": 0.0}, {"chance": 1.5}, {"low": 0.3}, {"low": -0.1}, {"high": float("inf")}]
)
def test_configs_in_which_the_bold_arm_is_not_better_are_rejected(bad):
    with pytest.raises(ConfigError):
        Bandit.Config(**bad)
    assert len(Bandit.Config(chance=1.0).build().truth(Offer((STEADY[0], BOLD[0])), BOLD[0])) == 1
