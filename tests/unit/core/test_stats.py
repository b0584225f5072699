"""Intervals against published values, and against what they promise: coverage."""

import math

import numpy as np
import pytest

from terrella.core.stats import mean_interval, student_t95, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (7, 10, 0.3968, 0.8922),
        (81, 263, 0.2553, 0.3662),
    ],
)  # the last is Newcombe (1998), table I
def test_wilson_matches_published_values(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_without_trials_knows_nothing_and_refuses_nonsense():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@pytest.mark.parametrize(
    ("degrees", "value"),
    [
        (1, 12.7062),
        (4, 2.7764),
        (10, 2.2281),
        (11, 2.2010),
        (15, 2.1314),
        (30, 2.0423),
        (120, 1.9799),
    ],
)
def test_student_quantiles_match_the_tables(degrees, value):
    assert student_t95(degrees) == pytest.approx(value, abs=1e-4)


def share_within(t: float, degrees: int) -> float:
    """P(|T| < t) by Simpson's rule on Student's density.

    With T = sqrt(d) tan(a) it is a power of a cosine.
    """
    steps, top = 400, math.atan(t / math.sqrt(degrees))
    heights = [math.cos(top * i / steps) ** (degrees - 1) for i in range(steps + 1)]
    area = (
        (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
        * top
        / steps
        / 3
    )
    return (
        2
        * area
        * math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
        / math.sqrt(math.pi)
    )


def exact_t95(degrees: int) -> float:
    low, high = 1.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(middle, degrees) < 0.95 else (low, middle)
    return low


@pytest.mark.parametrize("degrees", range(1, 11))
def test_the_table_holds_the_quantiles_of_student_s_density(degrees):
    assert student_t95(degrees) == pytest.approx(exact_t95(degrees), abs=5.1e-5)  # four digits


def test_two_degrees_of_freedom_by_the_closed_form_of_their_quantile():
    # t = (2p - 1) sqrt(2 / (4p (1 - p))) at p = 0.975: the quantile of every interval over three
    # seeds
    assert student_t95(2) == pytest.approx(0.95 * math.sqrt(2 / (4 * 0.975 * 0.025)), abs=5e-5)


@pytest.mark.parametrize("degrees", [11, 12, 14, 17, 20, 25, 30, 40, 60])
def test_beyond_the_table_only_terms_of_the_fifth_order_are_missing(degrees):
    assert abs(student_t95(degrees) - exact_t95(degrees)) < degrees**-5


def test_the_interval_of_three_seeds_by_hand():
    # mean 0.5, deviation 0.1, so 0.5 +- 4.3027 * 0.1 / sqrt(3)
    assert mean_interval([0.4, 0.6, 0.5]) == pytest.approx(
        (0.5 - 0.248417, 0.5 + 0.248417), abs=1e-5
    )
    assert mean_interval([1.0, 3.0]) == pytest.approx((2 - 12.7062, 2 + 12.7062))


def wilson_by_its_definition(successes: int, n: int) -> tuple[float, float]:
    """The shares from which the one seen is at most 1.96 of *their* standard errors away."""

    def far(p: float) -> bool:
        return abs(successes / n - p) > 1.959964 * math.sqrt(p * (1 - p) / n)

    bounds = []
    for outside in (0.0, 1.0):
        inside = successes / n
        for _ in range(60):
            middle = (outside + inside) / 2
            outside, inside = (middle, inside) if far(middle) else (outside, middle)
        bounds.append(inside)
    return bounds[0], bounds[1]


@pytest.mark.parametrize(
    ("successes", "n"), [(1, 2), (1, 10), (9, 10), (30, 40), (3, 256), (250, 256)]
)
def test_wilson_holds_the_shares_that_do_not_contradict_what_was_seen(successes, n):
    assert wilson(successes, n) == pytest.approx(wilson_by_its_definition(successes, n), abs=1e-6)


def test_wilson_s_bounds_are_exact_at_none_and_at_all():
    for n in range(1, 60):
        assert wilson(0, n)[0] == 0.0 < wilson(0, n)[1] and wilson(n, n)[0] < 1.0 == wilson(n, n)[1]


@pytest.mark.parametrize(("successes", "n"), [(-1, 4), (5, 4)])
def test_wilson_refuses_what_cannot_have_happened(successes, n):
    with pytest.raises(ValueError, match=f"{successes} successes of {n}"):
        wilson(successes, n)


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
