"""A masked answer says nothing about the model: it is left out and counted, never a zero."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from terrella.core.claims import Claim
from terrella.core.errors import EngineError, PolicyError
from terrella.core.instances import plain
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Split, Status, Text, Transition, Verdict
from terrella.evals import agents, text_games
from terrella.evals.arm_tables import InstanceRows, arm_passes, decide_claims
from terrella.evals.pass_at_k import pass_at_k, share_mean
from terrella.evals.prediction_scores import prediction_scores
from terrella.evals.predictions import Predicted, PredictionRow, StepRow, predict_instance
from terrella.evals.reply_counts import ReplyCounts
from terrella.policies.basic import Random
from terrella.policies.chat_client import Usage
from terrella.rollout.tasks import PredictionTasks
from terrella.show.evaluation import prediction_rows
from terrella.worlds.frozen_lake import FrozenLake

MASKED = Verdict.failed(Status.TIMEOUT, "the verifier took 30 s")


def episode(outcome):
    return TokenEpisode(
        prompt_ids=(),
        completion_ids=(7,),
        model_mask=(True,),
        logprobs=(0.0,),
        turn_ends=(1,),
        turn_rewards=(0.0,),
        outcome=outcome,
        group="g",
    )


def test_a_text_game_has_three_marks_and_none_for_a_masked_answer():
    outcomes = (Verdict.of(1.0), Verdict.of(0.5), Verdict.unparsable("no answer"))
    assert "".join(text_games._mark(episode(outcome)) for outcome in outcomes) == "10?"
    with pytest.raises(EngineError, match=r"no verdict: the verifier took 30 s"):
        text_games._mark(episode(MASKED))


class Counted:
    """A codec of which the figures about replies are known."""

    form = "plain"
    states_in_replies = False

    def read_actions(self, reply):
        return ("Up",)

    def well_formed(self, reply):
        return True


def played(outcome, *, valid=True):
    """A played episode of one step."""
    step = Transition(
        observation=Text("a"),
        action="Up",
        next_observation=Text("b"),
        info={"valid": valid, "effective": True},
    )
    record = SimpleNamespace(transitions=(step,))
    return dataclasses.replace(episode(outcome), record=record)


def scores_of(*outcomes, samples=2):
    episodes = [each if isinstance(each, TokenEpisode) else played(each) for each in outcomes]
    return agents.episode_scores(episodes, Counted(), samples=samples, max_actions=1)


WON, LOST = Verdict.of(1.0), Verdict.of(0.0)


def test_a_masked_episode_is_left_out_and_counted(caplog):
    """One verifier that failed must not end hours of work, and must not look like a loss."""
    scores = scores_of(WON, MASKED, LOST, LOST, MASKED, MASKED)
    assert scores.passes["1"].mean == 0.5 and scores.passes["1"].n == 2
    assert scores.passes["1"].masked == 1  # the last instance has no judged episode
    assert scores.passes["2"].n == 1 and scores.passes["2"].masked == 2
    assert (scores.successes, scores.judged) == ([1, 0, 0], [1, 2, 0])
    assert (scores.masked, scores.masked_reason) == (3, "the verifier took 30 s")
    assert "3 of 6 episodes of the evaluation are masked" in caplog.text


def test_a_masked_episode_is_in_no_figure_about_replies():
    broken = played(MASKED, valid=False)
    assert scores_of(WON, broken).valid_actions == 1.0
    assert scores_of(WON, played(LOST, valid=False)).valid_actions == 0.5


def test_scores_without_a_masked_episode_are_as_ever():
    scores = scores_of(WON, LOST, LOST, LOST)
    assert (scores.judged, scores.masked, scores.masked_reason) == (None, 0, "")
    whole = [float(value) for value in pass_at_k([1, 0], samples=2, k=2)]
    assert scores.passes["2"] == share_mean(whole) and scores.passes["1"].mean == 0.25


def test_when_every_episode_is_masked_the_evaluation_says_so():
    with pytest.raises(EngineError, match=r"all 2 episodes are masked.*took 30 s"):
        scores_of(MASKED, MASKED)


def test_arms_are_paired_on_the_instances_that_both_were_judged_on():
    whole = InstanceRows(successes=[2, 0, 1], samples=2)
    masked = InstanceRows(successes=[1, 0, 0], samples=2, judged=[1, 0, 2])
    assert arm_passes({"0": masked})["pass@1"]["mean"] == 0.5
    assert arm_passes({"0": masked})["pass@2"]["mean"] == 0.0
    rows = {"better": {"0": whole}, "worse": {"0": masked}}
    (claim,) = decide_claims(rows, [Claim("better", "worse")])
    assert (claim["n"], claim["per_seed"]) == (2, [0.25])


def test_a_masked_continuation_is_not_a_false_one(monkeypatch, caplog):
    class Answering:
        config = agents.Rollout.Config(world=agents.World.Config())
        codec = None

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, *_, **__):
            return [episode(Verdict.of(1.0)), episode(MASKED)]

    monkeypatch.setattr(agents, "Rollout", Answering)
    monkeypatch.setattr(agents, "PredictionTasks", lambda *_, **__: lambda index: index)
    config = agents.Evaluate.Config(instances=2)
    assert agents.true_continuations(config, Answering(), None) == (1.0, 1)
    assert "1 of 2 predictions of the evaluation are masked" in caplog.text
    monkeypatch.setattr(Answering, "run", lambda *_, **__: [episode(MASKED)])
    assert agents.true_continuations(config, Answering(), None) == (None, 1)


def test_answers_beside_a_failed_request_were_paid_for():
    class Failing:
        asked = 0

        async def predict(self, situation, action):
            self.asked += 1
            if self.asked == 2:
                raise PolicyError("endpoint", "HTTP 500")
            await asyncio.sleep(0)
            usage = Usage(requests=1, prompt_tokens=10, completion_tokens=2)
            return Predicted(observation=situation.observation, text="", usage=usage)

    world = FrozenLake.Config()
    episodes = PredictionTasks(world, Random.Config(), split=Split.TEST)
    tasks = next(each for n in range(20) if len(each := episodes.episode(n)) >= 3)
    predictor = Failing()
    row = asyncio.run(
        predict_instance(predictor, world.build().verifier, "i", tasks, steps=3, horizon=2)
    )
    assert row.reason == "endpoint: HTTP 500" and row.may_pass
    assert row.usage == Usage(requests=2, prompt_tokens=20, completion_tokens=4)


def test_a_depth_without_a_verdict_keeps_its_place():
    def step(depth, value):
        return StepRow(
            step=depth,
            action="up",
            changed=True,
            value=value,
            no_change=0.0,
            status="ok" if value is not None else "timeout",
            written=ReplyCounts(),
        )

    imagined = [step(0, 1.0), step(1, None), step(2, 0.0)]
    rows = [
        PredictionRow(instance=name, seed=0, steps=[step(0, 1.0)], imagined=imagined, usage=Usage())
        for name in ("a", "b")
    ]
    scores = prediction_scores(rows)
    assert [each and each.model.mean for each in scores.horizon] == [1.0, None, 0.0]
    shown = {row[0]: row[1] for row in prediction_rows(plain(scores))}
    assert shown["2 ahead in imagination"] == "no such step"
    assert shown["3 ahead in imagination"].startswith("0.000")
