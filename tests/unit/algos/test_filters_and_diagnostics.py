"""Which groups teach, and when to worry."""

import pytest

torch = pytest.importorskip("torch")

from terrella.algos.auxiliary import world_token_loss
from terrella.algos.diagnostics import CollapseWatch, diversity, spread_figures
from terrella.algos.filters import group_spread, most_uncertain, top_p_spread

NAN = float("nan")
REWARDS = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, NAN], [1, NAN, NAN, NAN]])


def test_spread_leaves_masked_verdicts_out():
    assert group_spread(REWARDS).tolist() == pytest.approx([0, 0.5, (1 / 3) ** 0.5, 0, 0])


@pytest.mark.parametrize(("share", "kept"), [(0.2, [2]), (0.4, [1, 2]), (1.0, [1, 2]), (0.01, [2])])
def test_the_most_uncertain_groups_are_kept_and_never_dull_ones(share, kept):
    assert most_uncertain(REWARDS, share=share).nonzero().flatten().tolist() == kept


@pytest.mark.parametrize(("p", "kept"), [(0.5, [2]), (0.9, [1, 2]), (1.0, [1, 2])])
def test_top_p_keeps_the_fewest_groups_that_hold_the_spread(p, kept):
    assert top_p_spread(REWARDS, p=p).nonzero().flatten().tolist() == kept
    assert not top_p_spread(torch.zeros(3, 4), p=p).any()


def test_figures_of_a_batch():
    found = spread_figures(REWARDS)
    assert found["zero_variance"] == pytest.approx(0.6) and found["in_group_std"] > 0.2
    assert diversity([["a", "b"], ["c", "c"]]) == 0.75
    with pytest.raises(ValueError, match="no replies"):
        diversity([])


def healthy(step):
    return {"in_group_std": 0.4, "entropy": 1.0 - 0.001 * step, "zero_variance": 0.3}


def test_a_collapse_is_named_after_it_has_lasted_and_before_the_run_ends():
    watch = CollapseWatch(first=5, patience=4)
    assert all(watch.see(**healthy(step)) is None for step in range(40))
    warnings = [watch.see(in_group_std=0.01, entropy=0.02, zero_variance=0.99) for _ in range(5)]
    assert warnings[:3] == [None] * 3 and all(word in warnings[3] for word in ("in_group_std", "entropy", "99%"))
    assert watch.see(**healthy(0)) is None


def test_one_bad_step_is_not_a_collapse():
    watch = CollapseWatch(first=5, patience=3)
    for step in range(60):
        bad = step % 3 == 2
        assert watch.see(in_group_std=0.0 if bad else 0.4, entropy=1.0, zero_variance=float(bad)) is None


def test_the_auxiliary_loss_reaches_the_worlds_tokens_and_no_others():
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    loss = world_token_loss(logprobs, torch.tensor([0.0, 0.5, 0.5]))
    loss.backward()
    assert loss.item() == 3.0 and logprobs.grad.tolist() == [0.0, -0.5, -0.5]
