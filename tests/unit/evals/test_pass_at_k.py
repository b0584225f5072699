"""pass@k: no bias, intervals over instances, paired differences."""

import itertools

import numpy as np
import pytest

from terrella.evals.pass_at_k import bootstrap_mean, paired_difference, pass_at_k, share_mean


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_it_is_the_mean_over_all_choices_of_k_samples(k):
    for right in range(9):
        samples = [1] * right + [0] * (8 - right)
        choices = [any(choice) for choice in itertools.combinations(samples, k)]
        assert pass_at_k([right], samples=8, k=k)[0] == pytest.approx(np.mean(choices))


def test_it_has_no_bias_where_the_plug_in_estimate_has():
    rng, chance, k = np.random.default_rng(0), 0.1, 4
    right = rng.binomial(8, chance, size=200_000)
    truth = 1 - (1 - chance) ** k
    assert pass_at_k(right, samples=8, k=k).mean() == pytest.approx(truth, abs=0.003)
    assert (1 - (1 - right / 8) ** k).mean() < truth - 0.01


def test_k_above_the_number_of_samples_is_refused():
    with pytest.raises(ValueError, match="pass@9 needs at least 9"):
        pass_at_k([1], samples=8, k=9)
    with pytest.raises(ValueError, match="9 successes of 8"):
        pass_at_k([9], samples=8, k=1)


def test_large_k_does_not_overflow():
    assert pass_at_k([0, 1, 1024], samples=1024, k=512) == pytest.approx([0.0, 0.5, 1.0])


def test_a_bootstrap_interval_covers():
    rng = np.random.default_rng(1)
    hits = sum(
        (e := bootstrap_mean(rng.random(100), seed=i)).low <= 0.5 <= e.high for i in range(60)
    )
    assert hits >= 52


@pytest.mark.parametrize("seed", range(4))
def test_the_bootstrap_bounds_are_the_95_percent_ones(seed):
    """Resampled means of zeros and ones are binomial: nearly normal, 1.96 deviations each way."""
    values = np.repeat([0.0, 1.0], [300, 100])
    estimate = bootstrap_mean(values, seed=seed)
    deviation = (0.25 * 0.75 / 400) ** 0.5
    assert estimate.mean == 0.25 and estimate.n == 400
    assert (estimate.mean - estimate.low) / deviation == pytest.approx(1.96, abs=0.15)
    assert (estimate.high - estimate.mean) / deviation == pytest.approx(1.96, abs=0.15)
    paired = paired_difference(values + 2.0, np.full(400, 2.0), seed=seed)
    assert paired.mean == pytest.approx(0.25)
    assert (paired.mean - paired.low) / deviation == pytest.approx(1.96, abs=0.15)
    assert (paired.high - paired.mean) / deviation == pytest.approx(1.96, abs=0.15)


def test_the_same_seed_gives_the_same_interval_and_another_another():
    values = np.random.default_rng(5).random(50)
    assert (
        bootstrap_mean(values) == bootstrap_mean(values, seed=0) != bootstrap_mean(values, seed=1)
    )
    nothing = np.zeros(50)
    assert paired_difference(values, nothing) == paired_difference(values, nothing, seed=0)
    assert paired_difference(values, nothing) != paired_difference(values, nothing, seed=1)


@pytest.mark.parametrize("n", [10, 20])
@pytest.mark.parametrize("chance", [0.05, 0.9])
def test_the_interval_of_few_instances_covers(n, chance):
    rng = np.random.default_rng(6)
    hits = 0
    for draw in range(300):
        found = share_mean((rng.random(n) < chance).astype(float), seed=draw)
        hits += found.low <= chance <= found.high
    assert hits / 300 >= 0.9  # resampling alone: 0.39 to 0.86


def test_equal_values_have_no_interval_that_is_a_point():
    single = share_mean([1.0])
    assert (single.mean, single.low, single.high, single.n) == (1.0, None, None, 1)
    assert share_mean([1.0] * 20).low == pytest.approx(0.839, abs=1e-3)
    assert share_mean([0.0] * 20).high == pytest.approx(0.161, abs=1e-3)
    assert share_mean([1.0] * 20).high == 1.0 and share_mean([0.5] * 20).low is None
    assert bootstrap_mean([1.0] * 20).low is None  # turns, say: 1 is no bound of them
    assert paired_difference(np.ones(5), np.ones(5)).low is None
    with pytest.raises(ValueError, match="no instances"):
        bootstrap_mean([])


@pytest.mark.parametrize(("k", "samples"), [(0, 8), (-1, 8), (2, 1)])
def test_an_impossible_k_is_refused(k, samples):
    with pytest.raises(ValueError, match="needs at least"):
        pass_at_k([0], samples=samples, k=k)


def test_impossible_counts_are_refused_and_the_extremes_are_allowed():
    for wrong, message in (([-1, 3], "-1 to 3"), ([2, 9], "2 to 9")):
        with pytest.raises(ValueError, match=f"{message} successes of 8"):
            pass_at_k(wrong, samples=8, k=1)
    assert pass_at_k([0, 8], samples=8, k=1).tolist() == [0.0, 1.0]
    assert pass_at_k([1], samples=1, k=1).tolist() == [1.0]
    assert pass_at_k([], samples=8, k=1).size == 0


def test_pairing_removes_what_instances_share():
    rng = np.random.default_rng(2)
    hardness = rng.random(400)
    better = np.clip(hardness + 0.02 + 0.01 * rng.standard_normal(400), 0, 1)
    estimate = paired_difference(better, hardness)
    assert estimate.low > 0.01 and estimate.high < 0.03 and estimate.n == 400
