"""Conformal sets keep their promise, risk orders steps, and thin data is refused."""

import math

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Situation, Text, Transition
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain
from terrella.trust.risk import (
    RiskEstimator,
    RiskModel,
    by_policy,
    calibration_rows,
    conformal_rank,
    fit_risk,
    least_calibration,
    least_trusted,
    score,
    signals,
    trusted_below,
    trusted_for_all,
)


def made(n, rng, *, wrong_rate=0.1):
    """Signals that tell something, not all, about what is wrong.

    A wrong step holds nothing of what came.
    """
    doubt = rng.beta(1, 8, n)
    wrong = (rng.random(n) < doubt * wrong_rate * 9).astype(float)
    held = (1 - wrong) * rng.choice([1.0, 0.5], n)
    return np.column_stack([doubt, doubt / 2, rng.random(n) / 9, rng.random(n)]), wrong, held


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_sets_hold_what_happens_at_the_promised_rate(level):
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(20):
        model = fit_risk(*made(1000, rng, wrong_rate=0.02), level=level)
        signals, _, held = made(1000, rng, wrong_rate=0.02)
        inside = [model.inside(risk, h) for risk, h in zip(model.risks(signals), held, strict=True)]
        covered.append(np.mean(inside))
    # Not on average but for nearly every calibration; a test of 1,000 steps errs by 0.01 itself.
    assert np.mean(np.array(covered) < level - 0.01) <= 0.1
    assert np.mean(covered) < level + 0.03


def test_a_model_that_is_often_wrong_gets_sets_that_hold_everything():
    model = fit_risk(*made(1000, np.random.default_rng(0), wrong_rate=0.9), level=0.9)
    assert model.quantile == 1.0 and model.inside(0.99, 0.0)


def test_risk_is_higher_where_steps_are_wrong():
    rng = np.random.default_rng(1)
    model = fit_risk(*made(3000, rng), level=0.9)
    signals, wrong, _ = made(3000, rng)
    risks = model.risks(signals)
    assert risks[wrong == 1].mean() > 1.3 * risks[wrong == 0].mean()
    assert risks.mean() == pytest.approx(wrong.mean(), abs=0.03)  # calibrated on average


def test_too_few_steps_are_refused():
    # 0.9^29 < 0.05: with fewer steps even the largest score may be too small
    assert least_calibration(0.9) == 29 and least_calibration(0.99) == 299
    assert conformal_rank(28, 0.9) is None and conformal_rank(29, 0.9) == 29
    signals, wrong, held = made(12, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"11 steps of a policy cannot calibrate .* 299 can"):
        fit_risk(signals, wrong, held, level=0.99)


def test_the_rank_is_the_smallest_that_holds_with_the_confidence():
    rng = np.random.default_rng(9)
    for n, level in ((100, 0.9), (400, 0.8)):
        rank = conformal_rank(n, level)
        # The coverage of the k-th of n uniform scores is the score itself.
        kth = np.sort(rng.random((4000, n)), axis=1)
        assert np.mean(kth[:, rank - 1] >= level) >= 0.94
        assert np.mean(kth[:, rank - 2] >= level) < 0.95
        assert rank > math.ceil((n + 1) * level)  # the usual rank falls short half of the time


def test_each_policy_gets_its_promise_and_the_worst_one_decides():
    rng = np.random.default_rng(10)
    easy, hard = made(600, rng, wrong_rate=0.01), made(600, rng, wrong_rate=0.06)
    values, wrong, held = (
        np.stack([one, other], axis=1).reshape(1200, *one.shape[1:])
        for one, other in zip(easy, hard, strict=True)
    )
    model = fit_risk(values, wrong, held, [0, 1] * 600, level=0.9)
    pooled = fit_risk(values, wrong, held, level=0.9)
    alone = fit_risk(*easy, level=0.9)
    assert model.quantile >= pooled.quantile > 0 and model.quantile > alone.quantile
    new_values, _, new_held = made(3000, rng, wrong_rate=0.06)
    risks = model.risks(new_values)
    inside = [model.inside(r, h) for r, h in zip(risks, new_held, strict=True)]
    assert np.mean(inside) > 0.89
    risks, groups = np.linspace(0, 1, 800), [np.arange(0, 800, 2), np.arange(1, 800, 2)]
    mistakes = np.zeros(800)
    mistakes[401::2] = 1.0  # the second policy goes wrong above a risk of a half

    def shared(mistakes):
        return trusted_for_all(risks, mistakes, groups, ["calm", "wild"], error=0.05)

    assert 0.4 < shared(mistakes).value < 0.56 and shared(0 * risks).value > 0.99
    mistakes[1::2] = 1.0
    assert shared(mistakes).value is None
    assert shared(mistakes).reasons == (
        "no steps of wild can be shown to be wrong less often than 0.05: 100.0% of the 400 steps "
        "that test it are wrong",
    )


def test_another_policy_than_those_calibrated_has_no_promise():
    """docs/trust.md says so: nothing notices, the sets are only wrong too often."""
    rng = np.random.default_rng(11)
    model = fit_risk(*made(2000, rng, wrong_rate=0.02), level=0.9)

    def covered(wrong_rate):
        values, _, held = made(3000, rng, wrong_rate=wrong_rate)
        return np.mean(
            [model.inside(*pair) for pair in zip(model.risks(values), held, strict=True)]
        )

    assert covered(0.02) > 0.89
    assert covered(0.4) < 0.8


def test_every_policy_is_tested_at_the_lowest_threshold():
    """Below it, another policy may have few steps, or wrong ones among its safest quarter."""
    calm = np.concatenate([np.linspace(0, 0.1, 100), np.linspace(0.5, 1, 100)])
    calm_wrong = (calm > 0.4).astype(float)
    groups = [np.arange(200), 200 + np.arange(1000)]

    def shared(wild, wild_wrong):
        assert trusted_below(wild, wild_wrong, error=0.05) == 1.0  # alone it has a threshold
        risks, wrong = np.concatenate([calm, wild]), np.concatenate([calm_wrong, wild_wrong])
        return trusted_for_all(risks, wrong, groups, ["calm", "wild"], error=0.05)

    none_below = shared(np.linspace(0.1, 1, 1000), np.zeros(1000))
    assert none_below.value is None and len(none_below.reasons) == 1
    assert "no steps of wild" in none_below.reasons[0]
    assert "risk shown for calm: 0 steps test it, 59 can" in none_below.reasons[0]
    wild = np.concatenate([np.full(80, 0.05), np.linspace(0.2, 1, 920)])
    some = ((np.arange(1000) < 80) & (np.arange(1000) % 20 == 0)).astype(float)
    wrong_below = shared(wild, some)
    assert wrong_below.value is None and "no steps of wild" in wrong_below.reasons[0]
    assert shared(wild, np.zeros(1000)).value == trusted_below(calm, calm_wrong, error=0.05) < 0.11


def test_all_steps_of_an_instance_are_on_one_side_of_the_fit():
    assert calibration_rows(100) == slice(15, 100) and calibration_rows(14) == slice(2, 14)
    assert calibration_rows(42, 3) == slice(6, 42)  # two of fourteen instances
    assert [group.tolist() for group in by_policy(14, [0, 1] * 7)] == [
        [0, 2, 4, 6, 8, 10],
        [1, 3, 5, 7, 9, 11],
    ]


def test_perfect_and_constant_signals_do_not_blow_up():
    ones, nothing = np.ones(200), np.zeros((200, 4))
    model = fit_risk(nothing, np.zeros(200), ones, level=0.9)
    assert np.isfinite(model.weights).all() and 0 < model.risks(nothing)[0] < 0.2


def test_the_threshold_stops_before_the_errors_begin():
    risks = np.linspace(0, 1, 2000)
    wrong = (risks > 0.6).astype(float)
    found = trusted_below(risks, wrong, error=0.03)
    assert 0.5 < found < 0.65
    assert trusted_below(risks, np.ones(2000), error=0.03) is None
    assert (
        trusted_below(risks[:20], np.zeros(20), error=0.03) is None
    )  # twenty faultless steps show nothing
    assert trusted_below(risks, np.zeros(2000), error=0.03) == 1.0


def test_the_promise_of_the_threshold_holds_on_new_steps():
    rng, kept = np.random.default_rng(2), []
    for _ in range(40):
        risks = rng.random(600)
        wrong = (rng.random(600) < risks**3 * 0.3).astype(float)
        threshold = trusted_below(risks, wrong, error=0.05)
        if threshold is not None:
            kept.append(0.3 * threshold**3 / 4 <= 0.05)  # the true error below the threshold
    assert len(kept) > 30 and np.mean(kept) >= 0.95


def test_a_score_falls_with_what_was_expected():
    assert (
        score(0.0, 1.0) == 0.0 and score(1.0, 1.0) == 1.0 and score(0.1, 0.5) == pytest.approx(0.55)
    )
    assert RiskModel((0.0,) * 5, 0.5, 0.9).inside(0.1, 0.6)


def sampled(*chances, counts=(), unreadable=0):
    said = tuple(
        certain(Text(str(place)), 0.0, False, False, chance) for place, chance in enumerate(chances)
    )
    return PredictiveDistribution(said, counts, unreadable)


def test_signals_are_doubt_missing_mass_disagreement_and_distance():
    distributions = [
        sampled(0.6, 0.1, counts=(3, 1)),
        sampled(),
        sampled(1.0, counts=(2,), unreadable=6),
    ]
    found = signals(distributions, np.array([0.25, 0.5, 0.75]))
    # doubt is what the likeliest answer lacks to 1; nothing readable is full doubt
    wanted = [[0.4, 0.3, 0.25, 0.25], [1.0, 1.0, 0.0, 0.5], [0.0, 0.0, 0.75, 0.75]]
    assert found.tolist() == [pytest.approx(row) for row in wanted]
    assert signals([], np.zeros(0)).shape == (0, 4)


def test_a_risk_is_the_logistic_of_logarithms_between_minus_one_and_nothing():
    """ln(x + 1e-6) / ln(1e6): -1 at 0, -1/2 at a thousandth, 0 at 1."""
    values = np.array([[0.0, 1, 1, 1], [1e-3, 1, 1, 1], [1.0, 1, 1, 1]])
    risks = RiskModel((0.5, 2.0, 0.0, 0.0, 0.0), 0.5, 0.9).risks(values)
    wanted = [1 / (1 + math.exp(-number)) for number in (0.5 - 2.0, 0.5 - 1.0, 0.5)]
    assert risks.tolist() == pytest.approx(wanted, abs=1e-4)
    for place in range(4):
        weights = [0.0] * 5
        weights[place + 1] = 1.0
        row = np.ones((1, 4))
        row[0, place] = 0.0
        assert RiskModel(tuple(weights), 0.5, 0.9).risks(row)[0] == pytest.approx(
            1 / (1 + math.e), abs=1e-5
        )


def test_a_risk_never_overflows_and_is_never_certain():
    high, low = (
        RiskModel((number, 0, 0, 0, 0), 0.5, 0.9).risks(np.ones((1, 4)))[0]
        for number in (1e6, -1e6)
    )
    assert low == pytest.approx(math.exp(-30), rel=1e-6, abs=0) and 1 - 1e-12 < high < 1


HARD_FITS = {
    "some steps are wrong": lambda values, wrong: (values, wrong),
    "nearly all are wrong": lambda values, wrong: (
        values,
        np.maximum(1 - wrong, values[:, 0] < 0.3),
    ),
    "half wrong, half right": lambda values, wrong: (values, (wrong + 0.5) / 2),
    "one signal says nothing": lambda values, wrong: (
        values * [1, 1, 1, 0] + [0, 0, 0, 1 - 1e-6],
        wrong,
    ),
    "no signal says anything": lambda values, wrong: (values * 0 + 1 - 1e-6, wrong),
}


@pytest.mark.parametrize("hard", HARD_FITS.values(), ids=HARD_FITS)
def test_the_fit_is_where_the_penalised_likelihood_is_flat(hard):
    values, wrong, held = made(2000, np.random.default_rng(4))
    values, wrong = hard(values, wrong)
    weights = np.array(fit_risk(values, wrong, held, level=0.9).weights)
    features = np.column_stack([np.ones(300), np.log(values[:300] + 1e-6) / math.log(1e6)])

    def cost(w):
        chance = 1 / (1 + np.exp(-features @ w))
        likelihood = wrong[:300] * np.log(chance) + (1 - wrong[:300]) * np.log(1 - chance)
        return -likelihood.sum() + 0.5 * 1e-4 * 300 * (w**2).sum()

    for way in np.eye(5):
        slope = (cost(weights + 1e-4 * way) - cost(weights - 1e-4 * way)) / 2e-4
        assert slope == pytest.approx(0.0, abs=1e-4)


def test_signals_that_say_nothing_leave_the_mean_of_what_was_wrong():
    wrong = (np.arange(1000) % 50 == 0).astype(float)
    blind = np.full((1000, 4), 1 - 1e-6)
    model = fit_risk(blind, wrong, 1 - wrong, level=0.9)
    assert model.risks(blind)[0] == pytest.approx(0.02, abs=1e-3)


def test_the_first_steps_are_for_the_fit_and_the_rest_for_the_quantile():
    values, wrong, held = made(100, np.random.default_rng(5))
    held = np.random.default_rng(6).permutation(100) / 100
    model = fit_risk(values, wrong, held, level=0.9)
    scores = np.sort(1 - (1 - model.risks(values[15:])) * held[15:])
    # Of 85 scores the 82nd: with 95% confidence 0.9 of all steps lie at or below it.
    assert conformal_rank(85, 0.9) == 82
    assert model.quantile == pytest.approx(scores[81]) and (model.level, len(model.weights)) == (
        0.9,
        5,
    )
    for place, of_fit in ((14, True), (15, False)):
        other = wrong.copy()
        other[place] = 1 - other[place]
        assert (fit_risk(values, other, held, level=0.9).weights != model.weights) == of_fit


@pytest.mark.parametrize(("level", "least"), [(0.8, 14), (0.85, 19), (0.9, 29), (0.95, 59)])
def test_the_fewest_steps_are_those_of_which_the_largest_score_is_the_quantile(level, least):
    assert least_calibration(level) == least and level**least <= 0.05 < level ** (least - 1)
    total = next(n for n in range(1000) if n - int(n * 0.15) == least)
    values, wrong, held = made(total, np.random.default_rng(7))
    model = fit_risk(values, wrong, held, level=level)
    cut = int(total * 0.15)
    assert model.quantile == pytest.approx((1 - (1 - model.risks(values[cut:])) * held[cut:]).max())
    with pytest.raises(ConfigError):
        fit_risk(values[1:], wrong[1:], held[1:], level=level)


def test_a_result_on_the_edge_of_the_set_is_inside():
    assert RiskModel((0.0,) * 5, 0.55, 0.9).inside(0.1, 0.5)  # 1 - 0.9 * 0.5, however it is rounded
    assert not RiskModel((0.0,) * 5, 0.5499, 0.9).inside(0.1, 0.5)


def test_faultless_steps_that_show_an_error_rate():
    # n steps without a mistake have a chance of (1 - error)^n
    for error in (0.8, 0.5, 0.1, 0.03):
        assert (1 - error) ** least_trusted(error) <= 0.05
        assert (1 - error) ** (least_trusted(error) - 1) > 0.05
    assert least_trusted(0.8) == 2 and least_trusted(0.1) == 29 and least_trusted(0.03) == 99


def at(*places, count=60, size=1.0):
    """Mistakes at these places of otherwise faultless steps."""
    wrong = np.zeros(count)
    wrong[list(places)] = size
    return wrong


def test_a_threshold_is_the_risk_of_the_last_step_before_the_error_shows():
    risks = np.arange(60.0)
    assert trusted_below(risks, at(), error=0.1) == 59.0
    assert trusted_below(risks, at(50), error=0.1) == 49.0  # one in 51 might be one in ten
    assert trusted_below(risks, at(50, size=0.5), error=0.1) == 59.0  # half a mistake counts half
    assert trusted_below(risks, at(50, 51, size=0.5), error=0.1) == 50.0  # and two halves as one
    assert trusted_below(risks, at(41), error=0.1) is None
    assert trusted_below(risks[:29], at(count=29), error=0.1) == 28.0
    assert trusted_below(risks[:28], at(count=28), error=0.1) is None


def test_a_little_is_missed_in_every_step_and_the_promise_is_shown():
    """29 steps would show it without any mistake, and a model that samples has none without."""
    assert least_trusted(0.1) == 29 and least_trusted(0.1, found=0.01) == 42
    assert trusted_below(np.arange(40.0), np.full(40, 0.005), error=0.1) == 39.0
    assert trusted_below(np.arange(150.0), np.full(150, 0.01), error=0.1) == 149.0
    assert trusted_below(np.arange(150.0), np.full(150, 0.05), error=0.1) is None


def test_the_threshold_does_not_depend_on_the_order_of_the_steps():
    shuffled = np.random.default_rng(8).permutation(60)
    assert trusted_below(np.arange(60.0)[shuffled], at(50)[shuffled], error=0.1) == 49.0


def test_a_refusal_says_how_many_steps_it_takes():
    def refused(wrong):
        rows = np.arange(len(wrong))
        (reason,) = trusted_for_all(rows / 100, wrong, [rows], ["calm"], error=0.1).reasons
        return reason

    assert refused(np.zeros(20)).endswith(
        "0.1: 20 steps test it, 29 can: certify on more instances"
    )
    needed = least_trusted(0.1, found=0.04)
    assert refused(np.full(40, 0.04)).endswith(
        f"4.0% of the 40 steps that test it are wrong, and it takes {needed} such steps: certify "
        "on more instances"
    )
    assert refused(np.full(400, 0.2)).endswith("20.0% of the 400 steps that test it are wrong")


def test_the_safest_quarter_is_judged_as_one():
    risks = np.arange(400.0)
    assert (
        trusted_below(risks, at(1, 2, 3, count=400), error=0.1) == 399.0
    )  # 3 of 29 would be too many, 3 of 100 not
    assert (
        trusted_below(risks, at(*range(6), count=400), error=0.1) is None
    )  # 6 of 100 are, though 6 of 400 not


def test_the_first_threshold_that_fails_ends_it():
    assert trusted_below(np.arange(400.0), at(*range(100, 106), count=400), error=0.1) == 99.0


def test_shares_of_mistakes_that_add_up_to_one_are_one_mistake():
    """0.1 + 0.2 + 0.7 and the like may come out a little above 1."""
    whole, parts = np.zeros(200), np.zeros(200)
    whole[0], parts[:3] = 1.0, (0.1, 0.2, 0.7)
    risks = np.arange(200.0)
    for error in (0.02, 0.03, 0.05):
        assert trusted_below(risks, parts, error=error) == trusted_below(risks, whole, error=error)


class Sure:
    """Says the same to every question."""

    def predict(self, questions):
        return [sampled(0.5, counts=(1,)) for _ in questions]


def test_an_assessor_gives_each_belief_the_risk_of_its_own_signals():
    data = NearestData(
        [Transition(observation=Text("aaaa"), action="x", next_observation=Text("b"))]
    )
    questions = [
        Query(
            Situation(instruction="", observation=Text(text), actions=(), history=(), steps_left=1),
            "x",
        )
        for text in ("aaaa", "aabb")
    ]
    model = RiskModel((0.3, 1.0, -0.5, 0.0, 2.0), 0.5, 0.9)
    found = RiskEstimator(Sure(), data, model).assess(questions)
    wanted = model.risks(np.array([[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.5]]))
    assert [risk for _, risk in found] == pytest.approx(wanted.tolist())
    assert [distribution.counts for distribution, _ in found] == [(1,), (1,)] and wanted[
        0
    ] < wanted[1]
    assert [risk for _, risk in RiskEstimator(Sure(), data, None).assess(questions)] == [1.0, 1.0]
