"""A model with its risk and certificate: sync and async predictions, verdicts, samplers."""

import asyncio

import pytest
from tests.support.made_models import certified_model_of

from terrella.core.errors import ConfigError
from terrella.core.predictive import Query
from terrella.core.tokens import TokenRequest
from terrella.core.types import Situation
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.truth import TrueModel
from terrella.worlds.counter import Counter


def counter_query():
    world = Counter.Config().build()
    observation, _ = world.reset(seed=0)
    situation = Situation(
        instruction="", observation=observation, actions=world.actions(), history=(), steps_left=5
    )
    return Query(situation, "up")


def test_a_model_without_an_async_path_predicts_the_same_from_an_event_loop():
    model = certified_model_of(TrueModel(Counter.Config().build()))
    queries = [counter_query()]
    assert asyncio.run(model.predict_async(queries)) == model.predict(queries)
    assert asyncio.run(model.assess_async(queries)) == model.assess(queries)
    assert model.assess(queries)[0][1] == 1.0  # not certified: full risk


def test_a_model_with_an_async_path_uses_it():
    class Async(TrueModel):
        async def predict_async(self, queries):
            return [f"prediction of {query.action}" for query in queries]

    model = certified_model_of(Async(Counter.Config().build()))
    assert asyncio.run(model.predict_async([counter_query()])) == ["prediction of up"]


def test_only_a_language_model_has_a_sampler_and_completes_text():
    model = certified_model_of(TrueModel(Counter.Config().build()))
    assert model.sampler is None and model.tokenizer is None and model.stop_ids == ()
    with pytest.raises(ConfigError, match="is not a language model"):
        asyncio.run(model.complete(TokenRequest(prompt_ids=(1,), max_new_tokens=1, seed=0)))


def test_the_verdict_is_the_certificates_and_without_one_nothing_is_trusted():
    exact = TrueModel(Counter.Config().build())
    assert certified_model_of(exact).verdict(0.0, depth=1) is Trust.NOT_CERTIFIED
    sections = {
        "certified": True,
        "reasons": [],
        "safe_horizon": 2,
        "risk": {"threshold": 0.1, "model": None},
    }
    model = certified_model_of(exact, Certificate(sections))
    verdicts = [model.verdict(risk, depth) for risk, depth in ((0.1, 2), (0.2, 1), (0.0, 3))]
    assert verdicts == [Trust.TRUSTED, Trust.TOO_RISKY, Trust.TOO_DEEP]
