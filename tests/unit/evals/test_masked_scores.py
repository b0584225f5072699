"""A masked answer says nothing about the model: scores refuse it, they do not count a zero."""

import pytest

from terrella.core.errors import EngineError
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Status, Verdict
from terrella.evals import agents, text_games

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
