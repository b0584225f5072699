"""Masked verdicts in what needs no model: counted and left out, never a zero."""

import dataclasses
import logging

import pytest

from terrella.commands.check import PropertyError, Subject
from terrella.commands.check import verifier_properties as verifier
from terrella.commands.check import world_properties as properties
from terrella.core.types import Status, Text, Verdict, same_kind
from terrella.worlds.counter import Counter

FAILED = Verdict.failed(Status.ERROR, "a bug of ours")


def break_plays(monkeypatch, broken):
    """The plays with these noise seeds come back masked."""
    play = properties.play

    def played(*arguments, noise_seed, **more):
        episode = play(*arguments, noise_seed=noise_seed, **more)
        return dataclasses.replace(episode, outcome=FAILED) if broken(noise_seed) else episode

    monkeypatch.setattr(properties, "play", played)


def test_masked_plays_do_not_pull_the_random_value_to_zero(monkeypatch):
    break_plays(monkeypatch, lambda noise: noise % 4 != 0)
    detail = properties.random_value_is_exact(Subject(Counter.Config()))
    assert "240 masked" in detail


def test_the_random_value_is_not_compared_with_nothing(monkeypatch):
    break_plays(monkeypatch, lambda noise: True)
    with pytest.raises(PropertyError, match="all 320 plays were masked"):
        properties.random_value_is_exact(Subject(Counter.Config()))


class BuggyVerifier:
    """Raises on each `every`-th step, whatever the reply; full marks otherwise."""

    def __init__(self, every):
        self.every, self.steps = every, []

    def verify(self, reply, truth, before):
        if not any(truth is step for step in self.steps):
            self.steps.append(truth)
        number = [truth is step for step in self.steps].index(True) + 1
        if number % self.every == 0:
            raise RuntimeError("a bug in the verifier")
        return Verdict.of(1.0)


def no_change_with(every, monkeypatch, tmp_path):
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    import tests.support.quiet_trl  # noqa: F401  before anything imports trl

    from terrella.pipelines.rlvr import Rlvr

    verifier = BuggyVerifier(every)
    monkeypatch.setattr(Counter, "verifier", verifier)
    stage = Rlvr(
        Rlvr.Config(world=Counter.Config(), ask="observation", evaluate_on=8, out=tmp_path)
    )
    return stage.baselines().values["no_change"]


def test_rlvr_leaves_masked_verdicts_out_of_its_baseline(monkeypatch, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "terrella"):
        assert no_change_with(2, monkeypatch, tmp_path) == 1.0
    assert "4 of 8" in caplog.text and "masked" in caplog.text


def test_rlvr_has_no_baseline_where_all_is_masked(monkeypatch, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "terrella"):
        assert no_change_with(1, monkeypatch, tmp_path) is None
    assert "8 of 8" in caplog.text


def test_a_frame_attack_is_not_compared_with_a_masked_verdict(monkeypatch):
    np = pytest.importorskip("numpy")
    from terrella.core.types import Frames, Transition

    frames = [Frames.of(np.full((1, 2, 2, 3), shade, np.uint8)) for shade in (0, 255)]
    step = Transition(observation=frames[0], action="go", next_observation=frames[1])
    subject = Subject(Counter.Config())
    subject.transitions = [step]
    # The verifier breaks on 'nothing happens' alone; every attack earns nothing and is innocent.
    monkeypatch.setattr(
        verifier, "_score", lambda _, step, reply: None if reply is step.observation else 0.0
    )
    with pytest.raises(PropertyError, match="nothing happens broke the verifier"):
        verifier.battery_wins_nothing(subject)


def test_a_corrupted_tree_stays_a_tree():
    from terrella.core.types import Tree

    assert same_kind(Tree("[1] link"), "x") == Tree("x")
    assert same_kind(Text("a"), "x") == Text("x")
