"""`terrella wrap`: an env that Terrella has never seen becomes a world that passes `check`."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from terrella.commands.check import check_world
from terrella.commands.wrap import (
    digits_for,
    module_name,
    play_at_random,
    success_rule,
    wrap,
)
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.gym_world import GymWorld, rounded
from terrella.core.types import Split, State
from terrella.pipelines.certify.pipeline import chance_caveat, summary
from terrella.policies.basic import Random
from terrella.trust.certificate import Certificate
from terrella.trust.nearness import NearestData
from terrella.verify.state import StateDiff
from terrella.worlds import world_config
from terrella.worlds.frozen_lake import FrozenLake


def wrapped(env_id, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    name = f"wrapped_{module_name(env_id)}"
    done = wrap(env_id, folder, name)
    return done, world_config(name)


def test_an_env_with_one_initial_state_passes_every_check(tmp_path, monkeypatch):
    done, config = wrapped("CliffWalking-v1", tmp_path, monkeypatch)
    assert "weaker certificate" in done.starts and config.split_by == "path"
    results = check_world(config)
    assert [result.detail for result in results if not result.passed] == []
    skipped = {result.name for result in results if result.status == "n/a"}
    assert skipped == {
        "truth_is_pure",
        "views_round_trip",
        "random_value_is_exact",
        "expert_beats_random",
    }
    world = config.build()
    assert "not for new states" in world.caveat
    drawn = {
        split: {
            world.reset(seed=seed, options={"split": split})[1]["instance"] for seed in range(9)
        }
        for split in Split
    }
    assert not drawn[Split.TRAIN] & drawn[Split.TEST]


@pytest.mark.parametrize(("env_id", "random"), [("FrozenLake-v1", True), ("Taxi-v4", False)])
def test_a_certificate_says_where_chance_counts_as_error(env_id, random, tmp_path, monkeypatch):
    """A perfect model of a slippery lake is refused, because a wrapped env lists no outcomes."""
    _, config = wrapped(env_id, tmp_path, monkeypatch)
    world, policy = config.build(), Random.Config().build()
    episodes = [play(world, policy, seed=seed, split=Split.TRAIN) for seed in range(40)]
    data = NearestData(step for episode in episodes for step in episode.transitions)
    assert data.repeated_pairs > 20
    assert ("chance, and what the view leaves out" in chance_caveat(world, data)) == random
    assert chance_caveat(FrozenLake.Config().build(), data) == ""  # it lists its outcomes


def test_a_continuous_env_gets_named_pushes(tmp_path, monkeypatch):
    done, config = wrapped("Pendulum-v1", tmp_path, monkeypatch)
    assert config.split_by == "start" and config.walk == 0 and "enough" in done.starts
    world = config.build()
    assert world.actions() == ("rest", "minus0", "plus0") and world.caveat == ""
    seen, _ = world.reset(seed=0)
    after = world.step("plus0")[0]
    assert seen != after and all(number == round(number, 4) for number in after.value)
    recipe = sys.modules[done.module].wrapped_pendulum_model()
    assert recipe.world == config and recipe.transitions == 20_000


def test_what_cannot_be_wrapped_is_refused_with_a_reason(tmp_path):
    class Pictures(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    class Combined(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)
        action_space = gymnasium.spaces.MultiDiscrete([2, 2])

    gymnasium.register("Pictures-v0", entry_point=Pictures)
    gymnasium.register("Combined-v0", entry_point=Combined)
    for env_id, reason in (
        ("Pictures-v0", "pictures"),
        ("Combined-v0", "native_action"),
        ("NoSuchEnv-v0", "MODULE:ENV"),
        ("no_such_module:Env-v0", "pip install no_such_module"),
    ):
        with pytest.raises(ConfigError, match=reason):
            wrap(env_id, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cart_pole.py").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        wrap("CartPole-v1", tmp_path)


@pytest.mark.parametrize(
    ("env_id", "rule"),
    [
        ("CartPole-v1", "not terminated and self.steps + 1 >= self.config.max_steps"),
        ("MountainCar-v0", "terminated"),
        ("Blackjack-v1", "terminated and reward > 0"),
        ("Pendulum-v1", "False"),
        ("FrozenLake8x8-v1", "terminated and reward > 0"),  # random play never gets there
    ],
)
def test_success_is_guessed_from_rewards(env_id, rule):
    env = gymnasium.make(env_id, max_episode_steps=-1)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(9)]
    assert success_rule(play_at_random(env, actions).rewards)[1] == rule


def test_digits_are_enough_for_the_number_that_varies_least():
    car = gymnasium.make("MountainCar-v0", max_episode_steps=-1)  # its velocity is below 0.07
    assert digits_for(play_at_random(car, [0, 1, 2]).observations) == 3
    assert digits_for([{"a": 3, "b": (1.0, 20.0)}, {"a": 5, "b": (1.0, 30.0)}]) == 2


class OneStart(GymWorld):
    env_id, action_names = "CliffWalking-v1", ("up", "right", "down", "left")
    verifier = StateDiff.Config().build()

    def show(self, native):
        return State.of(rounded(native, digits=2))


def test_an_env_with_too_few_starts_says_which_setting_helps():
    with pytest.raises(WorldError, match=r"walk=8.*split_by=path"):
        OneStart.Config().build().reset(seed=0, options={"split": Split.VALIDATION})
    walked = OneStart.Config(walk=8, split_by="path").build()
    first = walked.reset(seed=3, options={"split": Split.TEST})
    assert walked.reset(seed=3, options={"split": Split.TEST}) == first
    twin = walked.fork()
    assert twin.step("up") == walked.step("up")
    drawn = [walked.reset(seed=seed) for seed in range(40)]
    starts = {observation for observation, _ in drawn}
    assert len({info["instance"] for _, info in drawn}) > len(starts) > 3  # paths, not states


def test_the_command_says_what_to_do_next(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "terrella.cli", "wrap", "CartPole-v1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "now: terrella check cart_pole" in done.stdout and (tmp_path / "cart_pole.py").exists()


def test_rounded_takes_every_kind_of_number():
    native = {"a": np.array([1.234, -0.001], np.float32), "b": (np.int64(3), 2.0), "c": True}
    assert rounded(native, digits=2) == {"a": [1.23, 0.0], "b": [3, 2.0], "c": True}
    assert str(rounded(np.float64(-0.001), digits=2)) == "0.0"


def test_a_weaker_certificate_says_so_after_its_verdict():
    sections = {
        "certified": True,
        "reasons": [],
        "safe_horizon": 3,
        "about": {
            "horizon_error": 0.15,
            "policies": ["random"],
            "confidence": 0.95,
            "caveat": "weaker: for new episodes, not for new states",
        },
        "risk": {},
        "ranking": None,
        "exploitability": None,
        "real_steps": {"risk": 10},
    }
    assert summary(Certificate(sections))[:2] == [
        (
            "verdict",
            "CERTIFIED for 3 steps under random at an error of 0.15 (95% confidence)",
        ),
        ("but", "weaker: for new episodes, not for new states"),
    ]
