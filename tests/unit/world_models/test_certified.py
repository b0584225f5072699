"""A model with its risk and certificate: sync and async predictions, verdicts, samplers."""

import asyncio

import pytest
from tests.support.made_models import certified_model_of

from terrella.core.config import dump
from terrella.core.errors import ConfigError
from terrella.core.predictive import Query
from terrella.core.tokens import TokenRequest
from terrella.core.types import Situation, Split
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.trust.certificate import RULES, Certificate, Trust
from terrella.trust.gate import Gate
from terrella.trust.truth import TrueModel
from terrella.world_models import certified
from terrella.world_models.certified import load_certified_model
from terrella.world_models.imagine import ImaginedWorld, imagine
from terrella.world_models.imagine_gate import gated, load_gate
from terrella.worlds.counter import Counter


@pytest.fixture
def certified_folder(tmp_path, monkeypatch):
    """A folder with data, weights and a certificate of `Counter`, whose model is exact."""
    counter = Counter.Config(goals=50)
    exact = TrueModel(counter.build())
    monkeypatch.setattr(certified, "load_world_model", lambda *_, **__: exact)
    Collect(
        Collect.Config(world=counter, policy=Random.Config(), out=tmp_path / "data", episodes=5)
    ).run(SilentProgress())
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"1")
    hashes = certified.certified_hashes(tmp_path)
    about = {f"{name}_sha256": value for name, value in hashes.items()}
    sections = {
        "about": {**about, "rules": RULES, "samples": 8, "world": dump(counter)},
        "certified": True,
        "reasons": [],
        "safe_horizon": 2,
        "risk": {"threshold": 1.0, "model": None},
    }
    Certificate(sections).save(tmp_path / certified.CERTIFICATE)
    return tmp_path


def test_a_model_is_certified_for_the_world_that_is_imagined_only(certified_folder):
    counter = Counter.Config(goals=50)
    same, other = (
        load_certified_model(certified_folder, 8, world)
        for world in (counter.replace(split=Split.TEST), counter.replace(goals=60))
    )
    assert same.verdict(0.0, depth=1) is Trust.TRUSTED
    assert other.verdict(0.0, depth=1) is Trust.NOT_CERTIFIED
    assert "goals (50 there, 60 here)" in other.certificate.reasons[0]
    assert same.model is other.model  # loaded once
    assert certified.read_certificate(certified_folder, 8, counter).certified
    assert not certified.read_certificate(certified_folder, 8, counter.replace(goals=60)).certified


def test_imagined_and_gated_worlds_are_held_to_the_certificate_of_their_world(certified_folder):
    counter = Counter.Config(goals=50)
    for world, trust in (
        (counter, "trusted"),
        (counter.replace(goals=60), "not_certified"),
        (counter.replace(max_steps=counter.max_steps + 1), "not_certified"),
        (counter.replace(max_steps=counter.max_steps - 1), "not_certified"),
    ):
        for made in (imagine(world, certified_folder), gated(world, certified_folder)):
            certificate = made.certified_model.certificate
            assert certificate.verdict(0.0, depth=1).value == trust
        assert made.gate.verdict(0.0, depth=1).value == trust
    longer = ImaginedWorld.Config(
        world=counter, folder=certified_folder, max_steps=counter.max_steps + 1
    )
    assert not longer.build().certified_model.certificate.certified


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


def test_a_gate_that_opens_closed_says_why_once(certified_folder, tmp_path, caplog):
    def said(folder, **world):
        caplog.clear()
        for _ in range(2):
            load_gate(folder, 8, Gate.Config(), Counter.Config(goals=50, **world))
        lines = [line for line in caplog.messages if "the gate is closed" in line]
        return lines[0] if len(lines) == 1 else lines

    assert said(certified_folder) == []
    assert "max_steps" in said(certified_folder, max_steps=500)  # the certificate is void
    path = certified_folder / certified.CERTIFICATE
    sections = {**Certificate.load(path).sections, "certified": False, "reasons": ["too thin"]}
    Certificate(sections).save(path)
    assert "not certified: too thin" in said(certified_folder)
    path.unlink()
    assert f"terrella certify {certified_folder}" in said(certified_folder)
    assert "train-world-model" in said(tmp_path / "none")
    with pytest.raises(ConfigError, match="train-world-model"):
        load_certified_model(tmp_path / "none", 8, None)
