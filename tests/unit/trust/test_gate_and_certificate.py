"""Certificates as files and as verdicts; coverage of data.

A gate's decisions and audits, one at a time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from terrella.core.config import Local, dump
from terrella.core.errors import ConfigError, StoreError, TerrellaError
from terrella.core.integrity import read_sealed, write_sealed
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Frames, Situation, Split, Text, Transition, Verdict
from terrella.core.world import World
from terrella.trust.certificate import RULES, Certificate, Trust
from terrella.trust.coverage import describe_coverage
from terrella.trust.gate import MAX_AUDITS, Gate, audit_error, kept_counts
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake

WEIGHTS = [0.1, 0.2, 0.3, 0.4, 0.5]


def certificate(**changes):
    model = {"weights": WEIGHTS, "quantile": 0.6, "level": 0.9}
    plain = {
        "certified": True,
        "reasons": [],
        "safe_horizon": 3,
        "risk": {"threshold": 0.2, "model": model},
        "about": {"step_error": 0.1},
    }
    return Certificate(plain | changes)


def test_a_step_is_trusted_up_to_the_certified_risk_and_depth():
    given = certificate()
    assert given.verdict(0.2, depth=3) is Trust.TRUSTED  # exactly what is certified is certified
    assert given.verdict(0.21, depth=1) is Trust.TOO_RISKY
    assert given.verdict(0.0, depth=4) is Trust.TOO_DEEP
    assert certificate(certified=False).verdict(0.0, depth=1) is Trust.NOT_CERTIFIED


def test_without_a_threshold_no_risk_is_small_enough():
    given = certificate(risk={"threshold": None})
    assert (
        given.threshold < 0
        and given.verdict(0.0, depth=1) is Trust.TOO_RISKY
        and given.risk is None
    )
    assert (
        certificate(risk={}).threshold < 0 and certificate(risk={"threshold": 0.0}).threshold == 0.0
    )


def test_a_certificate_comes_back_from_its_file(tmp_path):
    path = tmp_path / "deep" / "down" / "certificate.json"
    certificate(reasons=["too few"]).save(path)
    back = Certificate.load(path)
    assert back.sections == certificate(reasons=["too few"]).sections and back.reasons == (
        "too few",
    )
    assert back.risk.weights == tuple(WEIGHTS) and (back.risk.quantile, back.risk.level) == (
        0.6,
        0.9,
    )
    assert (
        back.certified is True
        and back.safe_horizon == 3
        and [one.name for one in path.parent.iterdir()] == [path.name]
    )
    certificate().save(path)  # the folder is there already
    assert Certificate.load(path).reasons == ()


def test_a_certificate_of_other_weights_or_data_is_void_and_says_why():
    about = {"weights_sha256": "a" * 64, "data_sha256": "b" * 64, "rules": RULES}
    bound = certificate(about=about)
    assert bound.held_to(weights="a" * 64, data="b" * 64).certified
    for changed in ({"weights": "0" * 64}, {"data": "0" * 64}, {"data": None}):
        void = bound.held_to(**{"weights": "a" * 64, "data": "b" * 64, **changed})
        (name,) = changed
        assert not void.certified and f"of other {name}" in void.reasons[0]
        assert void.verdict(0.0, depth=1) is Trust.NOT_CERTIFIED
        assert void.risk is None and void.threshold < 0
    silent = certificate(about={"rules": RULES})  # says nothing of either
    unbound = silent.held_to(weights="a" * 64, data="b" * 64)
    assert not unbound.certified and len(unbound.void) == 2


@pytest.mark.parametrize("rules", [{}, {"rules": RULES - 1}, {"rules": RULES + 1}])
def test_a_certificate_of_other_rules_is_void(rules):
    hashes = {"weights": "a" * 64, "data": "b" * 64}
    about = {f"{name}_sha256": value for name, value in hashes.items()}
    assert certificate(about={**about, "rules": RULES}).held_to(**hashes).certified
    void = certificate(about={**about, **rules}).held_to(**hashes)
    assert void.verdict(0.0, depth=1) is Trust.NOT_CERTIFIED
    assert "it was made by rules" in void.reasons[0] and "certify again" in void.reasons[0]


def test_a_certificate_is_void_for_another_number_of_samples():
    hashes = {"weights": "a" * 64, "data": "b" * 64}
    about = {"weights_sha256": "a" * 64, "data_sha256": "b" * 64, "samples": 8, "rules": RULES}
    bound = certificate(about=about)
    assert bound.held_to(**hashes, samples=8).certified and bound.held_to(**hashes).certified
    void = bound.held_to(**hashes, samples=4)
    assert not void.certified and "set samples=8, or certify again" in void.reasons[0]


def held_to_world(measured, world):
    hashes = {"weights": "a" * 64, "data": "b" * 64}
    about = {f"{name}_sha256": value for name, value in hashes.items()} | {"rules": RULES}
    if measured is not None:
        about["world"] = dump(measured)
    return certificate(about=about).held_to(**hashes, world=dump(world))


def test_a_certificate_is_void_in_another_world_and_names_what_differs():
    firm = FrozenLake.Config(size=3)
    assert held_to_world(firm, firm).certified
    slippery = held_to_world(firm, firm.replace(success_rate=0.5))
    assert slippery.verdict(0.0, depth=1) is Trust.NOT_CERTIFIED and slippery.risk is None
    (reason,) = slippery.void
    assert "success_rate (1.0 there, 0.5 here)" in reason and "size" not in reason
    assert "set them as there, or certify for this world" in reason
    (reason,) = held_to_world(firm, Counter.Config()).void
    assert "class (" in reason and "goals (unset there" in reason
    (reason,) = held_to_world(None, firm).void
    assert "does not say which world" in reason and "certify again" in reason


def test_another_split_is_of_the_same_world_and_episodes_of_another_length_are_not():
    world = FrozenLake.Config(size=3, max_steps=6)
    assert held_to_world(world, world.replace(split=Split.TEST)).certified
    for steps in (4, 7):
        (reason,) = held_to_world(world, world.replace(max_steps=steps)).void
        assert f"max_steps (6 there, {steps} here)" in reason


def test_settings_inside_a_setting_are_compared_by_their_path():
    class Made(World):
        @dataclass(frozen=True, kw_only=True)
        class Config(World.Config):
            lake: FrozenLake.Config = field(default_factory=FrozenLake.Config)
            options: Local[Mapping[str, Any]] = field(default_factory=dict)

    there = Made.Config(options={"slippery": False})
    (reason,) = held_to_world(there, Made.Config(options={"slippery": True})).void
    assert "options.slippery (False there, True here)" in reason
    other = there.replace(lake=FrozenLake.Config(size=5, split=Split.TEST))
    assert "lake.size (4 there, 5 here)" in held_to_world(there, other).void[0]


@pytest.mark.parametrize("risk", [math.nan, math.inf])
def test_a_risk_that_is_no_number_is_too_risky(risk):
    assert certificate().verdict(risk, depth=1) is Trust.TOO_RISKY
    assert gate().verdict(risk, depth=1) is Trust.TOO_RISKY
    lowered = gate()
    lowered.threshold = math.nan
    assert lowered.verdict(0.0, depth=1) is Trust.TOO_RISKY


def test_drift_at_one_risk_closes_the_gate():
    """Risks are often equal: the same question has the same risk."""
    door = gate(least_audits=213, about={"step_error": 0.03})
    for _ in range(200):
        door.audit(0.01, wrong=0.0)
    for _ in range(13):
        door.audit(0.01, wrong=1.0)
    assert door.ledger.recertified == 1
    assert door.verdict(0.01, depth=1) is Trust.TOO_RISKY


def test_a_number_that_is_none_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        certificate(safe_horizon=float("nan")).save(tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("text", ["", "{", None])
def test_what_is_no_certificate_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    with pytest.raises(StoreError, match=r"c\.json: (is missing|cannot be read).*\n.*certify"):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize("name", ["certified", "reasons", "safe_horizon", "risk"])
def test_a_certificate_that_lacks_a_section_is_refused(tmp_path, name):
    sections = dict(certificate().sections)
    del sections[name]
    write_sealed(tmp_path / "c.json", sections)
    with pytest.raises(ConfigError, match=f"lacks {name}"):
        Certificate.load(tmp_path / "c.json")


# --- coverage -------------------------------------------------------------------------------------


def asked(text, action="x"):
    return Query(
        Situation(instruction="", observation=Text(text), actions=(), history=(), steps_left=5),
        action,
    )


def test_coverage_says_what_was_seen_and_how_wrong_the_model_is_near_and_far():
    data = NearestData(
        [
            Transition(observation=Text(text), action="x", next_observation=Text(""))
            for text in ("aaaa", "bbbb", "aaaa")
        ]
    )
    questions = [asked("aaaa"), asked("bbbb"), asked("aaab"), asked("aabb"), asked("aaaa", "y")]
    found = describe_coverage(data, questions, [0.0, 0.2, 0.4, 0.5, 0.9])
    assert (found["data_pairs"], found["data_actions"]) == (2, {"x": 2})
    assert found["held_out_actions"] == {"x": 4, "y": 1} and found["actions_never_seen"] == ["y"]
    assert (found["seen"]["share"], found["seen"]["n"]) == (0.4, 5)
    assert (found["seen"]["low"], found["seen"]["high"]) == pytest.approx(
        (0.1176, 0.7693), abs=1e-4
    )  # Wilson, 2 of 5
    # Distances 0, 0, 1/4, 1/2, 1: the median step is still near.
    assert found["error_near"] == pytest.approx((0.0 + 0.2 + 0.4) / 3)
    assert found["error_far"] == pytest.approx((0.5 + 0.9) / 2)
    assert found["distance"] == pytest.approx({"0.1": 0.0, "0.5": 0.25, "0.9": 0.8, "0.99": 0.98})


def test_where_all_steps_are_equally_near_none_is_far():
    data = NearestData([Transition(observation=Text("a"), action="x", next_observation=Text(""))])
    found = describe_coverage(data, [asked("a"), asked("a")], [0.0, 1.0])
    assert found["error_near"] == 0.5 and found["error_far"] is None


# --- the gate -------------------------------------------------------------------------------------


def gate(audit_share=0.02, least_audits=30, **changes):
    return Gate(
        Gate.Config(audit_share=audit_share, least_audits=least_audits), certificate(**changes)
    )


def test_refusals_are_counted_by_their_reason():
    door = gate()
    for risk, depth in ((0.1, 1), (0.2, 3), (0.3, 1), (0.3, 1), (0.1, 4)):
        door.verdict(risk, depth=depth)
    assert dict(door.ledger.refused) == {"too_risky": 2, "too_deep": 1}
    assert Gate(Gate.Config(), None).verdict(0.0, depth=1) is Trust.NOT_CERTIFIED
    assert Gate(Gate.Config(), None).allowed_error == 0.0 and gate().allowed_error == 0.1


def test_a_gate_that_has_lowered_its_threshold_refuses_what_the_certificate_would_take():
    door = gate()
    door.threshold = 0.1
    assert (
        door.verdict(0.1, depth=1) is Trust.TRUSTED
        and door.verdict(0.15, depth=1) is Trust.TOO_RISKY
    )


def test_real_steps_are_those_that_were_refused_and_those_that_audit():
    door = gate()
    door.ledger.real, door.ledger.imagined, door.ledger.replayed = 7, 50, 3
    door.audit(0.1, wrong=1.0)
    door.audit(0.1, wrong=0.0)
    door.verdict(0.9, depth=1)
    assert door.ledger.counts() == {
        "real": 7,
        "imagined": 50,
        "audited": 2,
        "replayed": 3,
        "disagreed": 1,
        "recertified": 0,
        "real_steps": 12,
        "refused_too_risky": 1,
    }


def test_the_share_that_is_audited_is_the_one_asked_for():
    door = gate(audit_share=0.25)
    assert [door.wants_audit(uniform) for uniform in (0.0, 0.2499, 0.25, 0.9)] == [
        True,
        True,
        False,
        False,
    ]
    assert not gate(audit_share=0.0).wants_audit(0.0)
    assert Gate.Config().audit_share == 0.02 and Gate.Config().least_audits == 30


def test_a_gate_begins_with_nothing_paid_and_without_a_certificate_accepts_no_risk():
    shut = Gate(Gate.Config(), None)
    assert set(shut.ledger.counts().values()) == {0} and shut.threshold < 0


def test_where_nothing_may_be_wrong_faultless_audits_change_nothing():
    door = gate(about={"step_error": 0.0})
    for _ in range(40):
        door.audit(0.1, wrong=0.0)
    assert door.ledger.recertified == 0 and door.threshold == 0.2


def test_too_many_disagreements_close_the_gate_once_there_are_enough_audits():
    door = gate(least_audits=30)
    for _ in range(29):
        door.audit(0.1, wrong=1.0)
    assert door.ledger.recertified == 0 and door.threshold == 0.2
    door.audit(0.1, wrong=1.0)
    assert door.ledger.recertified == 1 and door.threshold < 0 and door.audits == []
    assert door.verdict(0.0, depth=1) is Trust.TOO_RISKY


def test_disagreements_within_what_was_certified_change_nothing():
    door = gate()
    for place in range(200):
        door.audit(0.1, wrong=float(place % 10 == 9))  # one in ten, as certified
    assert door.ledger.recertified == 0 and door.threshold == 0.2 and len(door.audits) == 200


def test_audits_that_go_wrong_above_some_risk_lower_the_threshold_to_it():
    door = gate(least_audits=100)
    for place in range(100):
        door.audit(0.002 * place, wrong=float(place >= 60))  # faultless below a risk of 0.12
    assert door.ledger.recertified == 1 and 0.1 < door.threshold < 0.13
    assert (
        door.verdict(0.1, depth=1) is Trust.TRUSTED
        and door.verdict(0.15, depth=1) is Trust.TOO_RISKY
    )


def test_a_new_threshold_never_accepts_more_than_the_old_one():
    door = gate(least_audits=100)
    door.threshold = 0.05
    for place in range(100):
        door.audit(0.002 * place, wrong=float(place >= 60))
    assert door.threshold == 0.05


def test_only_the_latest_audits_count():
    door = gate(least_audits=10**9)
    for place in range(MAX_AUDITS + 5):
        door.audit(float(place), wrong=0.0)
    assert len(door.audits) == MAX_AUDITS == 2000 and [door.audits[0][0], door.audits[-1][0]] == [
        5.0,
        MAX_AUDITS + 4.0,
    ]


class Half:
    """Every two frames are half alike."""

    def verify(self, reply, truth, before):
        return Verdict.of(0.5)


def frames(value):
    return Frames.of(np.full((1, 2, 2, 1), value, np.uint8))


def result(text, chance=1.0):
    return certain(Text(text), 0, False, False, chance)


def test_an_audit_finds_the_share_of_the_truth_that_was_missed():
    verifier, before = Counter.verifier, Text('{"n":0}')
    (one, two, three) = (f'{{"n":{n}}}' for n in (1, 2, 3))

    def error(distribution, *truth):
        return audit_error(
            PredictiveDistribution(distribution), PredictiveDistribution(truth), before, verifier
        )

    # Nearly all on a wrong result is wrong, though what came was not ruled out.
    assert error((result(one, 0.99), result(two, 0.01)), result(two)) == pytest.approx(0.99)
    assert error((result(two),), result(two)) == 0.0 and error((result(two),), result(three)) == 1.0
    # A stochastic step is compared with all that may follow, as in the certificate.
    coin = (result(one, 0.5), result(two, 0.5))
    assert error(coin, *coin) == 0.0 and error((result(one),), *coin) == 0.5
    black, grey = (PredictiveDistribution((certain(frames(v), 0, False, False),)) for v in (0, 9))
    assert audit_error(black, grey, frames(1), Half()) == 0.5


def test_audits_that_are_mostly_wrong_are_counted_and_parts_of_errors_add_up():
    door = gate(least_audits=30)
    for _ in range(60):
        door.audit(0.1, wrong=0.4)  # never called a disagreement, and far above 0.1 on average
    assert door.ledger.disagreed == 0 and door.ledger.recertified >= 1 and door.threshold < 0


def test_the_headline_is_the_verdict():
    about = {
        "step_error": 0.1,
        "horizon_error": 0.15,
        "confidence": 0.95,
        "policies": {"random": {}, "expert": {}},
    }
    assert certificate(about=about).headline == (
        "CERTIFIED for 3 steps under random, expert at an error of 0.15 (95% confidence for each)"
    )
    refused = certificate(about=about, certified=False, reasons=["too thin", "wrong"])
    assert refused.headline == "NOT CERTIFIED: too thin; wrong"
    assert "of other weights" in certificate(about=about).held_to(weights="0", data=None).headline


# --- what a gate keeps between sessions -----------------------------------------------------------


def kept(folder, **changes):
    return Gate(Gate.Config(folder=folder, **changes), certificate())


def test_a_gate_that_has_closed_stays_closed_in_the_next_session(tmp_path):
    first = kept(tmp_path)
    for _ in range(30):
        first.audit(0.01, 1.0)
    assert first.threshold == -1.0 and first.ledger.recertified == 1
    later = kept(tmp_path)
    assert later.threshold == -1.0 and later.verdict(0.0, depth=1) is Trust.TOO_RISKY
    assert later.ledger.recertified == 0  # its own session
    later.ledger.real += 5
    assert kept_counts(tmp_path)["audited"] == 30 and kept_counts(tmp_path)["real_steps"] == 35


def test_audits_of_earlier_sessions_are_evidence(tmp_path):
    first = kept(tmp_path)
    for _ in range(20):
        first.audit(0.01, 1.0)
    first.save()
    later = kept(tmp_path)
    for _ in range(9):
        later.audit(0.01, 1.0)
    assert later.threshold > 0
    later.audit(0.01, 1.0)  # the thirtieth
    assert later.threshold == -1.0
    assert kept(tmp_path).earlier_audits == []  # nothing below the threshold is left


def test_another_certificate_has_a_gate_of_its_own(tmp_path):
    closed = kept(tmp_path)
    for _ in range(30):
        closed.audit(0.01, 1.0)
    other = Gate(Gate.Config(folder=tmp_path), certificate(safe_horizon=9))
    assert other.threshold == other.certificate.threshold


def test_a_forged_state_can_lower_the_threshold_and_never_raise_it(tmp_path):
    honest = kept(tmp_path)
    allowed = honest.threshold
    honest.save()
    (path,) = tmp_path.glob("*.json")
    state = read_sealed(path)
    perfect = [[0.0, 0.0]] * 5000
    write_sealed(path, {**state, "threshold": 0.9, "audits": perfect})
    forged = kept(tmp_path)
    assert forged.threshold == allowed and len(forged.earlier_audits) == 5000
    for _ in range(30):
        forged.audit(0.01, 1.0)
    assert forged.threshold == -1.0  # five thousand perfect audits do not hide thirty wrong ones
    write_sealed(path, {**state, "threshold": allowed / 2})
    assert kept(tmp_path).threshold == -1.0
    for name, value in (("audits", [["x", 0.0]]), ("threshold", "1"), ("ledger", {"real": -1})):
        write_sealed(path, {**state, name: value})
        with pytest.raises(TerrellaError):
            kept(tmp_path)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gate = Gate(Gate.Config(), certificate())
    for _ in range(40):
        gate.audit(0.01, 1.0)
    gate.save_sometimes()
    assert list(tmp_path.iterdir()) == [] and kept_counts(tmp_path / "none") == {}
