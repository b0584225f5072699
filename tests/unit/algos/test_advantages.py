"""Advantages against numbers worked out by hand, and GAE against the textbook's double sum."""

import math

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.advantages import gae, group_advantages, whiten, zero_variance
from terrella.algos.estimators import ESTIMATORS

NAN = math.nan


def advantages(row: list[float], **how: str) -> list[float]:
    return group_advantages(torch.tensor([row], dtype=torch.float64), **how)[0].tolist()


def test_grpo_divides_by_the_standard_deviation_of_the_group():
    # mean 1/4, deviations 3/4 and -1/4, sample variance (9 + 3) / 16 / 3 = 1/4
    assert advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_dr_grpo_only_subtracts_the_mean():
    assert advantages([1, 0, 0, 0], scale="none") == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_with_the_others():
    assert advantages([1, 0, 0, 0], scale="none", baseline="leave_one_out") == pytest.approx(
        [1, -1 / 3, -1 / 3, -1 / 3]
    )


def test_a_masked_member_is_in_no_mean_and_earns_nothing():
    assert advantages([1, NAN, 0, 0.5], scale="none") == pytest.approx([0.5, 0, -0.5, 0])
    assert advantages([1, NAN, 0, 0.5]) == pytest.approx([1, 0, -1, 0], abs=1e-5)
    assert advantages([1, NAN, 0], scale="none", baseline="leave_one_out") == pytest.approx(
        [1, 0, -1]
    )


@pytest.mark.parametrize("row", [[1.0, NAN], [NAN, NAN], [0.5, 0.5], [0.3, NAN, 0.3]])
@pytest.mark.parametrize(
    "how", [{}, {"scale": "none"}, {"scale": "none", "baseline": "leave_one_out"}]
)
def test_no_variance_no_lesson(row: list[float], how: dict[str, str]):
    assert advantages(row, **how) == [0.0] * len(row)
    assert zero_variance(torch.tensor([row])).tolist() == [True]


def test_variance_is_seen_behind_masked_members():
    assert zero_variance(torch.tensor([[1.0, NAN, 0.0], [1.0, 1.0, 0.9]])).tolist() == [
        False,
        False,
    ]


def test_groups_are_compared_with_their_own_members_only():
    rows = torch.tensor([[3.0, 1.0], [10.0, 30.0]], dtype=torch.float64)
    assert group_advantages(rows, scale="none").tolist() == [[1, -1], [-10, 10]]
    half = 0.5**0.5  # one deviation of two values is sqrt(2) times half their distance
    assert group_advantages(rows).flatten().tolist() == pytest.approx(
        [half, -half, -half, half], abs=1e-5
    )


def test_groups_with_other_numbers_of_known_members_stand_side_by_side():
    rows = torch.tensor([[1.0, 0, NAN], [4, 6, 8], [5, NAN, NAN]], dtype=torch.float64)
    assert group_advantages(rows, scale="none").tolist() == [[0.5, -0.5, 0], [-2, 0, 2], [0, 0, 0]]
    half = 0.5**0.5
    flat = group_advantages(rows).flatten().tolist()
    assert flat == pytest.approx([half, -half, 0, -1, 0, 1, 0, 0, 0], abs=1e-5)


def test_two_verdicts_are_enough_to_compare():
    assert advantages([1, 0, NAN], scale="none") == pytest.approx([0.5, -0.5, 0])
    assert zero_variance(
        torch.tensor([[1.0, 0.0, NAN], [1.0, NAN, NAN], [NAN, NAN, NAN]])
    ).tolist() == [
        False,
        True,
        True,
    ]


def test_rewards_far_from_zero_with_a_masked_member_keep_their_mean_and_deviation():
    # known: 4, 6, 8, mean 6, sample deviation 2; the others' means are 7, 6, 5
    assert advantages([4, NAN, 6, 8]) == pytest.approx([-1, 0, 0, 1], abs=1e-5)
    assert advantages([4, NAN, 6, 8], scale="none", baseline="leave_one_out") == pytest.approx(
        [-3, 0, 0, 3]
    )


def test_a_difference_that_rounding_makes_is_no_difference():
    assert zero_variance(
        torch.tensor([[0.1, 0.1 + 1e-7], [0.1, 0.1001]], dtype=torch.float64)
    ).tolist() == [True, False]
    assert -0.1 < advantages([0.0, 1e-7])[0] < 0 < advantages([0.0, 1e-7])[1] < 0.1


def test_the_named_algorithms_are_the_ones_of_their_papers():
    assert ESTIMATORS["grpo"] == ("std", "mean", "episode", "token", None, 0)
    assert ESTIMATORS["dr_grpo"] == ("none", "mean", "constant", "token", None, 0)
    assert ESTIMATORS["dapo"] == ("std", "mean", "token", "token", 0.28, 10)
    assert ESTIMATORS["rloo"] == ("none", "leave_one_out", "episode", "episode", None, 0)


def naive_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: a discounted sum of temporal-difference errors."""
    ahead = [*values[1:], 0.0]
    errors = [r + gamma * after - now for r, now, after in zip(rewards, values, ahead, strict=True)]
    return [
        sum((gamma * lam) ** k * error for k, error in enumerate(errors[t:]))
        for t in range(len(errors))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 1.0)])
def test_gae_is_the_definition_over_model_tokens_only(gamma: float, lam: float):
    torch.manual_seed(0)
    rewards, values = torch.randn(5, 9).double(), torch.randn(5, 9).double()
    mask = torch.rand(5, 9) < 0.6
    found, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for row in range(5):
        mine = mask[row]
        expected = naive_gae(rewards[row][mine].tolist(), values[row][mine].tolist(), gamma, lam)
        assert found[row][mine].tolist() == pytest.approx(expected)
        assert (returns[row][mine] - values[row][mine]).tolist() == pytest.approx(expected)
        assert not found[row][~mine].any() and not returns[row][~mine].any()


def test_gae_without_discount_and_critic_is_the_reward_to_come():
    rewards = torch.tensor([[0.0, 1.0, 0.0, 2.0]])
    found, _ = gae(rewards, torch.zeros(1, 4), torch.ones(1, 4), gamma=1.0, lam=1.0)
    assert found.tolist() == [[3.0, 3.0, 2.0, 2.0]]


def test_gae_of_a_single_token():
    found, returns = gae(
        torch.tensor([[2.0]]), torch.tensor([[0.5]]), torch.ones(1, 1), gamma=0.9, lam=0.9
    )
    assert found.tolist() == [[1.5]] and returns.tolist() == [[2.0]]


def test_whiten_gives_zero_mean_and_unit_variance():
    values = torch.tensor([1.0, 2.0, 6.0])
    found = whiten(values, mean=3.0, square=41 / 3)
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float((found**2).mean()) == pytest.approx(1, abs=1e-5)
    # 1, 2, 6 are -2, -1, 3 from the mean, with a variance of 14/3
    assert found.tolist() == pytest.approx(
        [-2 / (14 / 3) ** 0.5, -1 / (14 / 3) ** 0.5, 3 / (14 / 3) ** 0.5], abs=1e-5
    )


def test_whitening_a_small_spread_makes_it_one():
    # 0.1, 0.3: mean 0.2, mean square 0.05, deviation 0.1
    assert whiten(torch.tensor([0.1, 0.3]), mean=0.2, square=0.05).tolist() == pytest.approx(
        [-1, 1], abs=1e-4
    )


def test_whitening_values_that_do_not_vary_gives_nothing_not_a_blow_up():
    # Rounding makes the variance slightly negative here; a square root of it would not exist.
    assert whiten(
        torch.tensor([0.1, 0.1]), mean=0.1, square=0.1**2 - 1e-12
    ).tolist() == pytest.approx([0, 0], abs=1e-2)
    above = torch.tensor([0.1 + 1e-9], dtype=torch.float64)
    assert (
        0 < whiten(above, mean=0.1, square=0.1**2).item() < 0.01
    )  # what lies above the mean stays above
