"""The risk section: what a prediction set holds, which rows calibrate, and for whom it holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.seeds import CERTIFY_FIRST
from terrella.core.types import Situation, Split, Text
from terrella.pipelines.certify.pipeline import Certify
from terrella.pipelines.certify.records import Evidence, StepPredictions
from terrella.pipelines.certify.risk import (
    prediction_set,
    prediction_sets,
    risk_section,
    risk_threshold,
    step_mean_row,
)
from terrella.pipelines.certify.sections import Sections
from terrella.pipelines.certify.steps import sample_steps
from terrella.policies.basic import Expert, Mixture, Random
from terrella.rollout.tasks import PredictionTasks
from terrella.trust.horizon import mean_row
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain
from terrella.trust.risk import RiskModel, calibration_rows, fit_risk
from terrella.trust.truth import TrueModel
from terrella.verify.text import Exact
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

VERIFIER = Exact.Config().build()
STRICT = RiskModel((0.0,) * 5, 0.2, 0.9)
"""Its sets hold what has a probability of nearly 1, and what is most likely."""
WHOLE = RiskModel((0.0,) * 5, 1.0, 0.9)


def said(*pairs, **more):
    results = tuple(certain(Text(text), 0.0, False, False, chance) for text, chance in pairs)
    return PredictiveDistribution(results, **more)


def query(text="?"):
    situation = Situation(
        instruction="", observation=Text(text), actions=(), history=(), steps_left=5
    )
    return Query(situation, "x")


def made_steps(distributions, truths, *, signals=None, wrong=None, policies=1, lengths=None):
    n = len(distributions)
    return StepPredictions(
        queries=[query()] * n,
        changed=np.ones(n, bool),
        signals=np.full((n, 4), 0.5) if signals is None else signals,
        wrong=np.zeros(n) if wrong is None else wrong,
        probs=np.ones(n),
        distributions=distributions,
        truths=truths,
        policies=np.arange(n) % policies,
        instances=[f"i{number // policies}" for number in range(n)],
        lengths=np.full(n, 5) if lengths is None else lengths,
    )


def test_a_set_always_holds_what_is_most_likely():
    """A set that is empty although the model has an answer would be right by saying nothing."""
    unsure = said(("a", 0.4), ("b", 0.3), ("c", 0.3))
    held = prediction_set(STRICT, 0.9, unsure, Text("?"), VERIFIER)
    assert [each.observation.text for each in held] == ["a"]
    assert len(prediction_set(WHOLE, 0.9, unsure, Text("?"), VERIFIER)) == 3


def test_a_set_without_a_readable_prediction_is_empty_and_holds_nothing():
    truth = said(("a", 1.0))
    steps = made_steps([said(unreadable=4), said(("a", 1.0))], [truth, truth])
    sizes, covered = prediction_sets(STRICT, np.array([0.1, 0.1]), steps, VERIFIER)
    assert sizes == ["0", "1"] and covered == [0.0, 1.0]


def test_coverage_is_the_true_chance_that_the_set_holds_the_result():
    coin = said(("a", 0.7), ("b", 0.3))
    steps = made_steps([said(("a", 1.0)), said(("c", 1.0)), coin], [coin, coin, coin])
    sizes, covered = prediction_sets(STRICT, np.zeros(3), steps, VERIFIER)
    assert covered == pytest.approx([0.7, 0.0, 0.7]) and sizes == ["1", "1", "1"]
    sizes, covered = prediction_sets(WHOLE, np.zeros(3), steps, VERIFIER)
    assert covered == pytest.approx([1.0, 1.0, 1.0]) and set(sizes) == {"all"}


def test_the_threshold_is_blind_to_the_rows_of_the_fit():
    rng = np.random.default_rng(0)
    values = rng.random((600, 4))
    right = said(("a", 1.0))
    steps = made_steps([right] * 600, [right] * 600, signals=values, wrong=np.zeros(600))
    model = fit_risk(values, steps.wrong, steps.probs, level=0.9)
    rest = calibration_rows(600)
    assert rest.start == 90
    of_fit, of_calibration = np.zeros(600), np.zeros(600)
    of_fit[: rest.start], of_calibration[rest] = 1.0, 1.0

    def threshold(wrong):
        return risk_threshold(model, replace(steps, wrong=wrong), 0.03, ["random"]).value

    assert threshold(np.zeros(600)) is not None
    assert threshold(of_fit) == threshold(np.zeros(600)) and threshold(of_calibration) is None


def test_a_policy_that_goes_wrong_closes_the_gate_for_all():
    right = said(("a", 1.0))
    rng = np.random.default_rng(1)
    values = np.repeat(rng.random((400, 4)), 2, axis=0)
    wrong = np.zeros(800)
    steps = made_steps([right] * 800, [right] * 800, signals=values, wrong=wrong, policies=2)
    model = fit_risk(values, wrong, steps.probs, steps.policies.tolist(), level=0.9)
    names = ["calm", "wild"]
    assert risk_threshold(model, steps, 0.03, names).value is not None
    one_in_ten = replace(steps, wrong=np.where(np.arange(800) % 20 == 1, 1.0, 0.0))
    assert one_in_ten.wrong.mean() == 0.05
    refused = risk_threshold(model, one_in_ten, 0.06, names)
    assert refused.value is None and "no steps of wild" in refused.reasons[0]
    section = risk_section(model, steps, one_in_ten, VERIFIER, step_error=0.03, policies=names)
    assert (section["calibration"], section["held_out"], section["fitted_on"]) == (400, 400, 60)
    wrong_rows = {name: row["trusted_wrong"]["mean"] for name, row in section["by_policy"].items()}
    assert wrong_rows == {"calm": 0.0, "wild": pytest.approx(0.1)}
    assert section["coverage"]["n"] == 400 and section["empty_sets"] == 0.0


def test_the_threshold_is_for_steps_where_long_episodes_are_the_hard_ones():
    """One episode in twenty has 100 steps and is wrong in a fifth of them; the others have 2."""
    rng = np.random.default_rng(2)
    n, right = 20_000, said(("a", 1.0))
    lengths = np.where(rng.random(n) < 0.05, 100, 2)
    wrong = ((lengths == 100) & (rng.random(n) < 0.2)).astype(float)
    assert wrong.mean() < 0.012 and (wrong * lengths).sum() / lengths.sum() > 0.13
    model = RiskModel((0.0,) * 5, 0.5, 0.9)  # no signal tells the steps apart

    def threshold(lengths):
        steps = made_steps([right] * n, [right] * n, wrong=wrong, lengths=lengths)
        return risk_threshold(model, steps, 0.03, ["random"])

    assert threshold(np.full(n, 5)).value is not None  # a random step of a random episode
    refused = threshold(lengths)
    assert refused.value is None and "no steps of random" in refused.reasons[0]
    tested = n * 0.85 * (0.05 + 0.95 * 0.02)
    assert refused.steps[0] == pytest.approx(tested, rel=0.1)


def test_too_few_steps_for_a_threshold_say_so_and_what_to_do():
    lengths = np.where(np.arange(400) == 399, 100, 2)
    right = said(("a", 1.0))
    steps = made_steps([right] * 400, [right] * 400, lengths=lengths)
    model = RiskModel((0.0,) * 5, 0.5, 0.9)
    section = risk_section(model, steps, steps, VERIFIER, step_error=0.03, policies=["random"])
    (reason,) = section["no_threshold"]
    assert section["threshold"] is None and 0 < section["threshold_steps"]["random"] < 20
    assert "steps test it, 99 can: certify on more instances" in reason


def test_trusted_steps_count_by_the_length_of_their_episode():
    lengths = np.tile([30, 10, 10, 10], 25)
    wrong = np.tile([1.0, 0.0, 0.0, 0.0], 25)
    right = said(("a", 1.0))
    steps = made_steps([right] * 100, [right] * 100, wrong=wrong, lengths=lengths, policies=2)
    section = risk_section(
        STRICT,
        made_steps([right] * 1000, [right] * 1000, policies=2),
        steps,
        VERIFIER,
        step_error=0.03,
        policies=["calm", "wild"],
    )
    assert section["trusted_share"] == 1.0
    rows = {name: row["trusted_wrong"] for name, row in section["by_policy"].items()}
    assert rows["calm"]["mean"] == pytest.approx(30 / 40)
    assert rows["wild"]["mean"] == 0.0 and rows["wild"]["n"] == 50
    assert section["trusted_wrong"]["mean"] == pytest.approx(30 / 60)
    assert section["coverage"]["mean"] == 1.0  # of a random step of a random episode


def test_with_equal_lengths_the_mean_over_steps_is_the_usual_one():
    values = np.random.default_rng(3).random(40)
    names = np.array([f"i{number}" for number in range(40)])
    assert step_mean_row(values, np.full(40, 7), names) == pytest.approx(mean_row(list(values)))
    assert step_mean_row(values[:0], np.zeros(0), names[:0]) == mean_row([])
    one = step_mean_row(values[:1], np.full(1, 7), names[:1])
    assert one["mean"] == pytest.approx(values[0]) and 0.0 < one["low"] < one["high"] < 1.0
    # One long episode says less than forty short ones.
    long = step_mean_row(np.zeros(40), np.array([400.0] + [1.0] * 39), names)
    assert long["high"] > step_mean_row(np.zeros(40), np.ones(40), names)["high"]


def test_every_policy_takes_a_step_in_every_instance():
    config = Certify.Config(
        world=Counter.Config(goals=200),
        folder=Path(),
        policy=Mixture.Config(share=0.5),
        beside=(Random.Config(), Expert.Config()),
    )
    steps, _ = sample_steps(config, Split.VALIDATION, 10)
    assert [step.policy for step in steps] == [0, 1, 2] * 10
    names = [step.instance for step in steps]
    assert names[0::3] == names[1::3] == names[2::3] and len(set(names)) == 10
    expert = PredictionTasks(config.world, Expert.Config(), split=Split.VALIDATION, seed=1)
    first = names[0::3].index(expert.instance(CERTIFY_FIRST))
    assert steps[3 * first + 2].length == len(expert.episode(CERTIFY_FIRST))
    assert len({step.length for step in steps}) > 1


def test_instances_that_the_world_draws_often_are_not_the_first_of_the_steps():
    config = Certify.Config(
        world=FrozenLake.Config(size=3), folder=Path(), policy=Random.Config(), beside=()
    )
    steps, _ = sample_steps(config, Split.VALIDATION, 300)
    holes = [str(step.query.situation.observation).count("O") for step in steps]
    tasks = PredictionTasks(config.world, Random.Config(), split=Split.VALIDATION, seed=1)
    met = list(dict.fromkeys(map(tasks.instance, range(CERTIFY_FIRST, CERTIFY_FIRST + 1200))))
    place = {name: number for number, name in enumerate(met)}
    places = [place[step.instance] for step in steps]
    assert sorted(places) == list(range(300)) != places
    # Maps with few holes are drawn most often, so that they would all be the first.
    assert abs(np.mean(holes[:45]) - np.mean(holes[45:])) < 0.35


def measured(world, folder, *, episodes=30, split=Split.TRAIN):
    """The sections of the true model of a world, as if it was fitted to so many episodes."""
    config = Certify.Config(
        world=world,
        folder=folder,
        policy=Random.Config(),
        calibration=60,
        held_out=60,
        horizon_episodes=3,
        ranked_on=0,
        exploited_on=0,
    )
    random = Random.Config().build()
    played = [play(world.build(), random, seed=seed, split=split) for seed in range(episodes)]
    data = NearestData.of_episodes(played)
    return Certify(config).measure(model=TrueModel(world.build()), data=data)


@pytest.mark.parametrize("split", [Split.VALIDATION, Split.TEST])
def test_a_model_is_not_measured_on_instances_that_it_was_fitted_to(tmp_path, split):
    world = Counter.Config(goals=200)
    assert measured(world, tmp_path)["risk"]["coverage"]
    with pytest.raises(ConfigError, match=r"fitted to \d+ of the \d+ instances.*\n.*split train"):
        measured(world, tmp_path, split=split)


def test_a_certificate_says_where_held_out_states_are_in_the_data(tmp_path):
    """No held-out episode is in the data, but other episodes pass through its states."""
    small = measured(Counter.Config(goals=20), tmp_path, episodes=100)
    share = small["coverage"]["seen"]["share"]
    assert share > 0.3
    assert f"{share:.0%} of the held-out steps" in small["about"]["caveat"]
    assert "new episodes, and says less about new states" in small["about"]["caveat"]
    large = measured(Counter.Config(goals=2000), tmp_path)
    assert large["coverage"]["seen"]["share"] < 0.1 and large["about"]["caveat"] == ""


def test_episodes_on_instances_of_the_data_are_refused_too():
    world = Counter.Config(goals=200)
    config = Certify.Config(world=world, folder=Path(), policy=Random.Config(), horizon_episodes=3)
    data = NearestData([])
    sections = Sections(config, Evidence(world.build(), TrueModel(world.build()), data))
    played = sections._play_real(Random.Config().build(), 3)
    data.instances = frozenset({played.episodes[0].instance})
    with pytest.raises(ConfigError, match="fitted to 1 of the 3 instances"):
        sections.horizon()


def test_every_real_step_is_counted(monkeypatch):
    """Also those after the step that is asked; an instance that is drawn again takes none."""
    taken = []
    step = Counter.step

    def counted(self, action):
        taken.append(action)
        return step(self, action)

    monkeypatch.setattr(Counter, "step", counted)
    config = Certify.Config(
        world=Counter.Config(goals=10),
        folder=Path(),
        policy=Mixture.Config(share=0.5),
        beside=(Random.Config(),),
    )
    steps, env_steps = sample_steps(config, Split.TEST, 30)
    assert len(steps) < 2 * 30  # there are fewer instances
    assert env_steps == len(taken) > len(steps)


def test_the_policies_that_it_holds_for_are_those_of_the_data_and_what_they_mix(tmp_path):
    world = Counter.Config()

    def under(**changes):
        config = Certify.Config(world=world, folder=tmp_path, **changes)
        return Certify(config)._with_defaults(world.build()).under

    assert under(policy=Random.Config()) == (Random.Config(),)
    both = under(policy=Random.Config(), beside=(Expert.Config(),))
    assert both == (Random.Config(), Expert.Config())
