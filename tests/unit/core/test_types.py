"""Records: what a verdict may say, what frames hold, and that nothing masked is ever averaged."""

import math

import numpy as np
import pytest

from terrella.core.judge import judge
from terrella.core.types import (
    Episode,
    Frames,
    Kind,
    Split,
    State,
    Status,
    Stop,
    Text,
    Transition,
    Tree,
    Verdict,
    canonical_json,
    show_text,
)


def test_canonical_json_has_one_spelling_and_tells_kinds_apart():
    assert (
        canonical_json({"b": [1, 1.0, True, None], "a": "é"}) == '{"a":"é","b":[1,1.0,true,null]}'
    )
    assert State.of({"a": 1, "b": 2}) == State.of({"b": 2, "a": 1})
    assert len({State.of(value) for value in (1, 1.0, True, "1")}) == 4
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError):
            canonical_json(number)


def test_a_state_gives_its_value_fresh():
    state = State.of({"items": [1]})
    state.value["items"].append(2)
    assert state.value == {"items": [1]}


def test_observations_of_different_kinds_are_never_equal():
    assert Text("1") != State("1") != Tree("1") != Text("1")
    assert [one.kind for one in (Text(""), State(""), Tree(""))] == [
        Kind.TEXT,
        Kind.STATE,
        Kind.TREE,
    ]
    assert len({Text("a"), Text("a"), Tree("a")}) == 2


def test_frames_keep_their_pixels_and_refuse_other_shapes():
    pixels = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    frames = Frames.of(pixels[:, :, ::-1])  # a view that is not contiguous
    pixels[:] = 0
    assert (
        frames.shape == (2, 3, 4, 3)
        and frames.array[0, 0, 0, 0] == 9
        and frames.kind is Kind.FRAMES
    )
    with pytest.raises(ValueError, match="read-only"):
        frames.array[0, 0, 0, 0] = 1
    for wrong in (np.zeros((2, 3, 4), np.uint8), np.zeros((1, 1, 1, 1), np.float32)):
        with pytest.raises(ValueError, match="uint8"):
            Frames.of(wrong)
    with pytest.raises(ValueError, match="3 bytes do not fill"):
        Frames(b"abc", (1, 1, 1, 4))
    with pytest.raises(TypeError, match="no text"):
        show_text(frames)


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan, math.inf, -math.inf])
def test_a_verdict_outside_of_zero_to_one_cannot_be_made(value):
    with pytest.raises(ValueError, match="out of"):
        Verdict.of(value)


def test_a_part_must_be_finite():
    with pytest.raises(ValueError, match="not finite"):
        Verdict.of(1.0, precision=math.nan)


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.ERROR])
def test_a_masked_verdict_has_no_number_and_a_judgement_has_one(status):
    assert Verdict.failed(status, "why").masked and Verdict.failed(status, "why").value is None
    with pytest.raises(ValueError, match="cannot have the value 0"):
        Verdict(value=0.0, status=status)
    with pytest.raises(ValueError, match="cannot have the value None"):
        Verdict(value=None)
    with pytest.raises(ValueError, match="cannot have the value None"):
        Verdict(value=None, status=Status.UNPARSABLE)


def test_an_unreadable_reply_is_wrong_not_masked():
    verdict = Verdict.unparsable("no JSON")
    assert verdict.value == 0.0 and not verdict.masked and verdict.evidence == "no JSON"


def test_an_exception_in_a_verifier_is_masked_and_named():
    class Broken:
        def verify(self, reply, truth, before):
            raise ZeroDivisionError("by zero")

    verdict = judge(Broken(), reply=Text(""), truth=Text(""), before=Text(""))
    assert (
        verdict.status is Status.ERROR
        and verdict.evidence == "Broken raised ZeroDivisionError: by zero"
    )


def step(reward=0.0, after="b"):
    return Transition(
        observation=Text("a"), action="go", next_observation=Text(after), reward=reward
    )


def episode(outcome, *steps):
    return Episode(
        world="w",
        instance="0",
        split=Split.TRAIN,
        seed=0,
        noise_seed=0,
        policy="p",
        first=Text("a"),
        transitions=steps,
        stop=Stop.TERMINATED,
        outcome=outcome,
    )


def test_an_episode_won_lost_or_neither():
    assert episode(Verdict.of(1.0), step(0.5), step(0.25)).total_reward == 0.75
    assert episode(Verdict.of(1.0)).success and not episode(Verdict.of(0.99)).success
    with pytest.raises(ValueError, match="neither won nor lost"):
        _ = episode(Verdict.failed(Status.TIMEOUT, "")).success
    assert step().changed and not step(after="a").changed


def test_an_episode_is_broken_by_our_code_alone():
    broken = {stop for stop in Stop if stop.is_broken}
    assert broken == {Stop.WORLD_ERROR, Stop.WORLD_TIMEOUT, Stop.POLICY_ERROR}
