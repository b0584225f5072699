"""Which groups teach, and when to worry."""

import pytest

torch = pytest.importorskip("torch")

from terrella.algos.auxiliary import world_token_loss
from terrella.algos.diagnostics import (
    MONITOR,
    CollapseWatch,
    MaskWatch,
    check_mismatch,
    check_numbers,
    diversity,
    mask_metrics,
    spread_metrics,
)
from terrella.algos.filters import group_spread, most_uncertain, top_p_spread
from terrella.core.errors import EngineError

NAN = float("nan")
REWARDS = torch.tensor(
    [[1.0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, NAN], [1, NAN, NAN, NAN]]
)


def test_spread_leaves_masked_verdicts_out():
    assert group_spread(REWARDS).tolist() == pytest.approx([0, 0.5, (1 / 3) ** 0.5, 0, 0])


def test_two_verdicts_have_a_spread_and_one_or_none_has_not():
    # the sample deviation of (1, 0) is sqrt(1/2); that of (0.2, 0.8, 0.5) is 0.3
    some = torch.tensor([[1.0, 0, NAN, NAN], [0.2, 0.8, 0.5, NAN], [0.7, NAN, NAN, NAN], [NAN] * 4])
    assert group_spread(some).tolist() == pytest.approx([0.5**0.5, 0.3, 0, 0])


def test_groups_of_equal_spread_are_taken_in_their_order():
    many = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(32, 1)
    assert most_uncertain(group_spread(many), share=0.25).tolist() == [True] * 16 + [False] * 48
    assert top_p_spread(group_spread(many), p=0.25).tolist() == [True] * 16 + [False] * 48


def test_top_p_is_a_share_of_all_the_spread_there_is():
    # spreads 4, 3, 2, 1 (times sqrt(1/2)): 40% is held by the first, 70% by two, 90% by three
    some = torch.tensor([[0.0, 4.0], [3.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    kept = [
        int(top_p_spread(group_spread(some), p=p).sum())
        for p in (0.3, 0.4, 0.41, 0.7, 0.71, 0.9, 0.95)
    ]
    assert kept == [1, 1, 2, 2, 3, 3, 4]
    assert top_p_spread(group_spread(some * 100), p=0.7).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("share", "kept"), [(0.2, [2]), (0.4, [1, 2]), (1.0, [1, 2]), (0.01, [2])])
def test_the_most_uncertain_groups_are_kept_and_never_dull_ones(share, kept):
    assert most_uncertain(group_spread(REWARDS), share=share).nonzero().flatten().tolist() == kept


@pytest.mark.parametrize(("p", "kept"), [(0.5, [2]), (0.9, [1, 2]), (1.0, [1, 2])])
def test_top_p_keeps_the_fewest_groups_that_hold_the_spread(p, kept):
    assert top_p_spread(group_spread(REWARDS), p=p).nonzero().flatten().tolist() == kept
    assert not top_p_spread(group_spread(torch.zeros(3, 4)), p=p).any()


def test_figures_of_a_batch():
    found = spread_metrics(REWARDS)
    assert found["zero_variance"] == pytest.approx(0.6) and found["in_group_std"] > 0.2
    assert found["in_group_std"] == pytest.approx((0.5 + (1 / 3) ** 0.5) / 5)
    assert diversity([["a", "b"], ["c", "c"]]) == 0.75
    assert diversity([["a", "a", "a", "b"], []]) == 0.5
    with pytest.raises(ValueError, match="no replies"):
        diversity([])


def healthy(step):
    return {"in_group_std": 0.4, "entropy": 1.0 - 0.001 * step, "zero_variance": 0.3}


def test_a_collapse_is_named_after_it_has_lasted_and_before_the_run_ends():
    watch = CollapseWatch(first=5, patience=4)
    assert all(watch.see(**healthy(step)) is None for step in range(40))
    warnings = [watch.see(in_group_std=0.01, entropy=0.02, zero_variance=0.99) for _ in range(5)]
    assert warnings[:3] == [None] * 3 and all(
        word in warnings[3] for word in ("in_group_std", "entropy", "99%")
    )
    assert watch.see(**healthy(0)) is None


def test_a_figure_collapses_below_a_share_of_its_own_beginning():
    """The standard is the mean of the first steps, here 2, so that the floor is 0.5."""
    for value, falls in ((0.49, True), (0.51, False)):
        watch = CollapseWatch(first=2, patience=1, floor=0.25)
        for began in (1.0, 3.0):
            assert watch.see(in_group_std=began, entropy=1.0, zero_variance=0.0) is None
        reason = watch.see(in_group_std=value, entropy=1.0, zero_variance=0.0)
        assert (
            (reason == "in_group_std is 0.49, it began at 2, for 1 steps")
            if falls
            else reason is None
        )


def test_the_standard_is_that_of_the_first_steps_only():
    watch = CollapseWatch(first=2, patience=1, floor=0.5)
    for value in (4.0, 4.0, 3.0, 2.5, 2.1):
        assert watch.see(in_group_std=value, entropy=1.0, zero_variance=0.0) is None
    assert "began at 4, for 1 steps" in watch.see(in_group_std=1.9, entropy=1.0, zero_variance=0.0)
    assert "for 2 steps" in watch.see(in_group_std=1.9, entropy=1.0, zero_variance=0.0)


def test_left_to_itself_the_watch_waits_ten_steps_and_asks_for_nine_tenths():
    for value, falls in ((0.11, False), (0.09, True)):
        watch = CollapseWatch()
        for _ in range(10):
            assert watch.see(in_group_std=1.0, entropy=1.0, zero_variance=0.0) is None
        reasons = [watch.see(in_group_std=value, entropy=1.0, zero_variance=0.0) for _ in range(10)]
        assert reasons[:9] == [None] * 9 and (reasons[9] is not None) == falls
    dull = CollapseWatch()
    reasons = [dull.see(in_group_std=1.0, entropy=1.0, zero_variance=0.95) for _ in range(11)]
    assert (
        reasons[:9] == [None] * 9 and reasons[10] == "95% of the groups teach nothing, for 11 steps"
    )
    assert [dull.see(in_group_std=1.0, entropy=1.0, zero_variance=0.94) for _ in range(20)] == [
        None
    ] * 20


def test_what_was_nothing_from_the_start_has_not_fallen():
    watch = CollapseWatch(first=2, patience=1)
    assert [watch.see(in_group_std=0.0, entropy=1.0, zero_variance=0.0) for _ in range(9)] == [
        None
    ] * 9


def test_one_bad_step_is_not_a_collapse():
    watch = CollapseWatch(first=5, patience=3)
    for step in range(60):
        bad = step % 3 == 2
        assert (
            watch.see(in_group_std=0.0 if bad else 0.4, entropy=1.0, zero_variance=float(bad))
            is None
        )


def test_the_auxiliary_loss_reaches_the_worlds_tokens_and_no_others():
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    loss = world_token_loss(logprobs, torch.tensor([0.0, 0.5, 0.5]))
    loss.backward()
    assert loss.item() == 3.0 and logprobs.grad.tolist() == [0.0, -0.5, -0.5]


def test_a_step_without_what_is_watched_is_left_out():
    watch = CollapseWatch(first=1, patience=1)
    step = {"in_group_std": 0.5, "entropy": 1.0, "zero_variance": 0.0, "loss": 3.0}
    assert watch.see_step(step) is None
    assert watch.see_step({"loss": 3.0}) is None
    assert "in_group_std" in watch.see_step({**step, "in_group_std": 0.0})


def test_a_difference_above_the_limit_stops_a_run_and_so_does_nan():
    check_mismatch(0.5, 0.5, remedy="sync the weights")
    for gap, what in ((0.51, "differ by 0.51 in log-probability"), (NAN, "are nan")):
        with pytest.raises(EngineError, match=what) as stopped:
            check_mismatch(gap, 0.5, remedy="sync the weights")
        assert stopped.value.where == MONITOR
    check_numbers({"entropy": 0.0, "kl": float("inf")})
    with pytest.raises(
        EngineError, match=r"nan \(entropy, kl\): training has diverged\n  -> lower"
    ):
        check_numbers({"entropy": NAN, "clip_share": 0.0, "kl": NAN})


def test_a_run_whose_steps_train_on_nothing_is_warned_about():
    """Nothing is packed then, so there is no entropy."""
    dead = {"in_group_std": 0.0, "entropy": None, "zero_variance": 1.0}
    watch = CollapseWatch()
    assert all(watch.see_step(healthy(step)) is None for step in range(10))
    warnings = [watch.see_step(dead) for _ in range(10)]
    assert warnings[:9] == [None] * 9
    assert warnings[9] == (
        "in_group_std is 0, it began at 0.4, for 10 steps; "
        "100% of the groups teach nothing, for 10 steps"
    )
    from_the_start = CollapseWatch()
    assert "100% of the groups" in [from_the_start.see_step(dead) for _ in range(10)][9]


@pytest.mark.parametrize("missing", [None, NAN])
def test_a_missing_value_is_in_no_standard_and_hides_no_other_value(missing):
    watch = CollapseWatch(first=2, patience=2)
    for entropy in (2.0, missing, 2.0, missing, 0.1, missing):
        step = {"in_group_std": 0.4, "entropy": entropy, "zero_variance": missing}
        assert watch.see_step(step) is None
    assert watch.see_step({"entropy": 0.1}) == "entropy is 0.1, it began at 2, for 2 steps"


def test_a_rising_share_of_masked_verdicts_is_named_with_its_causes():
    watch = MaskWatch(first=5, patience=3)
    assert all(watch.see_step({"masked": 0.02}) is None for _ in range(20))
    rising = {"masked": 0.3, "masked/env_error": 0.25, "masked/timeout": 0.05}
    warnings = [watch.see_step(rising) for _ in range(4)]
    assert warnings[:2] == [None] * 2
    assert warnings[2] == (
        "30% of the verdicts are masked (timeout 5%, env_error 25%), it began at 2%, for 3 steps"
    )
    assert watch.see_step({"masked": 0.02}) is None and watch.see_step({}) is None


def test_a_run_that_begins_with_many_masked_verdicts_is_warned_about_too():
    watch = MaskWatch()
    warnings = [watch.see_step({"masked": 0.4}) for _ in range(4)]
    assert warnings[1] is None and "40% of the verdicts are masked" in warnings[2]
    few = MaskWatch()
    assert [few.see_step({"masked": 0.09}) for _ in range(9)] == [None] * 9


def test_masked_verdicts_are_counted_by_cause():
    metrics = mask_metrics(["ok", "unparsable", "env_error", "env_error", "no_judge", "ok"])
    assert metrics == pytest.approx(
        {"masked": 0.5, "masked/env_error": 1 / 3, "masked/no_judge": 1 / 6}
    )
    assert mask_metrics([]) == {"masked": 0}
