"""Intervals against published values, and against what they promise: coverage."""

import math

import numpy as np
import pytest

from terrella.core.stats import mean_interval, student_t95, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (7, 10, 0.3968, 0.8922), (81, 263, 0.2553, 0.3662)],
)  # the last is Newcombe (1998), table I
def test_wilson_matches_published_values(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_without_trials_knows_nothing_and_refuses_nonsense():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.7062), (4, 2.7764), (10, 2.2281), (11, 2.2010), (15, 2.1314), (30, 2.0423), (120, 1.9799)],
)
def test_student_quantiles_match_the_tables(degrees, value):
    assert student_t95(degrees) == pytest.approx(value, abs=1e-4)


def test_the_interval_of_a_mean_covers_it_95_times_in_100_even_for_five_values():
    rng = np.random.default_rng(0)
    samples = rng.normal(3.0, 2.0, size=(4000, 5)).tolist()
    covered = sum(low <= 3.0 <= high for low, high in map(mean_interval, samples))
    assert 0.94 < covered / 4000 < 0.96


def test_few_values_say_little():
    assert mean_interval([0.5]) == (-math.inf, math.inf)
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
