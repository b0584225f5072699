"""Horizons of models that lie from some depth on, and of distributions worked out by hand."""

from itertools import pairwise

import numpy as np
import pytest
from tests.support.made_models import Lying, by_chance

from terrella.core.episode import play
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.stats import wilson
from terrella.core.types import Episode, Frames, Situation, Split, Stop, Text, Transition, Verdict
from terrella.policies.basic import Random
from terrella.trust.horizon import (
    ImaginedBranch,
    accuracy_bound,
    carried,
    closed_loop,
    least_reached,
    mean_row,
    open_loop,
    query_at,
    random_starts,
    safe_horizon,
    spread,
)
from terrella.trust.predictive import certain
from terrella.trust.truth import NoChange, TrueModel
from terrella.verify.frames import FrameDistance
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


def episodes_of(world, count=30):
    return [
        play(world, Random.Config().build(), seed=seed, split=Split.TEST) for seed in range(count)
    ]


def told(episodes):
    """An instruction for each episode."""
    return [f"do {episode.seed}" for episode in episodes]


def test_the_truth_is_exact_at_every_depth_chance_included():
    world = FrozenLake.Config(size=3, success_rate=0.5).build()
    episodes = episodes_of(world)
    for loop in (open_loop, closed_loop):
        values = loop(TrueModel(world), episodes, world, 6, instructions=told(episodes))
        assert len(values[0]) == 30 > len(values[5]) > 0
        assert min(map(min, values)) > 0.99  # branches that are too light are dropped
        assert max(map(max, values)) <= 1.0
    assert np.mean(open_loop(NoChange(), episodes, world, 1, instructions=told(episodes))[0]) < 0.6


def test_a_model_that_lies_late_is_good_early_and_its_safe_horizon_says_so():
    world = Counter.Config().build()
    episodes = episodes_of(world, 60)
    model = Lying(world, lambda question: len(question.situation.history) >= 3)
    by_depth = open_loop(model, episodes, world, 6, instructions=told(episodes))
    rows = [mean_row(values) for values in by_depth]
    assert [row["mean"] for row in rows[:3]] == [1.0, 1.0, 1.0] and rows[3]["mean"] < 0.2
    table = carried(by_depth, [len(episode.transitions) for episode in episodes])
    bounds = [accuracy_bound([values.tolist()]) for values in table.T]
    assert safe_horizon(bounds, [60] * 6, error=0.1) == 3
    assert safe_horizon(bounds, [60, 29, 28, 28, 28, 28], error=0.1) == 2  # too few got further


def test_small_errors_add_up_in_the_open_loop_only():
    world = Counter.Config().build()
    episodes = episodes_of(world, 100)
    model = Lying(world, by_chance(0.1))
    opened, closed = (
        loop(model, episodes, world, 5, instructions=told(episodes))
        for loop in (open_loop, closed_loop)
    )
    assert np.mean(closed[4]) > 0.8 and np.mean(closed[4]) > np.mean(opened[4]) + 0.05


class Saying:
    """A world model that reads its answers from a table: observation -> [(next, chance, over)].

    It notes questions.
    """

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def predict(self, questions):
        self.asked += questions
        return [
            PredictiveDistribution(
                tuple(
                    certain(Text(text), 0.0, over, False, chance)
                    for text, chance, over in self.answers(question.situation.observation.text)
                )
            )
            for question in questions
        ]


def question(text="?", action="go"):
    return Query(
        Situation(instruction="", observation=Text(text), actions=(), history=(), steps_left=9),
        action,
    )


def weights(branches):
    return {branch.observation.text: round(branch.weight, 6) for branch in branches}


def test_branches_that_look_the_same_are_one_and_the_heaviest_lends_its_history():
    """x comes of a (0.3) and of b (0.7 * 0.5): who asks next sees that it came of b."""
    answers = {"a": [("x", 1.0, False)], "b": [("x", 0.5, False), ("y", 0.5, False)]}
    for order in (["a", "b"], ["b", "a"]):
        start = [ImaginedBranch(0.3 if name == "a" else 0.7, Text(name)) for name in order]
        (found,) = spread(Saying(answers.__getitem__), [start], [question()])
        assert weights(found) == {"x": 0.65, "y": 0.35} and found[0].observation == Text("x")
        assert [step.observation for step in found[0].history] == [Text("b")]
        assert (found[0].history[0].action, found[0].history[0].next_observation) == (
            "go",
            Text("x"),
        )


def test_an_end_is_not_the_same_as_no_end_and_what_has_ended_stays():
    model = Saying(lambda text: [("x", 0.5, True), ("x", 0.5, False)])
    (found,) = spread(model, [[ImaginedBranch(1.0, Text("a"))]], [question()])
    assert sorted((branch.terminated, branch.weight) for branch in found) == [
        (False, 0.5),
        (True, 0.5),
    ]
    (later,) = spread(Saying(lambda text: [("z", 1.0, False)]), [found], [question()])
    assert weights(later) == {"x": 0.5, "z": 0.5}


def test_chances_of_what_was_sampled_are_shared_out_and_what_was_unreadable_is_lost():
    (found,) = spread(
        Saying(lambda text: [("x", 0.3, False), ("y", 0.1, False)]),
        [[ImaginedBranch(0.8, Text("a"))]],
        [question()],
    )
    assert weights(found) == {"x": 0.6, "y": 0.2}
    (nothing,) = spread(Saying(lambda text: []), [[ImaginedBranch(0.8, Text("a"))]], [question()])
    assert nothing == []

    class Mumbling:
        def predict(self, questions):
            said = (certain(Text("x"), 0.0, False, False, 0.3),)
            return [PredictiveDistribution(said, counts=(1,), unreadable=3) for _ in questions]

    (found,) = spread(Mumbling(), [[ImaginedBranch(0.8, Text("a"))]], [question()])
    assert weights(found) == {"x": 0.2}  # three of four samples could not be parsed


def test_light_branches_are_dropped_and_no_more_than_32_are_kept():
    light = Saying(lambda text: [("x", 0.9985, False), ("y", 0.0015, False)])
    assert set(weights(spread(light, [[ImaginedBranch(1.0, Text("a"))]], [question()])[0])) == {
        "x",
        "y",
    }
    assert set(weights(spread(light, [[ImaginedBranch(0.6, Text("a"))]], [question()])[0])) == {"x"}
    edge = [ImaginedBranch(0.001, Text("a"))]
    assert len(spread(Saying(lambda text: [("x", 1.0, False)]), [edge], [question()])[0]) == 1
    chances = [1.0 + 0.01 * place for place in range(40)]
    many = Saying(
        lambda text: [(str(n), chance / sum(chances), False) for n, chance in enumerate(chances)]
    )
    kept = spread(many, [[ImaginedBranch(1.0, Text("a"))]], [question()])[0]
    assert [branch.observation.text for branch in kept] == [
        str(n) for n in range(39, 7, -1)
    ]  # the heaviest first


def test_merged_branches_are_ordered_by_what_they_weigh_together():
    """y (0.4) is heavier than either x (0.3 each), and lighter than both."""
    start = [
        ImaginedBranch(0.3, Text("a")),
        ImaginedBranch(0.4, Text("b")),
        ImaginedBranch(0.3, Text("c")),
    ]
    model = Saying(lambda text: [("y" if text == "b" else "x", 1.0, False)])
    assert list(weights(spread(model, [start], [question()])[0])) == ["x", "y"]


def test_distributions_of_several_episodes_do_not_mix():
    starts = [
        [ImaginedBranch(0.5, Text("a")), ImaginedBranch(0.5, Text("b"))],
        [ImaginedBranch(1.0, Text("c"))],
    ]
    model = Saying(lambda text: [(text + "!", 1.0, False)])
    found = spread(model, starts, [question(action="up"), question(action="down")])
    assert [weights(one) for one in found] == [{"a!": 0.5, "b!": 0.5}, {"c!": 1.0}]
    assert [one.action for one in model.asked] == ["up", "up", "down"]


def test_a_question_of_a_recorded_episode_knows_what_was_known_then():
    world = Counter.Config(max_steps=20).build()
    (episode,) = [play(world, Random.Config().build(), seed=3, split=Split.TEST)]
    asked = query_at(world, episode, 2, "do it")
    assert asked.situation.steps_left == 18 and asked.situation.instruction == "do it"
    assert asked.situation.observation == episode.transitions[2].observation
    assert asked.action == episode.transitions[2].action
    assert list(asked.situation.history) == list(episode.transitions[:2])
    assert query_at(world, episode, 0, "").situation.steps_left == 20


@pytest.mark.parametrize("loop", [open_loop, closed_loop])
def test_each_question_comes_with_the_instruction_of_its_episode(loop):
    world = Counter.Config().build()
    episodes = episodes_of(world, 3)
    asked = []

    class Recording(NoChange):
        def predict(self, questions):
            asked.extend(questions)
            return super().predict(questions)

    loop(Recording(), episodes, world, 2, instructions=told(episodes))
    assert {question.situation.instruction for question in asked} == {"do 0", "do 1", "do 2"}


def video(*values, over=False, reward=0.0):
    """A recorded episode of one-pixel frames."""
    seen = [Frames.of(np.full((1, 1, 1, 1), value, np.uint8)) for value in values]
    steps = [Transition(observation=a, action="go", next_observation=b) for a, b in pairwise(seen)]
    steps[-1] = Transition(
        observation=seen[-2], action="go", next_observation=seen[-1], terminated=over, reward=reward
    )
    return Episode(
        world="film",
        instance="i",
        split=Split.TEST,
        seed=0,
        noise_seed=0,
        policy="p",
        first=seen[0],
        transitions=tuple(steps),
        stop=Stop.OUT_OF_STEPS,
        outcome=Verdict.of(0.0),
    )


class Cinema:
    """A world that cannot say what else might have happened."""

    verifier = FrameDistance.Config().build()
    config = Counter.Config()


def test_a_world_that_cannot_tell_is_judged_by_what_was_seen():
    episodes = [video(0, 51, 102), video(0, 0)]
    # Still frames are 0.2 from 51 and 0.4 from 102; half of a distance is taken off.
    for loop, second in ((open_loop, 0.8), (closed_loop, 0.9)):
        found = loop(NoChange(), episodes, Cinema(), 3, instructions=told(episodes))
        assert [len(row) for row in found] == [2, 1, 0]
        assert found[0] == pytest.approx([0.9, 1.0]) and found[1] == pytest.approx([second])
    # An end or a reward that nobody foresaw makes a prediction wrong.
    ended, paid = [video(0, 0, over=True)], [video(0, 0, reward=1.0)]
    for loop in (open_loop, closed_loop):
        assert loop(NoChange(), ended, Cinema(), 1, instructions=[""]) == [[0.0]]
        assert loop(NoChange(), paid, Cinema(), 1, instructions=[""]) == [[0.0]]


class Flattering:
    """The exact model, but a share of its predictions at some depth pays one more."""

    def __init__(self, world, share, when):
        self.truth, self.share, self.when = TrueModel(world), share, when

    def predict(self, questions):
        truths = zip(questions, self.truth.predict(questions), strict=True)
        return [self.flatter(true) if self.when(q) else true for q, true in truths]

    def flatter(self, true):
        (only,) = true.predictions
        fixed = (only.terminated, only.success)
        honest = certain(only.observation, only.reward, *fixed, 1 - self.share)
        paid = certain(only.observation, only.reward + 1.0, *fixed, self.share)
        return PredictiveDistribution((honest, paid))


def test_a_reward_that_was_wrong_stays_wrong_in_the_open_loop():
    """A fifth of the second step is paid too much: right observations do not mend it."""
    world = Counter.Config(goals=1000).build()
    episodes = [one for one in episodes_of(world, 20) if len(one.transitions) >= 4]
    model = Flattering(world, 0.2, lambda question: len(question.situation.history) == 1)
    opened, closed = (
        loop(model, episodes, world, 4, instructions=told(episodes))
        for loop in (open_loop, closed_loop)
    )
    assert [np.mean(values) for values in opened] == pytest.approx([1.0, 0.8, 0.8, 0.8])
    assert [np.mean(values) for values in closed] == pytest.approx([1.0, 0.8, 1.0, 1.0])


def test_a_loop_begins_at_any_real_step_with_what_was_known_there():
    world = Counter.Config(goals=1000).build()
    episodes = episodes_of(world, 40)
    starts = random_starts(episodes, seed=3)
    assert starts == random_starts(episodes, seed=3) != random_starts(episodes, seed=4)
    assert min(starts) == 0 and max(starts) >= 5
    assert all(start < len(one.transitions) for start, one in zip(starts, episodes, strict=True))
    asked = []

    class Recording(TrueModel):
        def predict(self, questions):
            asked.append(list(questions))
            return super().predict(questions)

    found = open_loop(
        Recording(world), episodes, world, 3, instructions=told(episodes), starts=starts
    )
    for question, start, episode in zip(asked[0], starts, episodes, strict=True):
        assert question == query_at(world, episode, start, f"do {episode.seed}")
    left = [len(one.transitions) - start for start, one in zip(starts, episodes, strict=True)]
    assert [len(values) for values in found] == [
        sum(each > index for each in left) for index in range(3)
    ]
    assert min(map(min, found)) == 1.0


def test_a_model_that_lies_late_in_an_episode_is_found_by_loops_that_begin_there():
    world = Counter.Config(goals=1000).build()
    episodes = episodes_of(world, 60)
    model = Lying(world, lambda question: len(question.situation.history) >= 5)

    def accuracy(loop, starts):
        return np.mean(
            loop(model, episodes, world, 1, instructions=told(episodes), starts=starts)[0]
        )

    for loop in (open_loop, closed_loop):
        assert accuracy(loop, None) == 1.0 > 0.8 > accuracy(loop, random_starts(episodes, seed=0))


def test_mass_that_a_dream_has_lost_counts_as_wrong():
    """A quarter of the samples after the first step cannot be read any further."""
    world = Counter.Config().build()
    episodes = [one for one in episodes_of(world, 20) if len(one.transitions) >= 2]
    truth = TrueModel(world)

    class Forgetful:
        def predict(self, questions):
            told = truth.predict(questions)
            first = [
                PredictiveDistribution(
                    (
                        *(
                            certain(p.observation, p.reward, p.terminated, p.success, 0.75)
                            for p in b.predictions
                        ),
                        certain(Text("nonsense"), 0.0, False, False, 0.25),
                    )
                )
                for b in told
            ]
            return [
                b if q.situation.history else f
                for q, b, f in zip(questions, told, first, strict=True)
            ]

    rows = open_loop(Forgetful(), episodes, world, 2, instructions=told(episodes))
    assert rows[0] == pytest.approx([0.75] * len(episodes))
    assert rows[1] == pytest.approx(
        [0.75] * len(episodes)
    )  # 0.75 is left, and all of it is right: not 1


def test_a_model_that_is_sure_in_a_world_of_chance_is_right_as_often_as_chance_has_it():
    world = FrozenLake.Config(size=3, success_rate=0.5).build()
    truth, episodes = TrueModel(world), episodes_of(world)

    class Firm:
        def predict(self, questions):
            told = [one.predictions[0] for one in truth.predict(questions)]
            sure = [certain(p.observation, p.reward, p.terminated, p.success) for p in told]
            return [PredictiveDistribution((one,)) for one in sure]

    asked = [query_at(world, episode, 0, "") for episode in episodes]
    wanted = [float(one.chances[0]) for one in truth.predict(asked)]
    assert 0.3 < min(wanted) < 1.0
    for loop in (open_loop, closed_loop):
        assert loop(Firm(), episodes, world, 1, instructions=told(episodes))[0] == pytest.approx(
            wanted
        )


def test_a_row_is_a_mean_inside_its_interval_and_inside_what_is_possible():
    assert mean_row([]) == {"mean": None, "low": None, "high": None, "n": 0}
    row = mean_row([1.0, 0.5, 1.0, 0.5] * 10)
    assert (row["low"], row["high"]) == wilson(30, 40) and row["mean"] == 0.75
    never_wrong = mean_row([0.0] * 401)
    assert never_wrong["low"] == never_wrong["mean"] == 0.0 and 0.005 < never_wrong["high"] < 0.01


def test_the_safe_horizon_ends_at_the_first_doubt():
    least = least_reached(0.125)

    def horizon(*bounds, episodes=least):
        return safe_horizon(bounds, [episodes] * len(bounds), error=0.125)

    assert horizon(0.95, 0.92, 0.5, 0.99) == 2
    assert horizon(0.875, 0.875) == 2  # exactly what is allowed is allowed
    assert horizon(0.95, episodes=least - 1) == 0 and horizon() == 0
    # So many episodes without an error show it, and one fewer does not.
    assert accuracy_bound([[1.0] * least]) >= 0.875 > accuracy_bound([[1.0] * (least - 1)])


def test_an_episode_that_has_ended_keeps_its_last_accuracy():
    table = carried([[1.0, 0.5, 0.8], [0.9, 0.4], [0.2]], [1, 3, 2])
    assert table.tolist() == [[1.0, 1.0, 1.0], [0.5, 0.9, 0.2], [0.8, 0.4, 0.4]]


def test_the_bound_is_that_of_the_worst_policy_at_the_stated_confidence():
    assert accuracy_bound([[1.0] * 100]) == pytest.approx(0.05 ** (1 / 100))
    good, poor = [1.0] * 100, [1.0] * 80 + [0.0] * 20
    assert accuracy_bound([good, poor]) == accuracy_bound([poor]) < 0.8
