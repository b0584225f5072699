"""Ranks and correlations against hand-computed values; intervals against a binomial; inversions."""

import math

import numpy as np
import pytest

from terrella.trust import ranking
from terrella.trust.ranking import compare_rankings, kendall, pearson, ranks, spearman


@pytest.fixture
def few(monkeypatch):
    """Resamples cost time; what is not about intervals needs no thousand of them."""
    monkeypatch.setattr(ranking, "RESAMPLES", 20)


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
    assert (
        pairs[("good", "bad")]
        and pairs[("best", "bad")]
        and found["spearman"]["value"] == pytest.approx(-1.0)
    )
    assert found["spearman"]["low"] <= found["spearman"]["value"] <= found["spearman"]["high"]


def test_correlations_with_ties_by_hand():
    a, b = np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 3])
    # 4 pairs agree, none disagrees, each side has one tie among 6 pairs: 4 / sqrt(5 * 5)
    assert kendall(a, b) == pytest.approx(0.8)
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3.5, 3.5: covariance 3.75, both variances 4.5 (times n)
    assert spearman(a, b) == pytest.approx(3.75 / 4.5)
    # values: deviations -1, 0, 0, 1 and -1.25, -0.25, 0.75, 0.75
    assert pearson(a, b) == pytest.approx(2 / math.sqrt(2 * 2.75))
    flat = np.ones(4)
    assert all(
        np.isnan(measure(*pair))
        for measure in (kendall, spearman, pearson)
        for pair in ((a, flat), (flat, a))
    )


def test_a_comparison_reports_each_policy_and_the_distance_between_the_two_worlds(few):
    found = compare_rankings(
        ["a", "b", "c"],
        real=[[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]],
        imagined=[[0.5, 1.5], [0.5, 0.5], [0.0, 0.0]],
        seed=0,
    )
    assert (found["instances"], found["pairs"]) == (2, 3)
    assert found["mean_absolute_error"] == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    first = found["policies"][0]
    assert (first["policy"], first["real"], first["imagined"]) == ("a", 0.5, 1.0)
    assert first["real_interval"] == pytest.approx([0.5 - 12.7062 / 2, 0.5 + 12.7062 / 2])
    assert first["imagined_interval"] == pytest.approx([1.0 - 12.7062 / 2, 1.0 + 12.7062 / 2])


@pytest.mark.parametrize("seed", range(2))
def test_the_interval_of_a_correlation_leaves_out_one_fortieth_on_either_side(seed):
    """Two policies: any correlation is 1 or -1.

    Imagination turns them round in 3.9% of the resamples: inside.
    """
    turned = sum(math.comb(75, wins) * 0.6**wins * 0.4 ** (75 - wins) for wins in range(38))
    assert 0.035 < turned < 0.043
    real, won = np.stack([np.zeros(75), np.ones(75)]), np.repeat([1.0, -1.0], [45, 30])
    found = compare_rankings(["a", "b"], real, np.stack([np.zeros(75), won]), seed=seed)
    for measure in ("pearson", "spearman", "kendall"):
        assert [found[measure][name] for name in ("value", "low", "high")] == pytest.approx(
            [1.0, -1.0, 1.0]
        )
    found = compare_rankings(["a", "b"], real, np.stack([np.zeros(75), -won]), seed=seed)
    for measure in ("pearson", "spearman", "kendall"):
        assert [found[measure][name] for name in ("value", "low", "high")] == pytest.approx(
            [-1.0, -1.0, 1.0]
        )


@pytest.mark.parametrize("seed", range(2))
def test_what_happens_once_in_a_hundred_resamples_is_outside_the_interval(seed):
    real, won = np.stack([np.zeros(75), np.ones(75)]), np.repeat([1.0, -1.0], [49, 26])
    assert sum(math.comb(75, n) * (49 / 75) ** n * (26 / 75) ** (75 - n) for n in range(38)) < 0.01
    assert (
        compare_rankings(["a", "b"], real, np.stack([np.zeros(75), won]), seed=seed)["kendall"][
            "low"
        ]
        == 1.0
    )


def test_where_nothing_differs_there_is_no_correlation(few):
    same = np.ones((3, 10))
    found = compare_rankings(["a", "b", "c"], same, same, seed=0)
    assert (
        found["spearman"] == {"value": None, "low": None, "high": None}
        and found["inversions"] == []
    )


def test_an_inversion_names_the_better_by_the_real_world_and_both_differences(few):
    real, imagined = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], [[0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]
    expected = {
        "better": "b",
        "worse": "a",
        "real_difference": 1.0,
        "imagined_difference": -0.25,
        "beyond_chance": True,
    }
    assert compare_rankings(["a", "b"], real, imagined, seed=0)["inversions"] == [expected]
    assert compare_rankings(["b", "a"], real[::-1], imagined[::-1], seed=0)["inversions"] == [
        expected
    ]


def inversions(real, imagined):
    return compare_rankings(["a", "b"], real, imagined, seed=0)["inversions"]


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_an_inversion_within_chance_says_so(few, scale):
    real = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 1.5]]) * scale
    (found,) = inversions(real, [[0.3] * 3, [0.1] * 3])
    assert not found["beyond_chance"] and found["better"] == "b"
    (found,) = inversions(real[::-1], [[0.1] * 3, [0.3] * 3])
    assert not found["beyond_chance"] and found["better"] == "a"


def test_a_tie_in_either_world_is_no_inversion(few):
    assert inversions([[0.0, 2.0, 0.0], [1.0, 0.0, 1.5]], [[0.3] * 3, [0.3] * 3]) == []
    assert inversions([[1.0, 0.0], [0.0, 1.0]], [[0.3] * 2, [0.1] * 2]) == []


def test_a_tie_that_resampling_breaks_still_has_no_correlation(few):
    found = compare_rankings(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], seed=0)
    assert found["kendall"] == {"value": None, "low": None, "high": None}


def test_every_pair_is_looked_at_once(few):
    real = [[0.0] * 3, [1.0] * 3, [2.0] * 3]
    found = compare_rankings(["a", "b", "c"], real, [[2.0] * 3, [1.0] * 3, [0.0] * 3], seed=0)
    assert [(pair["better"], pair["worse"]) for pair in found["inversions"]] == [
        ("b", "a"),
        ("c", "a"),
        ("c", "b"),
    ]
