"""WebRL between its parts: what is evaluated, whose values are used, and what is counted."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.core.types import Split
from terrella.pipelines.webrl.context import TrainContext
from terrella.pipelines.webrl.phase import Phase
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.rollout.batch_rollout import BatchRollout, expert_actions
from terrella.worlds.counter import Counter


class ExpertAgent:
    """Whatever the actor, the world's expert plays."""

    def __init__(self, rollout):
        self.rollout = rollout
        self.played = []

    @contextlib.contextmanager
    def player(self, actor):
        yield self

    def play(self, tasks, *, split, greedy=False, max_env_steps=0):
        self.played = self.rollout.play(expert_actions, tasks, split=split)
        return self.played


def test_an_evaluation_counts_each_instance_once(tmp_path):
    with BatchRollout({"count": Counter.Config(goals=5)}) as rollout:
        agent = ExpertAgent(rollout)
        scores = TrainContext(rollout, agent, 0).evaluate(tmp_path, ["count"], 40, Split.TEST)
        instances = {attempt.instance for attempt in agent.played}
    assert scores.n == len(scores.successes) == len(instances) < 40


class TellingCritic:
    """Its value of a situation is whether it was fitted to it; `save` keeps what it knows."""

    def __init__(self, known):
        self.known = set(known)

    def forward_backward(self, steps):
        self.known |= {step.input for step in steps}
        return SimpleNamespace(loss=0.0)

    def optim_step(self, adam):
        return {}

    def values(self, inputs):
        return [float(each in self.known) for each in inputs]

    def save(self, path):
        SAVED[path] = self.known


SAVED = {}


class TellingAgent:
    suffix = ""

    @contextlib.contextmanager
    def critic(self, saved, *, base):
        yield TellingCritic(SAVED.get(saved, ()))


def test_no_fold_of_the_critic_has_seen_a_replayed_task(tmp_path):
    config = WebRl.Config(
        families={"count": Counter.Config()}, learner=WebRlUpdateConfig(critic_folds=2)
    )
    pipeline, context = WebRl(config), TrainContext(None, TellingAgent(), 0)
    first = Phase(tmp_path, context, tmp_path, 1)
    phases = {"abcd": first, "efabcd": dataclasses.replace(first, number=2)}
    for tasks, phase in phases.items():
        steps = [SimpleNamespace(task=task, input=task, next_input=task) for task in tasks]
        pipeline.fit_critic(phase, steps)
        assert pipeline._step_values(phase, steps) == [(0.0, 0.0)] * len(steps)
