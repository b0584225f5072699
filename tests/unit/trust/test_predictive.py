"""Beliefs and their overlap with the truth; the distance to the data."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.made_models import Lying, by_chance, data_of

from terrella.core.errors import PredictionError, VerifierError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Frames, Prediction, Situation, Status, Text, Transition, Verdict
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain, overlap, predicted_prob
from terrella.trust.risk import signals
from terrella.trust.truth import NearestCopy, NoChange, TrueModel, seen_truth
from terrella.worlds.counter import Count, Counter
from terrella.worlds.frozen_lake import FrozenLake

VERIFIER = FrozenLake.verifier


def said(text, chance, reward=0.0, terminated=False):
    return Prediction(
        observation=Text(text),
        reward=reward,
        terminated=terminated,
        logprob=math.log(chance),
        risk=0.0,
    )


def asked(observation, action):
    situation = Situation(
        instruction="", observation=observation, actions=(), history=(), steps_left=5
    )
    return Query(situation, action)


def test_overlap_is_one_minus_total_variation():
    truth = PredictiveDistribution(
        (certain(Text("a"), 0, False, False, 0.5), certain(Text("b"), 0, False, False, 0.5))
    )
    assert overlap(truth, truth, Text("c"), VERIFIER) == 1.0
    sure = PredictiveDistribution((said("a", 1.0),))
    assert (
        overlap(sure, truth, Text("c"), VERIFIER) == 0.5
    )  # right half of the time is half right, not wrong
    skewed = PredictiveDistribution((said("a", 0.8), said("b", 0.2)))
    assert overlap(skewed, truth, Text("c"), VERIFIER) == pytest.approx(0.7)
    assert overlap(PredictiveDistribution(()), truth, Text("c"), VERIFIER) == 0.0


def long(text, logprob):
    return replace(said(text, 1.0), logprob=logprob)


@pytest.mark.parametrize("logprob", [-1.0, -746.0, -2000.0, -1e6])
def test_a_long_prediction_is_as_right_as_a_short_one(logprob):
    """The probability of a long text underflows to 0; its share among the samples does not."""
    truth = PredictiveDistribution((certain(Text("right"), 0, False, False),))
    for text, right in (("wrong", 0.0), ("right", 1.0)):
        only = PredictiveDistribution((long(text, logprob),), (8,))
        assert overlap(only, truth, Text("before"), VERIFIER) == right
    both = PredictiveDistribution((long("right", logprob), long("wrong", logprob - 1)), (6, 1), 1)
    share = 7 / 8 / (1 + math.exp(-1))
    assert overlap(both, truth, Text("before"), VERIFIER) == pytest.approx(share)
    drawn = [both.draw(uniform) for uniform in (0.0, share - 0.01, share + 0.01, 0.9)]
    assert [each and each.observation.text for each in drawn] == ["right", "right", "wrong", None]


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_no_number_is_refused(logprob):
    truth = PredictiveDistribution((certain(Text("right"), 0, False, False),))
    broken = PredictiveDistribution((long("wrong", logprob),), (8,))
    for use in (
        lambda: overlap(broken, truth, Text("before"), VERIFIER),
        lambda: broken.draw(0.5),
        lambda: signals([broken], np.zeros(1)),
    ):
        with pytest.raises(PredictionError, match=r"log-probability .*\n.*check the weights"):
            use()


def test_a_wrong_reward_or_end_is_a_wrong_prediction():
    truth = certain(Text("a"), 1.0, True, False)
    for no_reward in (math.nan, math.inf):
        broken = PredictiveDistribution((said("a", 1.0, reward=no_reward, terminated=True),))
        assert predicted_prob(broken, truth, Text("b"), VERIFIER) == 0.0
    assert (
        predicted_prob(
            PredictiveDistribution((said("a", 1.0, reward=1.0, terminated=True),)),
            truth,
            Text("b"),
            VERIFIER,
        )
        == 1.0
    )
    assert (
        predicted_prob(
            PredictiveDistribution((said("a", 1.0, reward=0.0, terminated=True),)),
            truth,
            Text("b"),
            VERIFIER,
        )
        == 0.0
    )
    assert (
        predicted_prob(
            PredictiveDistribution((said("a", 1.0, reward=1.0),)), truth, Text("b"), VERIFIER
        )
        == 0.0
    )


def test_rewards_are_the_same_up_to_a_thousandth_and_a_win_is_part_of_the_result():
    truth = certain(Text("a"), 1.0, True, True)
    for reward, same in ((1.0009, 1.0), (0.9991, 1.0), (1.0015, 0.0), (0.9985, 0.0), (-1.0, 0.0)):
        close = PredictiveDistribution((certain(Text("a"), reward, True, True),))
        assert predicted_prob(close, truth, Text("b"), VERIFIER) == same
    assert (
        predicted_prob(
            PredictiveDistribution((certain(Text("a"), 1.0, True, False),)),
            truth,
            Text("b"),
            VERIFIER,
        )
        == 0.0
    )


def test_what_is_held_is_a_share_of_what_was_sampled():
    distribution = PredictiveDistribution((said("a", 0.3), said("b", 0.1)))
    assert predicted_prob(
        distribution, certain(Text("a"), 0, False, False), Text("c"), VERIFIER
    ) == pytest.approx(0.75)
    assert predicted_prob(
        distribution, certain(Text("b"), 0, False, False), Text("c"), VERIFIER
    ) == pytest.approx(0.25)
    assert (
        predicted_prob(distribution, certain(Text("d"), 0, False, False), Text("c"), VERIFIER)
        == 0.0
    )
    third = PredictiveDistribution((said("a", 1 / 3), said("a", 1 / 3), said("a", 1 / 3)))
    assert predicted_prob(third, certain(Text("a"), 0, False, False), Text("c"), VERIFIER) == 1.0


@pytest.mark.parametrize("count", range(1, 50))
def test_rounding_never_makes_more_than_everything(count):
    """A sum of equal shares may come out a little above 1."""
    same = PredictiveDistribution((said("a", 1 / count),) * count)
    true = certain(Text("a"), 0, False, False)
    assert predicted_prob(same, true, Text("c"), VERIFIER) <= 1.0
    each = tuple(certain(Text(f"{n}"), 0, False, False, 1 / count) for n in range(count))
    spread_out = PredictiveDistribution(each)
    assert 1.0 - 1e-9 < overlap(spread_out, spread_out, Text("c"), VERIFIER) <= 1.0


class Judging:
    """A verifier that always says the same."""

    def __init__(self, verdict):
        self.verdict = verdict

    def verify(self, reply, truth, before):
        return self.verdict


def test_the_verifier_says_what_is_the_same_and_only_a_full_one_is():
    truth, distribution = (
        certain(Text("b"), 0, False, False),
        PredictiveDistribution((said("a", 1.0),)),
    )
    assert predicted_prob(distribution, truth, Text("c"), Judging(Verdict.of(1.0))) == 1.0
    assert predicted_prob(distribution, truth, Text("c"), Judging(Verdict.of(0.99))) == 0.0
    # What is equal needs no verdict.
    assert (
        predicted_prob(
            PredictiveDistribution((said("b", 1.0),)), truth, Text("c"), Judging(Verdict.of(0.0))
        )
        == 1.0
    )


def test_a_verifier_that_fails_is_an_error_and_no_zero():
    failed = Judging(Verdict.failed(Status.TIMEOUT, "too slow"))
    with pytest.raises(VerifierError, match="too slow"):
        predicted_prob(
            PredictiveDistribution((said("a", 1.0),)),
            certain(Text("b"), 0, False, False),
            Text("c"),
            failed,
        )


def test_truth_that_is_not_all_there_leaves_the_rest_wrong():
    truth = PredictiveDistribution(
        (certain(Text("a"), 0, False, False, 0.5), certain(Text("b"), 0, False, False, 0.25))
    )
    assert overlap(PredictiveDistribution((said("a", 1.0),)), truth, Text("c"), VERIFIER) == 0.5
    assert overlap(
        PredictiveDistribution((said("a", 0.5), said("b", 0.5))), truth, Text("c"), VERIFIER
    ) == pytest.approx(0.75)


def test_chances_are_probabilities_even_where_rounding_says_more():
    """Tokens' log-probabilities are sums of floats.

    A certain reply may come out a little above 0.
    """
    distribution = PredictiveDistribution(
        (Prediction(observation=Text("a"), reward=0.0, terminated=False, logprob=0.2, risk=0.0),)
    )
    assert distribution.chances.tolist() == [1.0] and distribution.missing == 0.0
    assert PredictiveDistribution((said("a", 0.7), said("b", 0.7))).missing == 0.0
    assert (
        PredictiveDistribution((said("a", 0.2),)).missing == pytest.approx(0.8)
        and PredictiveDistribution(()).missing == 1.0
    )


def test_what_could_not_be_parsed_is_not_held():
    """95% of what the model says is unreadable: it is wrong there, however right the rest is."""
    mumbling = PredictiveDistribution((said("a", 0.05),), counts=(1,), unreadable=19)
    truth = PredictiveDistribution((certain(Text("a"), 0, False, False),))
    assert overlap(mumbling, truth, Text("c"), VERIFIER) == pytest.approx(0.05)
    assert mumbling.readable == 0.05 and PredictiveDistribution((), unreadable=3).readable == 0.0
    drawn = [mumbling.draw(uniform) for uniform in np.linspace(0, 0.999, 100)]
    assert 94 <= drawn.count(None) <= 95


def test_disagreement_counts_unreadable_samples():
    assert PredictiveDistribution(
        (said("a", 0.5), said("b", 0.5)), counts=(2, 3), unreadable=5
    ).disagreement == pytest.approx(0.7)
    assert PredictiveDistribution((), counts=(), unreadable=4).disagreement == 1.0
    assert (
        PredictiveDistribution((said("a", 0.5),)).disagreement == 0.0
    )  # nothing was sampled: it is the truth


def test_a_draw_at_the_edges_is_one_of_the_predictions():
    distribution = PredictiveDistribution((said("a", 0.25), said("b", 0.25), said("c", 0.5)))
    drawn = [
        distribution.draw(uniform).observation.text
        for uniform in (0.0, 0.2499, 0.2501, 0.4999, 0.5001, 1.0)
    ]
    assert drawn == ["a", "a", "b", "b", "c", "c"]


def test_what_is_certain_has_its_chance_and_no_risk():
    sure, half = certain(Text("a"), 1.0, True, True), certain(Text("a"), 0.0, False, False, 0.5)
    assert (sure.logprob, sure.risk, sure.reward, sure.terminated, sure.success) == (
        0.0,
        0.0,
        1.0,
        True,
        True,
    )
    assert half.logprob == pytest.approx(math.log(0.5)) and not half.terminated and not half.success


def test_frames_get_partial_credit_from_their_verifier():
    class Half:
        def verify(self, reply, truth, before):
            return Verdict.of(0.5)

    black, grey = (Frames.of(np.full((1, 2, 2, 1), value, np.uint8)) for value in (0, 9))
    distribution = PredictiveDistribution((certain(black, 0, False, False),))
    assert predicted_prob(distribution, certain(grey, 0, False, False), black, Half()) == 0.5
    # The same verdict on text is no match: half a grid is another state.
    assert (
        predicted_prob(
            PredictiveDistribution((said("a", 1.0),)),
            certain(Text("b"), 0, False, False),
            Text("c"),
            Half(),
        )
        == 0.0
    )


def test_a_draw_follows_the_chances_and_unsampled_mass_is_shared():
    distribution = PredictiveDistribution((said("a", 0.6), said("b", 0.2)), counts=(3, 1))
    drawn = [distribution.draw(uniform).observation.text for uniform in np.linspace(0, 0.999, 100)]
    assert (
        drawn.count("a") == 75
        and distribution.missing == pytest.approx(0.2)
        and distribution.disagreement == 0.25
    )
    assert PredictiveDistribution(()).draw(0.5) is None


def test_the_truth_knows_every_slip_and_stops_at_what_is_no_state():
    world = FrozenLake.Config(size=3, success_rate=2 / 3).build()
    distribution = TrueModel(world).predict([asked(Text("___\n_P_\n__G"), "Right")])[0]
    assert [round(c, 3) for c in distribution.chances] == [0.667, 0.167, 0.167]
    assert TrueModel(world).predict([asked(Text("nonsense"), "Right")])[0].predictions == ()


class Repeating(Counter):
    """Lists each result twice, with half of its probability, and something impossible."""

    def truth(self, state, action):
        results = super().truth(state, action)
        halves = [replace(one, probability=one.probability / 2) for one in results]
        return [*halves, *halves, replace(results[0], reward=9.0, probability=0.0)]


def test_a_result_that_is_listed_twice_is_one_result():
    world = Repeating(Counter.Config())
    seen, _ = world.reset(seed=0)
    truth = TrueModel(world).predict([asked(seen, world.actions()[0])])[0]
    assert truth.chances.tolist() == [1.0]
    half_right = PredictiveDistribution(
        (
            replace(truth.predictions[0], logprob=math.log(0.5)),
            certain(Text("other"), 0.0, False, False, 0.5),
        )
    )
    assert overlap(half_right, truth, seen, world.verifier) == pytest.approx(0.5)


def test_nearest_copies_what_came_of_the_most_similar_step():
    steps = [
        Transition(observation=Text("aaaa"), action="x", next_observation=Text("aaab"), reward=1.0),
        Transition(observation=Text("bbbb"), action="x", next_observation=Text("cccc")),
    ]
    data = NearestData(steps)
    distances, nearest = data.look_up(
        [(Text("aaba"), "x"), (Text("bbbb"), "x"), (Text("aaaa"), "y")]
    )
    assert list(distances) == [0.25, 0.0, 1.0] and nearest == [steps[0], steps[1], None]
    copy = NearestCopy(data).predict([asked(Text("aaba"), "x")])[0].predictions[0]
    assert copy.observation == Text("aaab") and copy.reward == 1.0
    assert NoChange().predict([asked(Text("q"), "x")])[0].predictions[0].observation == Text("q")


def step(observation, action="x", **more):
    return Transition(
        observation=Text(observation), action=action, next_observation=Text("next"), **more
    )


def test_a_win_is_what_the_world_says_or_else_an_end_with_a_reward():
    def won(**more):
        return seen_truth(step("a", **more)).predictions[0].success

    assert won(terminated=True, reward=0.5) and not won(terminated=True) and not won(reward=0.5)
    assert won(terminated=True, info={"success": True}) and not won(
        terminated=True, reward=1.0, info={"success": False}
    )
    seen = seen_truth(step("a", terminated=True, reward=0.5))
    assert (seen.predictions[0].reward, seen.predictions[0].terminated, seen.chances[0]) == (
        0.5,
        True,
        1.0,
    )


def test_the_models_that_need_no_learning_say_what_they_should():
    still = NoChange().predict([asked(Text("q"), "x")])[0].predictions[0]
    assert (still.reward, still.terminated, still.success) == (0.0, False, False)
    assert (
        NearestCopy(NearestData([step("a")])).predict([asked(Text("a"), "other")])[0].predictions
        == ()
    )
    assert TrueModel.supports(Counter.Config().build()) and not TrueModel.supports(object())


def test_the_likeliest_truth_comes_first():
    world = FrozenLake.Config(size=3, success_rate=0.2).build()
    chances = TrueModel(world).predict([asked(Text("___\n_P_\n__G"), "Right")])[0].chances
    assert [round(chance, 3) for chance in chances] == [0.4, 0.4, 0.2]


def test_only_the_first_so_many_steps_are_kept_and_all_are_known():
    steps = [step("aa"), step("ab"), step("aa", reward=1.0), step("bb"), step("aa", action="y")]
    data = NearestData(steps, limit=2)
    assert data.unique_pairs == 4 and len(data.pairs) == 4 and (Text("bb"), "x") in data.pairs
    distances, nearest = data.look_up([(Text("bb"), "x"), (Text("aa"), "y")])
    assert distances.tolist() == [0.5, 1.0] and nearest == [steps[1], None]
    assert NearestData(steps).look_up([(Text("aa"), "x")])[1] == [steps[0]]  # the first of equals


def test_texts_of_other_lengths_are_compared_place_by_place():
    data = NearestData([step("abcd")])
    distances, _ = data.look_up(
        [(Text("ab"), "x"), (Text("abcdefgh"), "x"), (Text(""), "x"), (Text("Abcd"), "x")]
    )
    # What is beyond the longest text of the data is not in the data.
    assert distances.tolist() == [0.5, 0.5, 1.0, 0.25]
    cut = data.look_up([(Text("abcd" + "x" * 996), "x"), (Text("abcd\0"), "x")])[0]
    assert cut.tolist() == [0.996, 0.2]


def test_the_end_of_a_text_is_no_character():
    data = NearestData([step("ab"), step("abcd")])
    distances, nearest = data.look_up([(Text("ab\0\0"), "x")])
    assert distances.tolist() == [0.5] and nearest[0].observation == Text("ab")


def test_frames_of_another_shape_and_texts_are_as_far_as_can_be():
    def frames(*shape, value=0):
        return Frames.of(np.full(shape, value, np.uint8))

    def recorded(observation):
        return Transition(observation=observation, action="x", next_observation=observation)

    small = frames(1, 2, 2, 1)
    data = NearestData([recorded(small)])
    others = [frames(1, 4, 4, 1), frames(1, 1, 4, 1), frames(2, 2, 2, 1), Text("")]
    distances, nearest = data.look_up([(small, "x"), *((other, "x") for other in others)])
    assert distances.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert nearest[0].observation == small and nearest[1:] == [None] * 4
    both = NearestData([recorded(small), recorded(frames(1, 4, 4, 1, value=255)), step("abcd")])
    distances, _ = both.look_up([(frames(1, 4, 4, 1), "x"), (small, "x"), (Text("abcx"), "x")])
    assert distances.tolist() == [1.0, 0.0, 0.25]


def test_the_longest_text_of_the_data_sets_the_width():
    data = NearestData([step("ab"), step("abcd")])
    distances, nearest = data.look_up([(Text("abcx"), "x"), (Text("ab"), "x")])
    assert distances.tolist() == [0.25, 0.0] and nearest[0].observation == Text("abcd")
    nothing, found = NearestData([]).look_up([(Text("a"), "x")])
    assert nothing.tolist() == [1.0] and found == [None]


def test_frames_are_compared_pixel_by_pixel_whichever_is_brighter():
    pixels = ([0, 255, 51, 0], [102, 102, 102, 102], [255, 255, 255, 255])
    frames = [Frames.of(np.array(row, np.uint8).reshape(1, 2, 2, 1)) for row in pixels]
    data = NearestData(
        [Transition(observation=one, action="x", next_observation=one) for one in frames[1:]]
    )
    asked_for = [(frames[0], "x"), (frames[1], "x"), (frames[2], "x")]
    distances, nearest = data.look_up(asked_for)
    # 0.4 + 0.6 + 0.2 + 0.4 of four pixels to the grey frame, 1 + 0 + 0.8 + 1 to the white one
    assert distances.tolist() == pytest.approx([0.4, 0.0, 0.0])
    assert [one.observation for one in nearest] == [frames[1], frames[1], frames[2]]


def test_many_questions_at_once_are_answered_as_one_by_one():
    """More than are compared in one go, and actions mixed: no answer may slip to its neighbour."""
    steps = [step(f"{number:03d}", action="xy"[number % 2]) for number in range(150)]
    data = NearestData(steps)
    pairs = [(one.observation, one.action) for one in steps]
    distances, nearest = data.look_up(pairs)
    assert nearest == steps and not distances.any()
    shifted = [(Text(f"{number:03d}"), "x") for number in range(150)]
    together, alone = data.look_up(shifted)[0], [data.look_up([pair])[0][0] for pair in shifted]
    assert together.tolist() == alone and set(alone) == {0.0, 1 / 3}


def test_distance_between_frames_is_in_pixels():
    frames = [Frames.of(np.full((1, 2, 2, 1), value, np.uint8)) for value in (0, 51, 255)]
    data = NearestData([Transition(observation=frames[0], action="x", next_observation=frames[1])])
    distances, _ = data.look_up([(frames[1], "x"), (frames[2], "x")])
    assert list(distances) == pytest.approx([0.2, 1.0])


def test_a_lie_is_told_by_its_overlap():
    world = Counter.Config().build()
    world.reset(seed=0)
    questions = [asked(world.view.show(Count(value, 99)), "up") for value in range(200)]
    lying = Lying(world, by_chance(0.3))
    truth = TrueModel(world).predict(questions)
    held = [
        overlap(b, t, q.situation.observation, world.verifier)
        for b, t, q in zip(lying.predict(questions), truth, questions, strict=True)
    ]
    assert set(held) == {0.0, 1.0} and 0.6 < np.mean(held) < 0.8
    assert data_of(world, 5).unique_pairs > 5
