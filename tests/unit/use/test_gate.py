"""The gate: what it imagines, what it pays for, and what it does when audits disagree."""

import numpy as np
import pytest
from tests.support.made_models import Doubting, Lying, by_chance, data_of, imagination_of

from terrella.core.types import Split
from terrella.core.world import GymWorld
from terrella.policies.basic import Mixture, Random
from terrella.stages.certify import Certify
from terrella.trust.certificate import Certificate
from terrella.trust.gate import Gate
from terrella.trust.truth import TrueModel
from terrella.use.imagine_gate import gated
from terrella.use.policy_eval import evaluate_policy
from terrella.verify.state import StateDiff
from terrella.worlds.counter import Counter

COUNTER = Counter.Config(goals=1000)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Of the truth, and of a model that lies a third of the time."""
    world = COUNTER.build()
    data = data_of(world)
    config = Certify.Config(
        world=COUNTER, folder=tmp_path_factory.mktemp("made"), calibration=300, held_out=150, horizon_episodes=30,
        depth=5, policy=Random.Config(), policies=tuple(Mixture.Config(share=share) for share in (0.0, 0.3, 0.6, 1.0)),
        ranked_on=12, exploited_on=12, plan_depth=8,
    )  # fmt: skip
    models = {
        "good": TrueModel(world),
        "bad": Lying(world, by_chance(0.33)),
        "doubting": Doubting(world, by_chance(0.2)),
    }
    return {name: (model, data, Certificate(Certify(config).measure(model=model, data=data)))
            for name, model in models.items()}  # fmt: skip


def walk(model, data, certificate, *, audit_share=0.1, episodes=60, lies=None):
    door = Gate(Gate.Config(audit_share=audit_share), certificate)
    imagination = imagination_of(lies or model, certificate, data)
    policy = Random.Config().build()
    make = lambda: gated(COUNTER, imagination=imagination, gate=door)  # noqa: E731
    played = evaluate_policy(make, policy, seeds=range(episodes), split=Split.TEST)
    return played, door.ledger


def test_a_good_and_a_bad_model_differ_in_every_section(certificates):
    good, bad = (certificates[name][2].sections for name in ("good", "bad"))
    assert good["certified"] and not bad["certified"] and bad["reasons"]
    assert good["risk"]["mean_wrong"] == 0.0 < 0.2 < bad["risk"]["mean_wrong"]
    assert good["one_step"]["changed"]["model"]["low"] > bad["one_step"]["changed"]["model"]["high"]
    assert good["safe_horizon"] == 5 and bad["safe_horizon"] == 0
    assert good["horizon"][2]["open"]["mean"] > bad["horizon"][2]["open"]["mean"] + 0.3
    assert good["coverage"]["error_far"] < bad["coverage"]["error_far"]
    assert good["ranking"]["spearman"]["value"] > 0.9 and good["ranking"]["policies"] != bad["ranking"]["policies"]
    assert good["exploitability"]["gap"]["mean"] == 0.0 != bad["exploitability"]["gap"]["mean"]


def test_the_gate_trusts_only_the_good_one(certificates):
    _, good = walk(*certificates["good"])
    _, bad = walk(*certificates["bad"])
    assert good.imagined > 100 and good.disagreed == 0 and good.real < good.imagined
    assert bad.imagined == 0 and bad.refused["not_certified"] == bad.real > 100


def test_all_steps_are_counted(certificates):
    played, ledger = walk(*certificates["good"])
    assert ledger.real + ledger.imagined == played.steps
    assert 0.04 < ledger.audited / ledger.imagined < 0.2
    assert ledger.counts()["real_steps"] == ledger.real + ledger.audited


def test_imagination_is_no_deeper_than_the_safe_horizon(certificates):
    model, data, certificate = certificates["good"]
    sections = {**certificate.sections, "safe_horizon": 2}
    played, ledger = walk(model, data, Certificate(sections))
    depths = [step.info["depth"] for episode in played.episodes for step in episode.transitions]
    assert max(depths) == 2 and ledger.refused["too_deep"] == ledger.real > 0


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
    drifted = Lying(COUNTER.build(), by_chance(0.5))  # the world has changed, or the weights were swapped
    _, ledger = walk(model, data, certificate, audit_share=0.5, lies=drifted)
    assert ledger.recertified >= 1 and ledger.disagreed >= 10
    assert ledger.refused["too_risky"] > ledger.imagined  # most of the way after that was real


def test_without_a_certificate_every_step_is_real():
    world = COUNTER.build()
    played, ledger = walk(TrueModel(world), data_of(world, 5), None, episodes=10)
    assert ledger.imagined == 0 and ledger.real == played.steps


class Cliff(GymWorld):
    """An env whose state cannot be set: real steps are replays."""

    env_id, action_names = "CliffWalking-v1", ("Up", "Right", "Down", "Left")
    verifier = StateDiff.Config().build()

    def show(self, native):
        from terrella.core.types import State

        return State.of(int(native))

    def _start(self, rng):
        super()._start(rng)
        return int(rng.integers(1000))  # one beginning only: instances by number, so that every split has some


class Walking:
    """CliffWalking by heart, wrong about going down."""

    def believe(self, questions):
        from terrella.core.types import State
        from terrella.trust.beliefs import Belief, certain

        moves = {"Up": -12, "Right": 1, "Down": 0, "Left": -1}
        return [Belief((certain(State.of(q.situation.observation.value + moves[q.action]), -1.0, False, False),))
                for q in questions]  # fmt: skip


def test_a_world_that_cannot_be_set_is_brought_to_the_moment_by_replay(certificates):
    certificate = Certificate({**certificates["good"][2].sections, "safe_horizon": 2})
    door = Gate(Gate.Config(audit_share=0.0), certificate)
    world = gated(
        Cliff.Config(), imagination=imagination_of(Walking(), certificate, certificates["good"][1]), gate=door
    )
    world.reset(seed=0)
    door.threshold, world.imagination.certificate.sections["risk"]["threshold"] = 1.0, 1.0
    for action in ("Up", "Up", "Right"):
        seen, *_, info = world.step(action)
    assert seen.value == 13 and info["depth"] == 0 and info["real"]
    assert door.ledger.counts()["real_steps"] == 3 and door.ledger.imagined == 2
    assert np.isfinite(info["risk"])
