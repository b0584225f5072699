"""Ranks against hand-computed values; horizons of models that lie from some depth on."""

import numpy as np
import pytest
from tests.support.made_models import Lying, by_chance

from terrella.core.episode import play
from terrella.core.types import Split
from terrella.policies.basic import Random
from terrella.trust.horizon import closed_loop, mean_row, open_loop, safe_horizon
from terrella.trust.ranking import compare_rankings, kendall, ranks, spearman
from terrella.trust.truth import NoChange, TrueModel
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


def test_ranks_and_correlations_by_hand():
    assert list(ranks(np.array([3.0, 1.0, 3.0, 2.0]))) == [3.5, 1.0, 3.5, 2.0]
    a, b = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    assert spearman(a, b) == pytest.approx(0.8) and kendall(a, b) == pytest.approx(0.6)
    assert spearman(a, -a) == pytest.approx(-1.0) and np.isnan(spearman(a, np.ones(5)))


def test_inversions_are_listed_with_whether_they_matter():
    rng = np.random.default_rng(0)
    real = np.stack([rng.normal(mean, 0.1, 50) for mean in (0.0, 0.5, 0.51)])
    imagined = np.stack([rng.normal(mean, 0.1, 50) for mean in (0.9, 0.6, 0.5)])
    found = compare_rankings(["bad", "good", "best"], real, imagined, seed=0)
    pairs = {(pair["better"], pair["worse"]): pair["beyond_chance"] for pair in found["inversions"]}
    assert pairs[("good", "bad")] and pairs[("best", "bad")] and found["spearman"]["value"] == pytest.approx(-1.0)
    assert found["spearman"]["low"] <= found["spearman"]["value"] <= found["spearman"]["high"]


def episodes_of(world, count=30):
    return [play(world, Random.Config().build(), seed=seed, split=Split.TEST) for seed in range(count)]


def test_the_truth_is_exact_at_every_depth_chance_included():
    world = FrozenLake.Config(size=3, success_rate=0.5).build()
    episodes = episodes_of(world)
    for loop in (open_loop, closed_loop):
        values = loop(TrueModel(world), episodes, world, 6)
        assert len(values[0]) == 30 > len(values[5]) > 0
        assert min(map(min, values)) > 0.99  # branches that are too light are dropped
    assert np.mean(open_loop(NoChange(), episodes, world, 1)[0]) < 0.6


def test_a_model_that_lies_late_is_good_early_and_its_safe_horizon_says_so():
    world = Counter.Config().build()
    episodes = episodes_of(world, 60)
    model = Lying(world, lambda question: len(question.situation.history) >= 3)
    rows = [mean_row(values) for values in open_loop(model, episodes, world, 6)]
    assert [row["mean"] for row in rows[:3]] == [1.0, 1.0, 1.0] and rows[3]["mean"] < 0.2
    assert safe_horizon(rows, error=0.1, least=10) == 3
    assert safe_horizon(rows, error=0.1, least=100) == 0  # too few episodes to say so


def test_small_errors_add_up_in_the_open_loop_only():
    world = Counter.Config().build()
    episodes = episodes_of(world, 100)
    model = Lying(world, by_chance(0.1))
    opened, closed = (loop(model, episodes, world, 5) for loop in (open_loop, closed_loop))
    assert np.mean(closed[4]) > 0.8 and np.mean(closed[4]) > np.mean(opened[4]) + 0.05
