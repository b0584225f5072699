"""The episode loop: what breaks is masked with its name, and breaks nothing else."""

import math
import threading
from dataclasses import replace

import pytest

from terrella.core.episode import EpisodeRun, play
from terrella.core.types import Outcome, Split, Status, Stop, Verdict
from terrella.policies.basic import Expert, Random
from terrella.worlds.counter import Counter

random_policy, expert = Random.Config().build(), Expert.Config().build()


class Slippery(Counter):
    def outcomes(self, state, action):
        done = super().outcomes(state, action)[0]
        return [replace(done, probability=0.5), Outcome(state=state, probability=0.5)]


class Raising:
    name = "raising"

    def __init__(self, after=0):
        self.after = after

    def act(self, moment):
        if len(moment.history) >= self.after:
            raise ConnectionError("endpoint is down")
        return "stay"  # invalid, so that the episode goes on


class BreaksAtThree(Counter):
    def outcomes(self, state, action):
        if self.steps == 2:
            raise KeyError("lost")
        return [Outcome(state=state)]


class Hangs(Counter):
    released = None

    def outcomes(self, state, action):
        self.released.wait(20)
        return super().outcomes(state, action)


@pytest.mark.parametrize("policy", [random_policy, expert])
@pytest.mark.parametrize("world", [Counter, Slippery])
def test_the_same_seeds_play_the_same_episode(world, policy):
    for seed in range(5):
        options = {"seed": seed, "noise_seed": seed % 2, "split": Split.VALIDATION}
        episode = play(world.Config().build(), policy, **options)
        assert play(world.Config().build(), policy, **options) == episode


def test_the_record_holds_what_happened():
    episode = play(Counter.Config().build(), expert, seed=0, noise_seed=7, split=Split.TEST)
    assert (episode.world, episode.policy, episode.seed, episode.noise_seed) == (
        "counter",
        "expert",
        0,
        7,
    )
    assert episode.split is Split.TEST and episode.stop is Stop.TERMINATED and episode.success
    assert episode.first == episode.transitions[0].observation and episode.error == ""
    for earlier, later in zip(episode.transitions, episode.transitions[1:], strict=False):
        assert earlier.next_observation == later.observation
    assert [step.terminated for step in episode.transitions] == [False] * (
        len(episode.transitions) - 1
    ) + [True]


def test_running_out_of_steps_is_a_loss_not_an_error():
    episode = play(
        Counter.Config(max_steps=1).build(), random_policy, seed=0
    )  # six presses from the goal
    assert (
        episode.stop is Stop.OUT_OF_STEPS
        and episode.outcome == Verdict.of(0.0)
        and episode.transitions[0].truncated
    )


def test_members_of_a_group_share_the_instance_and_differ_in_noise():
    group = [play(Slippery.Config().build(), expert, seed=0, noise_seed=k) for k in range(6)]
    assert len({episode.instance for episode in group}) == 1
    assert len({len(episode.transitions) for episode in group}) > 1


@pytest.mark.parametrize("after", [0, 2])
def test_a_policy_that_raises_ends_its_episode_masked_and_named(after):
    episode = play(Counter.Config().build(), Raising(after), seed=0)
    assert episode.stop is Stop.POLICY_ERROR and len(episode.transitions) == after
    assert episode.outcome.value is None and episode.outcome.status is Status.POLICY_ERROR
    assert (
        episode.error
        == "raising raised ConnectionError: endpoint is down"
        == episode.outcome.evidence
    )


def test_a_world_that_raises_ends_its_episode_masked_and_named():
    episode = play(BreaksAtThree.Config().build(), random_policy, seed=0)
    assert episode.stop is Stop.WORLD_ERROR and len(episode.transitions) == 2
    assert episode.outcome.masked and episode.error == "breaks_at_three raised KeyError: 'lost'"


@pytest.mark.parametrize(
    "reward", [math.nan, -math.inf, pytest.param(10**400, id="huge"), "1", None]
)
def test_a_reward_that_is_no_finite_number_masks_the_episode(reward):
    class Unbounded(Counter):
        def outcomes(self, state, action):
            done = super().outcomes(state, action)[0]
            return [replace(done, reward=reward if self.steps else 0.5)]

    episode = play(Unbounded.Config().build(), expert, seed=0)
    assert episode.stop is Stop.WORLD_ERROR and episode.outcome.masked
    assert "unbounded raised WorldError" in episode.error and "gave the reward" in episode.error
    assert [step.reward for step in episode.transitions] == [0.5]


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_an_end_that_is_not_a_bool_masks_the_episode(name):
    class Vague(Counter):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            ends = {"terminated": terminated, "truncated": truncated, name: "no"}
            return observation, reward, *ends.values(), info

    episode = play(Vague.Config().build(), expert, seed=0)
    assert episode.outcome.masked and f"gave {name}='no'" in episode.error


def test_a_world_that_cannot_list_its_actions_is_blamed_not_the_policy():
    class Forgetful(Counter):
        def actions(self):
            if self.steps:
                raise LookupError("which actions?")
            return super().actions()

    episode = play(Forgetful.Config().build(), random_policy, seed=0)
    assert (
        episode.stop is Stop.WORLD_ERROR
        and episode.error == "forgetful raised LookupError: which actions?"
    )


def test_a_world_that_cannot_judge_its_episode_is_masked():
    class Undecided(Counter):
        def outcome(self, transitions):
            raise ArithmeticError("cannot tell")

    episode = play(Undecided.Config().build(), expert, seed=0)
    assert (
        episode.outcome.status is Status.ENV_ERROR
        and episode.outcome.evidence == "undecided raised ArithmeticError: cannot tell"
    )
    assert episode.stop is Stop.WORLD_ERROR


@pytest.fixture
def released():
    event = threading.Event()
    yield event
    event.set()


def test_what_comes_too_late_is_not_recorded(released):
    world = Hangs.Config().build()
    world.released = released
    run = EpisodeRun(world, seed=0)
    late = []

    def step():
        try:
            run.advance("up")
        except ValueError as error:
            late.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    run.end(Stop.WORLD_TIMEOUT, "too slow")
    released.set()
    thread.join(5)
    assert late == ["the episode was ended during this step"] and run.episode.transitions == ()


def test_an_episode_is_driven_turn_by_turn():
    run = EpisodeRun(Counter.Config(max_steps=3).build(), seed=0, policy="by hand")
    with pytest.raises(ValueError, match="still running"):
        _ = run.episode
    assert (
        run.moment.steps_left == 3
        and run.moment.actions == ("up", "down")
        and run.moment.history == []
    )
    step = run.advance("up")
    assert (
        run.moment.history == [step]
        and run.moment.steps_left == 2
        and run.moment.observation == step.next_observation
    )
    assert run.situation.steps_left == 2
    run.end(Stop.OUT_OF_TOKENS)
    assert (
        run.over
        and run.episode.stop is Stop.OUT_OF_TOKENS
        and run.episode.outcome == Verdict.of(0.0)
    )


def test_a_moment_offers_the_proposals_and_the_expert():
    run = EpisodeRun(Counter.Config().build(), seed=0)
    assert (
        tuple(run.moment.proposals()) == ("up", "down") and run.moment.expert() == "down"
    )  # 103 -> 97


def test_a_world_that_cannot_be_reset_is_masked_and_named():
    class Empty(Counter):
        def draw(self, rng):
            return replace(super().draw(rng), value=1, goal=2)

    episode = play(Empty.Config().build(), random_policy, seed=3, noise_seed=4, split=Split.TEST)
    assert (
        episode.stop is Stop.WORLD_ERROR
        and episode.outcome.status is Status.ENV_ERROR
        and episode.transitions == ()
    )
    assert (episode.seed, episode.noise_seed, episode.split) == (3, 4, Split.TEST)
    assert "empty raised WorldError" in episode.error and "no test instance" in episode.error
