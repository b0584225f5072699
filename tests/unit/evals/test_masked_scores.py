"""A masked answer says nothing about the model: scores refuse it, they do not count a zero."""

import asyncio

import pytest

from terrella.core.errors import EngineError, PolicyError
from terrella.core.instances import plain
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Split, Status, Verdict
from terrella.evals import agents, text_games
from terrella.evals.prediction_scores import prediction_scores
from terrella.evals.predictions import Predicted, PredictionRow, StepRow, predict_instance
from terrella.evals.written import Written
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


def test_a_masked_continuation_is_not_a_false_one(monkeypatch):
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
    with pytest.raises(ValueError, match="cannot be counted"):
        agents.true_continuations(agents.Evaluate.Config(instances=2), Answering(), None)


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
            written=Written(),
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
