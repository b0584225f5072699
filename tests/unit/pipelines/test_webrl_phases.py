"""WebRL between its parts: what is evaluated, whose values are used, and what is counted."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.core.errors import EngineError
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.attempts import Attempt, PracticeTask
from terrella.pipelines.webrl.context import TrainContext, _demonstrate, judge_spec
from terrella.pipelines.webrl.curriculum import Curriculum
from terrella.pipelines.webrl.metrics import success_scores
from terrella.pipelines.webrl.outcome_model import OutcomeModel
from terrella.pipelines.webrl.phase import Phase
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.rollout.batch_rollout import BatchRollout, expert_actions
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban


class ExpertAgent:
    """Whatever the actor, the world's expert plays."""

    def __init__(self, rollout):
        self.rollout = rollout
        self.played = []

    @contextlib.contextmanager
    def player(self, actor):
        yield self

    def play(self, tasks, *, split, greedy=False, max_env_steps=0, watch, journal):
        self.played = self.rollout.play(
            expert_actions, tasks, split=split, watch=watch, journal=journal
        )
        return self.played


def test_an_evaluation_counts_each_instance_once(tmp_path):
    with BatchRollout({"count": Counter.Config(goals=5)}) as rollout:
        agent = ExpertAgent(rollout)
        scores = TrainContext(rollout, agent, 0, 20).evaluate(tmp_path, ["count"], 40, Split.TEST)
        instances = {attempt.instance for attempt in agent.played}
    assert scores.n == len(scores.successes) == len(instances) < 40


def attempt(name, success):
    task = PracticeTask(family=name, seed=0)
    return Attempt(task=task, instruction="", choices=(), last="", success=success, stop="")


def test_an_attempt_without_a_verdict_is_in_no_figure():
    played = [attempt("a", True), attempt("a", False), attempt("a", None), attempt("b", None)]
    scores = success_scores(played)
    assert (scores.mean, scores.n, scores.masked) == (0.5, 2, 2)
    assert scores.families == {"a": 0.5} and scores.judged == [1, 1, 0, 0]
    assert scores.passes["1"].mean == 0.5
    with pytest.raises(EngineError, match="all 2 attempts are masked"):
        success_scores(played[2:])


def test_each_seed_has_demonstrations_and_test_instances_of_its_own(tmp_path):
    shown, tested = [], []
    with BatchRollout({"soko": Sokoban.Config(longest=7, max_steps=6)}) as rollout:
        for seed in (0, 1):
            config = WebRl.Config(
                families=rollout.families, demonstrations=4, seed=seed, out=tmp_path / str(seed)
            )
            context = TrainContext(
                rollout, SimpleNamespace(writes=False, in_own_words=list), seed, 9
            )
            run = SimpleNamespace(is_main=True)
            attempts, _ = _demonstrate(run, config, context, tmp_path / f"{seed}.jsonl")
            shown.append({each.instance for each in attempts})
            tested.append(set(context.distinct_seeds("soko", 4, Split.TEST)))
    assert not shown[0] & shown[1] and not tested[0] & tested[1]


def test_an_outcome_model_is_another_one_where_the_first_policy_is():
    """A judge's attempts are those of its base: a base with other families needs another judge."""
    families = {"count": Counter.Config()}, {"count": Counter.Config(goals=7)}
    first, second = (
        judge_spec(WebRl.Config(families=each, outcome_judge="model")) for each in families
    )
    assert first != second


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


class QuietRun:
    """A folder and a display, without the rest of a run."""

    progress = SilentProgress()

    def __init__(self, path):
        self.path = path

    def __truediv__(self, name):
        return self.path / name


class Recorded(SilentProgress):
    """How far each part was shown to be, in the order of the parts."""

    def __init__(self):
        self.parts = {}

    def phase(self, name, total):
        self.current = self.parts[name] = [total]

    def advance(self, done, **metrics):
        self.current.append(done)


def test_no_fold_of_the_critic_has_seen_a_replayed_task(tmp_path):
    config = WebRl.Config(
        families={"count": Counter.Config()}, learner=WebRlUpdateConfig(critic_folds=2)
    )
    pipeline, context = WebRl(config), TrainContext(None, TellingAgent(), 0, 20)
    first = Phase(QuietRun(tmp_path), context, tmp_path, 1)
    phases = {"abcd": first, "efabcd": dataclasses.replace(first, number=2)}
    for tasks, phase in phases.items():
        steps = [SimpleNamespace(task=task, input=task, next_input=task) for task in tasks]
        pipeline.fit_critic(phase, steps)
        assert pipeline._step_values(phase, steps) == [(0.0, 0.0)] * len(steps)


class NumberedActor:
    """Its log-probability of any action is minus the phase that it was saved after."""

    def __init__(self, saved):
        self.number = int(saved.parent.name.removeprefix("phase-"))
        self.columns = []

    def logprobs(self, steps):
        return [(-float(self.number),)] * len(steps)

    def forward_backward(self, steps, columns, loss, **knobs):
        self.columns += columns
        return SimpleNamespace(loss=0.0, metrics={}, outputs=self.logprobs(steps))

    def optim_step(self, adam):
        return {}

    def save(self, path):
        TRAINED.append(self)


TRAINED = []


class NumberedAgent(TellingAgent):
    suffix = ".pt"

    @contextlib.contextmanager
    def actor(self, saved):
        yield NumberedActor(saved)


@pytest.mark.parametrize("loss", ["webrl_paper", "grpo"])
@pytest.mark.parametrize(("reference", "number"), [("last_phase", 2), ("imitation", 0)])
def test_a_loss_stays_near_the_policy_that_is_asked_for(tmp_path, loss, reference, number):
    grouped = {"loss": loss, "group_size": 2, "curriculum": "fixed"}
    config = WebRl.Config(families={"count": Counter.Config()}, reference=reference, **grouped)
    context = TrainContext(None, NumberedAgent(), 0, 20)
    base = tmp_path / "phase-00"
    third = Phase(QuietRun(tmp_path), context, base, 3)
    step = SimpleNamespace(
        task="a", input="a", next_input="a", outcome=1.0, steps_to_go=0, advantage=1.0
    )
    WebRl(config).fit_actor(third, [step])
    (columns, *_) = TRAINED.pop().columns
    assert columns["reference"] == (-float(number),)
    # What a clipped ratio is relative to is always the policy that played.
    assert columns.get("old", (-2.0,)) == (-2.0,)


def test_every_real_step_is_counted_and_an_overrun_is_made_up_for(tmp_path, monkeypatch):
    taken, evaluating, step, evaluate = [], [], World.step, TrainContext.evaluate

    def counted(self, action):
        if not evaluating:
            taken.append(action)
        return step(self, action)

    def uncounted(self, *arguments, **named):
        evaluating.append(True)
        try:
            return evaluate(self, *arguments, **named)
        finally:
            evaluating.pop()

    monkeypatch.setattr(World, "step", counted)
    monkeypatch.setattr(TrainContext, "evaluate", uncounted)
    config = WebRl.Config(
        families={"count": Counter.Config(goals=4, max_steps=8)},
        demonstrations=6,
        imitation_updates=2,
        phases=3,
        phase_steps=30,
        slots=4,
        test=2,
        width=16,
        layers=1,
        practice=Curriculum.Config(tries=2, check=True),
        learner=WebRlUpdateConfig(epochs=1, critic_epochs=1, batch=16),
        outcome_judge="model",
        outcome_model=OutcomeModel.Config(attempts=16, epochs=1),
        base_cache=tmp_path / "bases",
        out=tmp_path / "run",
    )
    shown = Recorded()
    result = WebRl(config).run(shown)
    cost = result.rl
    assert cost.env_steps == len(taken)
    assert min(cost.practice, cost.checks, cost.outcome_model, cost.demonstrations) > 0
    # No more than the last attempts of the last phase beyond the budget, however many phases.
    assert 90 <= cost.practice < 90 + 4 * 8
    # Whoever waits sees each part from its beginning to its end.
    expected = ("practice, env steps", "critic", "actor", "validation")
    assert [name for name in shown.parts if name.startswith("phase 2")] == [
        f"phase 2, {name}" for name in expected
    ]
    assert {"imitate", "outcome model", "phase 3, test"} <= set(shown.parts)
    assert shown.parts.pop("phases") == [3, 3]
    for name, (total, first, *_, last) in shown.parts.items():
        assert (first, last) == (0, total) and total > 0, name
