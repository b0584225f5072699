"""The gate in a world: which steps are imagined or real, audits, and drift."""

import numpy as np
import pytest
from tests.support.linked_pages import Pages, Reader
from tests.support.made_models import Doubting, Lying, by_chance, certified_model_of, data_of

from terrella.core.gym_world import GymWorld
from terrella.core.predictive import PredictiveDistribution
from terrella.core.types import Split, State
from terrella.evals.policy_eval import evaluate_policy
from terrella.pipelines.certify.pipeline import Certify
from terrella.policies.basic import Mixture, Random
from terrella.trust.certificate import Certificate
from terrella.trust.gate import Gate
from terrella.trust.predictive import certain
from terrella.trust.truth import TrueModel
from terrella.verify.state import StateDiff
from terrella.world_models import imagine_gate
from terrella.world_models.imagine_gate import gated
from terrella.worlds.counter import Counter

COUNTER = Counter.Config(goals=1000)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates of the exact model and of two models that lie, one of which says so."""
    world = COUNTER.build()
    data = data_of(world)
    config = Certify.Config(
        world=COUNTER,
        folder=tmp_path_factory.mktemp("made"),
        calibration=300,
        held_out=150,
        horizon_episodes=60,
        depth=5,
        policy=Random.Config(),
        policies=tuple(Mixture.Config(share=share) for share in (0.0, 0.3, 0.6, 1.0)),
        ranked_on=12,
        exploited_on=12,
        plan_depth=8,
    )
    models = {
        "good": TrueModel(world),
        "bad": Lying(world, by_chance(0.33)),
        "doubting": Doubting(world, by_chance(0.2)),
    }
    return {
        name: (model, data, Certificate(Certify(config).measure(model=model, data=data)))
        for name, model in models.items()
    }


def walk(model, data, certificate, *, audit_share=0.1, episodes=60, lies=None):
    gate = Gate(Gate.Config(audit_share=audit_share), certificate)
    certified_model = certified_model_of(lies or model, certificate, data)
    policy = Random.Config().build()

    def make_world():
        return gated(COUNTER, certified_model=certified_model, gate=gate)

    result = evaluate_policy(make_world, policy, seeds=range(episodes), split=Split.TEST)
    return result, gate.ledger


def test_a_good_and_a_bad_model_differ_in_every_section(certificates):
    good, bad = (certificates[name][2].sections for name in ("good", "bad"))
    assert good["certified"] and not bad["certified"] and bad["reasons"]
    headlines = [certificates[name][2].headline for name in ("good", "bad")]
    assert headlines[0].startswith("CERTIFIED for 5 steps under random at an error of 0.15")
    assert headlines[1].startswith("NOT CERTIFIED: ") and bad["reasons"][0] in headlines[1]
    assert good["risk"]["mean_wrong"] == 0.0 < 0.2 < bad["risk"]["mean_wrong"]
    assert good["one_step"]["changed"]["model"]["low"] > bad["one_step"]["changed"]["model"]["high"]
    assert good["safe_horizon"] == 5 and bad["safe_horizon"] == 0
    assert good["horizon"][2]["open"]["mean"] > bad["horizon"][2]["open"]["mean"] + 0.3
    assert good["coverage"]["error_far"] < bad["coverage"]["error_far"]
    assert (
        good["ranking"]["spearman"]["value"] > 0.9
        and good["ranking"]["policies"] != bad["ranking"]["policies"]
    )
    assert good["exploitability"]["gap"]["mean"] == 0.0 != bad["exploitability"]["gap"]["mean"]


def test_the_gate_trusts_only_the_good_one(certificates):
    _, good = walk(*certificates["good"])
    _, bad = walk(*certificates["bad"])
    assert good.imagined > 100 and good.disagreed == 0 and good.real < good.imagined
    assert bad.imagined == 0 and bad.refused["not_certified"] == bad.real > 100


def test_all_steps_are_counted(certificates):
    result, ledger = walk(*certificates["good"])
    assert ledger.real + ledger.imagined == result.steps
    assert 0.04 < ledger.audited / ledger.imagined < 0.2
    assert ledger.counts()["real_steps"] == ledger.real + ledger.audited


def test_imagination_is_no_deeper_than_the_safe_horizon(certificates):
    model, data, certificate = certificates["good"]
    sections = {**certificate.sections, "safe_horizon": 2}
    result, ledger = walk(model, data, Certificate(sections))
    depths = [step.info["depth"] for episode in result.episodes for step in episode.transitions]
    assert max(depths) == 2 and ledger.refused["too_deep"] > 0
    assert ledger.refused.total() == ledger.real
    # A real step from an imagined state keeps its errors, so no episode has more imagined steps.
    imagined = [
        sum(not step.info.get("real") for step in episode.transitions)
        for episode in result.episodes
    ]
    assert max(imagined) == 2 and max(len(each.transitions) for each in result.episodes) > 4


def test_a_model_that_knows_when_it_guesses_is_trusted_where_it_does_not(certificates):
    model, data, certificate = certificates["doubting"]
    risk = certificate.sections["risk"]
    assert 0.6 < risk["trusted_share"] < 0.95 and risk["trusted_wrong"]["mean"] < 0.03
    assert risk["ordering"] > 0.95
    sections = {**certificate.sections, "safe_horizon": 5, "certified": True}
    _, ledger = walk(model, data, Certificate(sections))
    assert ledger.refused["too_risky"] > 20 and ledger.imagined > 20 and ledger.disagreed == 0


def test_drift_is_found_by_audits_and_closes_the_gate(certificates):
    model, data, certificate = certificates["good"]
    # The world has changed, or the weights were swapped.
    drifted = Lying(COUNTER.build(), by_chance(0.5))
    _, ledger = walk(model, data, certificate, audit_share=0.5, lies=drifted)
    assert ledger.recertified >= 1 and ledger.disagreed >= 10
    assert ledger.refused["too_risky"] > ledger.imagined  # most steps after that were real


def test_without_a_certificate_every_step_is_real():
    world = COUNTER.build()
    result, ledger = walk(TrueModel(world), data_of(world, 5), None, episodes=10)
    assert ledger.imagined == 0 and ledger.real == result.steps


class Cliff(GymWorld):
    """An env whose state cannot be set: real steps replay the imagined ones."""

    env_id, action_names = "CliffWalking-v1", ("Up", "Right", "Down", "Left")
    verifier = StateDiff.Config().build()

    def show(self, native):
        return State.of(int(native))

    def succeeded(self, reward, terminated, info):
        return terminated

    def _start(self, rng):
        super()._start(rng)
        # There is only one initial state: a number makes instances, so that every split has some.
        return int(rng.integers(1000))


class Walking:
    """A hand-written model of CliffWalking that is wrong about going down."""

    MOVES = {"Up": -12, "Right": 1, "Down": 0, "Left": -1}

    def predict(self, queries):
        return [PredictiveDistribution((self.move(query),)) for query in queries]

    def move(self, query):
        after = query.situation.observation.value + self.MOVES[query.action]
        return certain(State.of(after), -1.0, False, False)


@pytest.fixture
def cliff(certificates):
    """The cliff behind a gate that trusts every imagined step up to `safe_horizon`."""

    def make(safe_horizon, gate_config, kind=Cliff):
        _, data, good = certificates["good"]
        risk = {**good.sections["risk"], "threshold": 1.0}
        certificate = Certificate({**good.sections, "safe_horizon": safe_horizon, "risk": risk})
        certified_model = certified_model_of(Walking(), certificate, data)
        gate = Gate(gate_config, certificate)
        world = gated(kind.Config(max_steps=20), certified_model=certified_model, gate=gate)
        world.reset(seed=0)
        return world

    return make


def test_a_world_whose_state_cannot_be_set_replays_the_imagined_actions(cliff):
    world = cliff(2, Gate.Config(audit_share=0.0))
    for action in ("Up", "Up", "Right"):
        seen, *_, info = world.step(action)
    assert seen.value == 13 and info["depth"] == 0 and info["real"]
    assert world.gate.ledger.counts()["real_steps"] == 3 and world.gate.ledger.imagined == 2
    assert np.isfinite(info["risk"])


def test_a_replay_does_not_go_past_the_end_of_the_real_episode(cliff):
    world = cliff(14, Gate.Config(audit_share=0.0))
    for action in ("Up", *["Right"] * 11, "Down", "Left"):  # down is the goal, and not imagined
        world.step(action)
    *_, terminated, _, info = world.step("Left")
    assert terminated and info["success"] and info["real"]
    assert world.gate.ledger.imagined == 14 and world.gate.ledger.real == 13


class CountedCliff(Cliff):
    """Counts the steps of the env itself, those of forks included."""

    calls = 0

    def _act(self, action):
        type(self).calls += 1
        return super()._act(action)


def test_an_audit_counts_the_steps_that_bring_a_copy_there(cliff, monkeypatch):
    monkeypatch.setattr(CountedCliff, "calls", 0)
    world = cliff(2, Gate.Config(audit_share=1.0, least_audits=1000), CountedCliff)
    for action in ("Up", "Right", "Right", "Right", "Left", "Right", "Left"):
        world.step(action)
    counts = world.gate.ledger.counts()
    # Steps 1, 4 and 7 are imagined from a real state: audits after 0, 3 and 6 real steps.
    assert (counts["audited"], counts["replayed"], counts["real"]) == (3, 9, 6)
    assert counts["real_steps"] == CountedCliff.calls == 18


def test_a_replayed_world_is_audited_step_by_step(cliff):
    """Only `Down` is wrong: steps after it are right, though their replay gives another state."""
    world = cliff(5, Gate.Config(audit_share=1.0, least_audits=1000))
    for action in ("Up", "Down", "Right", "Up", "Right"):
        world.step(action)
    assert world.gate.ledger.audited == 1 and world.gate.ledger.disagreed == 0


def test_a_real_step_of_a_world_that_cannot_be_read_brings_its_actions_and_verdict(certificates):
    _, data, good = certificates["good"]
    risk = {**good.sections["risk"], "threshold": 1.0}
    certificate = Certificate({**good.sections, "safe_horizon": 2, "risk": risk})
    gate = Gate(Gate.Config(audit_share=0.0), certificate)
    model = certified_model_of(Reader(), certificate, data)
    world = gated(Pages.Config(), certified_model=model, gate=gate)
    world.reset(seed=0)
    listed = [world.actions() for action in ("to 1", "to 2", "to 2") if world.step(action)]
    assert listed == [(), (), ("to 3",)]  # the third step is real, and illegal
    assert not world.history[-1].info["valid"] and world.history[-1].info["real"]
    for action in ("to 3", "to 4", "to 5"):
        world.step(action)
    assert world.outcome(world.history).evidence == "the page of the real world"


def test_worlds_share_a_gate_until_their_folder_is_certified_again(tmp_path, monkeypatch):
    certificate = tmp_path / "certificate/certificate.json"
    certificate.parent.mkdir()
    certificate.write_text("{}")
    monkeypatch.setattr(imagine_gate, "cached_certificate", lambda *_: None)

    def gate(samples=8, **world):
        return imagine_gate.load_gate(tmp_path, samples, Gate.Config(), Cliff.Config(**world))

    first = gate()
    assert gate() is first  # of a world whose settings hold a mapping, too
    assert gate(walk=3) is not first  # the certificate may hold for one of them only
    for other in range(8):  # no gate is forgotten: it might have closed
        gate(samples=9 + other)
    assert gate() is first
    certificate.write_text('{"certified": true}')
    assert gate() is not first
