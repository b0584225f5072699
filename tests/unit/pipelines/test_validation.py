"""Held-out figures are over distinct instances, however often each one is drawn."""

from collections import Counter as Counted
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from terrella.core.episode import play
from terrella.core.errors import ConfigError, EngineError
from terrella.core.metric import Metric
from terrella.core.tokens import Task
from terrella.core.types import Split, Status, Text, Transition, Verdict
from terrella.engines.configs import RlvrConfig
from terrella.evals.baselines import baselines
from terrella.pipelines.rlvr import BaselinePart, Rlvr, RlvrResult
from terrella.pipelines.validation import evaluate, instance_of, no_change_mean
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.recipes import find_recipe
from terrella.rollout.tasks import PredictionTasks, distinct_instances
from terrella.verify.text import Exact
from terrella.world_models.imagine_gate import GatedWorld
from terrella.worlds.counter import Counter

STEP = Transition(observation=Text("a"), action="up", next_observation=Text("a"))


class Answers:
    """A rollout whose verdicts are given."""

    def __init__(self, *values):
        self.values = values

    def run(self, sampler, tasks, *, group_size, seed):
        verdicts = [
            Verdict.of(value) if value is not None else Verdict.failed(Status.ERROR, "world died")
            for value in self.values
        ]
        return [SimpleNamespace(outcome=verdict, record=None) for verdict in verdicts]


class Ailing(Counter):
    """A counter that fails at some numbers."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        fails: tuple[int, ...] = ()

    def outcomes(self, state, action):
        if state.goal in self.config.fails:
            raise TimeoutError("the simulator did not answer")
        return super().outcomes(state, action)


def test_baselines_leave_masked_episodes_out_and_count_them(caplog):
    world, healthy = Ailing.Config(goals=6, fails=(3,)), Ailing.Config(goals=6)
    seeds = distinct_instances(healthy.build(), range(40), Split.TRAIN)
    goals = {}
    for seed in seeds:
        built = healthy.build()
        built.reset(seed=seed, options={"split": Split.TRAIN})
        goals[seed] = built.state.goal
    assert 3 in goals.values()  # otherwise nothing is masked
    found = baselines(world.build(), split=Split.TRAIN, instances=40, plays=2, max_steps=1)
    assert found.masked > 0 and "the simulator did not answer" in caplog.text
    assert 0.0 <= found.random_played <= 1.0 and found.expert_played is not None
    with pytest.raises(EngineError, match="no episode of random play has a verdict"):
        dead = Ailing.Config(goals=6, fails=tuple(range(-20, 20)))
        baselines(dead.build(), split=Split.TRAIN, instances=10, plays=1)


def asked(*names):
    tasks = [Task(seed=0, transition=STEP, instance=name) for name in names]
    return lambda index: tasks[index]


def test_an_instance_that_is_drawn_three_times_counts_once():
    found = evaluate(Answers(1.0, 1.0, 0.0, 0.0), None, asked("a", "a", "a", "b"), count=4, seed=0)
    assert found.metric.n == 2 and found.metric.mean == pytest.approx((2 / 3 + 0.0) / 2)
    assert found.instances == {"a": pytest.approx(2 / 3), "b": 0.0}


def test_masked_verdicts_are_in_no_mean_and_are_counted():
    found = evaluate(Answers(1.0, None, None), None, asked("a", "a", "b"), count=3, seed=0)
    assert found.instances == {"a": 1.0} and found.metric.masked == 2 and found.metric.n == 1
    with pytest.raises(EngineError, match="all 2 verdicts are masked; the first: world died"):
        evaluate(Answers(None, None), None, asked("a", "b"), count=2, seed=0)


def test_a_wholly_masked_world_has_no_metric_and_leaves_the_others_theirs():
    tasks = [Task(seed=0, transition=STEP, instance="a", world=name) for name in ("one", "two")]
    found = evaluate(Answers(1.0, None), None, tasks.__getitem__, count=2, seed=0)
    assert found.worlds["one"].mean == 1.0 and found.worlds["two"] is None
    assert found.metric.masked == 1


def test_too_few_validation_tasks_are_refused_before_anything_runs():
    alone, mixed = find_recipe("tiny_counter")(), find_recipe("tiny_mixed")()
    model = TrainWorldModel.Config(world=Counter.Config(), evaluate_on=0)
    refused = (
        alone.replace(evaluate_on=0),
        mixed.replace(evaluate_on=1),
        model.replace(rlvr=RlvrConfig(steps=1)),
    )
    for config in refused:
        with pytest.raises(ConfigError, match="evaluate_on"):
            config.build()
    alone.replace(evaluate_on=1).build(), mixed.replace(evaluate_on=2).build(), model.build()


def test_agent_baselines_are_those_of_the_models_own_tasks(monkeypatch):
    """The same number of steps, and as many tasks of each world as the model is asked."""
    config = find_recipe("tiny_counter")().replace(evaluate_on=32)
    whole, short = (Rlvr(config.replace(max_turns=turns)).baselines().values for turns in (8, 3))
    assert whole["expert"] == 1.0 and short["expert"] < 1.0
    assert short["random_exact"] < whole["random_exact"]
    asked, mixed = {}, find_recipe("tiny_mixed")()
    (other,) = mixed.others
    mixed = mixed.replace(evaluate_on=20, others=(other.replace(share=7),))

    def counted(self, each, count):
        asked[each.world.owner.name] = count
        return BaselinePart(values={}, steps=0)

    monkeypatch.setattr(Rlvr, "_baselines", counted)
    Rlvr(mixed).baselines()
    tasks = Rlvr(mixed).validation_source().on(Split.VALIDATION).tasks.make()
    assert asked == Counted(tasks(index).world for index in range(20))


def test_the_baseline_is_over_the_same_instances():
    changed = Transition(observation=Text("a"), action="up", next_observation=Text("b"))
    steps = {"a": STEP, "b": changed}
    tasks = [Task(seed=0, transition=steps[name], instance=name) for name in "aaab"]
    mean = no_change_mean(Exact.Config().build(), tasks.__getitem__, 4)
    assert mean == 0.5  # not 3/4: "a" was drawn three times


def test_a_recorded_step_of_an_unknown_instance_is_its_own():
    other = Transition(observation=Text("a"), action="down", next_observation=Text("a"))
    names = [
        instance_of(Task(seed=n, transition=step)) for n, step in enumerate((STEP, STEP, other))
    ]
    assert names[0] == names[1] != names[2]


def test_predicted_steps_know_their_instance():
    world = Counter.Config(goals=10)
    tasks = PredictionTasks(world, split=Split.VALIDATION)
    names = {tasks(index).instance for index in range(200)}
    built = world.build()
    seeds = distinct_instances(built, range(2000), Split.VALIDATION)
    assert 5 < len(names) <= len(seeds) < 40  # 200 tasks, a few dozen instances at most
    found = baselines(built, split=Split.VALIDATION, instances=200, plays=1)
    assert found.instances <= len(seeds)


def test_an_agent_behind_a_gate_is_measured_in_the_real_world():
    """Its model is never asked: there is none. Episodes are as long as those of training."""
    counter = Counter.Config(goals=30, max_steps=3)
    behind = GatedWorld.Config(world=counter, folder=Path("no/such/model"), max_steps=8)
    pipeline = Rlvr(find_recipe("tiny_counter")().replace(world=behind, evaluate_on=16))
    real = counter.replace(max_steps=8)
    assert [each.world for each in pipeline.worlds().values()] == [behind]
    assert pipeline.validation_source().rollout.world == real
    assert pipeline.baselines() == Rlvr(pipeline.config.replace(world=real)).baselines()
    assert 16 < pipeline.baselines().steps <= 2 * 16 * 8
    metric = Metric.of([0.0, 1.0])
    result = RlvrResult(before=metric, after=metric, baselines={}, steps=1, validation_steps=1234)
    shown = dict(pipeline.summary(result))
    assert shown["measured in the real world"] == "counter, 1,234 real steps"
    real_run = Rlvr(pipeline.config.replace(world=real))
    assert "measured in the real world" not in dict(real_run.summary(result))


def test_a_validation_counts_the_steps_of_its_episodes():
    world = Counter.Config(goals=30).build()
    played = [play(world, Random.Config().build(), seed=seed) for seed in range(3)]

    class Played:
        def run(self, sampler, tasks, *, group_size, seed):
            return [SimpleNamespace(outcome=each.outcome, record=each) for each in played]

    found = evaluate(Played(), None, lambda index: Task(seed=index), count=3, seed=0)
    assert found.steps == sum(len(each.transitions) for each in played) > 3
