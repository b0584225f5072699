"""pass@k: no bias, intervals over instances, paired differences."""

import itertools

import numpy as np
import pytest

from terrella.use.pass_at_k import bootstrap_mean, paired_difference, pass_at_k


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


def test_more_than_the_samples_cannot_be_known():
    with pytest.raises(ValueError, match="pass@9 needs at least 9"):
        pass_at_k([1], samples=8, k=9)
    with pytest.raises(ValueError, match="9 successes of 8"):
        pass_at_k([9], samples=8, k=1)


def test_large_k_does_not_overflow():
    assert pass_at_k([0, 1, 1024], samples=1024, k=512) == pytest.approx([0.0, 0.5, 1.0])


def test_a_bootstrap_interval_covers():
    rng = np.random.default_rng(1)
    hits = sum((e := bootstrap_mean(rng.random(100), seed=i)).low <= 0.5 <= e.high for i in range(60))
    assert hits >= 52


def test_pairing_removes_what_instances_share():
    rng = np.random.default_rng(2)
    hardness = rng.random(400)
    better = np.clip(hardness + 0.02 + 0.01 * rng.standard_normal(400), 0, 1)
    found = paired_difference(better, hardness)
    assert found.low > 0.01 and found.high < 0.03 and found.n == 400


def test_one_lucky_seed_is_not_a_method():
    rng = np.random.default_rng(3)
    base = rng.random((5, 300))
    lucky = base + np.array([0.5, -0.02, -0.02, -0.02, -0.02])[:, None]
    assert paired_difference(lucky, base).low < 0
    steady = base + np.array([0.1, 0.12, 0.08, 0.11, 0.09])[:, None]
    assert paired_difference(steady, base).low > 0.05
