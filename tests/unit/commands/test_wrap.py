"""`terrella wrap`: an env that Terrella has never seen becomes a world that passes `check`."""

import functools
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from terrella.commands.check import check_world
from terrella.commands.env_facts import (
    PlayedStep,
    digits_for,
    play_at_random,
    success_rule,
    wasted_reward,
)
from terrella.commands.wrap import module_name, wrap
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.gym_world import GymWorld, rounded
from terrella.core.types import Split, State
from terrella.pipelines.certify.pipeline import chance_caveat, summary
from terrella.policies.basic import Random
from terrella.recipes.trust import counter_model
from terrella.trust.certificate import Certificate
from terrella.trust.nearness import NearestData
from terrella.verify.state import StateDiff
from terrella.worlds import builtin_names, find_world, world_config
from terrella.worlds.frozen_lake import FrozenLake


def wrapped(env_id, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    name = f"wrapped_{module_name(env_id)}"
    done = wrap(env_id, folder, name)
    return done, world_config(name)


def test_what_a_wrap_costs_is_counted(tmp_path, monkeypatch):
    """Steps of an env may be expensive, and only the env sees them all."""
    kind = type(gymnasium.make("CliffWalking-v1").unwrapped)
    asked = {"reset": 0, "step": 0}

    def count(name):
        asked_of = getattr(kind, name)

        @functools.wraps(asked_of)
        def counted(*given, **more):
            asked[name] += 1
            return asked_of(*given, **more)

        monkeypatch.setattr(kind, name, counted)

    count("reset")
    count("step")
    done = wrap("CliffWalking-v1", tmp_path, "cliff")
    assert {"reset": done.resets, "step": done.steps} == asked
    assert asked["step"] > 1000


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
    assert recipe.sft == replace(counter_model().sft, epochs=4)  # one set of settings for all


PICTURE = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
NUMBER = gymnasium.spaces.Box(-1, 1, (1,), np.float64)


def register(name, observation_space, actions=2, step=None, reset=None):
    """An env that only has spaces, unless it is said what it does."""

    class Env(gymnasium.Env):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return (reset or self.observation_space.sample)(), {}

    Env.observation_space = observation_space
    Env.action_space = gymnasium.spaces.Discrete(actions) if isinstance(actions, int) else actions
    Env.step = lambda self, action: (step or self.reset)()
    gymnasium.register(f"{name}-v0", entry_point=Env, disable_env_checker=True)


def fails():
    raise RuntimeError("no battery")


def test_what_cannot_be_wrapped_is_refused_with_a_reason(tmp_path):
    spaces = gymnasium.spaces
    register("Pictures", PICTURE)
    register("Camera", spaces.Dict({"image": PICTURE, "speed": NUMBER}))
    register("Words", spaces.Text(9))
    register("Pile", spaces.Sequence(NUMBER))
    register("Nan", NUMBER, step=lambda: (np.array([np.nan]), 0.0, False, False, {}))
    register("Empty", NUMBER, step=fails)
    register("Combined", spaces.Discrete(3), actions=spaces.MultiDiscrete([2, 2]))
    for env_id, reason in (
        ("Pictures-v0", "pictures"),
        ("Camera-v0", "pictures"),
        ("Words-v0", "not numbers"),
        ("Pile-v0", "not numbers"),
        ("Nan-v0", "NaN"),
        ("Empty-v0", "RuntimeError: no battery"),
        ("Combined-v0", "native_action"),
        ("NoSuchEnv-v0", "MODULE:ENV"),
        ("no_such_module:Env-v0", "no module no_such_module in this folder"),
    ):
        with pytest.raises(ConfigError, match=reason) as refused:
            wrap(env_id, tmp_path)
        assert "pip install" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cart_pole.py").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        wrap("CartPole-v1", tmp_path)


@pytest.mark.parametrize(
    ("env_id", "rule"),
    [
        ("CartPole-v1", "not terminated and self.played >= self.config.max_steps"),
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
    assert success_rule(play_at_random(env, actions))[1] == rule


def played(*steps):
    """Steps of (before, after, reward, ended) in one number."""
    return [PlayedStep([before], [after], *rest) for before, after, *rest in steps]


def test_a_pole_that_earns_nothing_when_it_falls_must_last():
    steps = played((0.0, 0.1, 1.0, False), (0.1, 0.9, 0.0, True))  # InvertedPendulum
    assert "self.played" in success_rule(steps)[1]


def test_digits_show_the_usual_change_per_step():
    car = gymnasium.make("MountainCar-v0", max_episode_steps=-1)
    steps = play_at_random(car, [0, 1, 2])  # its velocity changes by a thousandth
    assert digits_for(steps) == 4
    assert digits_for(played((1.0, 20.0, 0.0, False), (20.0, 30.0, 0.0, False))) == 2


def test_text_that_is_no_action_earns_what_a_wasted_step_does():
    cliff = gymnasium.make("CliffWalking-v1", max_episode_steps=-1)
    assert wasted_reward(play_at_random(cliff, [0, 1, 2, 3])) == -1.0  # not the -100 of the cliff
    assert wasted_reward(played((0.0, 0.1, 1.0, False), (0.1, 0.9, 1.0, True))) == 0.0
    assert wasted_reward(played((0.0, 0.1, -3.0, False), (0.1, 0.9, -9.0, True))) == -3.0


def test_nonsense_does_not_beat_playing(tmp_path, monkeypatch):
    car = wrapped("MountainCar-v0", tmp_path, monkeypatch)[1].build()
    returns = {}
    for text in ("left", "zzz"):
        car.reset(seed=0)
        returns[text] = sum(car.step(text)[1] for _ in range(car.config.max_steps))
    assert returns["zzz"] <= returns["left"]
    pole = wrapped("CartPole-v1", tmp_path, monkeypatch)[1].replace(max_steps=5).build()
    for waiting in ("left", "zzz"):  # a pole that was not stepped has not lasted
        pole.reset(seed=0)
        *_, last = [pole.step(text) for text in (waiting, "right", "left", "right", "left")]
        assert last[3] and last[4]["success"] == (waiting == "left")


def test_rounding_leaves_a_perfect_model_enough_to_be_certified(tmp_path, monkeypatch):
    done, config = wrapped("CartPole-v1", tmp_path, monkeypatch)
    assert done.warning == "" and "# a perfect model: 1.0" in done.path.read_text()
    assert [result.detail for result in check_world(config) if not result.passed] == []


def test_numbers_that_hide_what_comes_next_are_a_warning(tmp_path, monkeypatch):
    class Chaos(gymnasium.Env):  # what rounding cuts off decides the next step
        observation_space = NUMBER
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.state = np.array([self.np_random.uniform()])
            return self.state.copy(), {}

        def step(self, action):
            self.state = (self.state * 997.3 + action / 2) % 1
            return self.state.copy(), 0.0, False, False, {}

    gymnasium.register("Chaos-v0", entry_point=Chaos)
    done, _ = wrapped("Chaos-v0", tmp_path, monkeypatch)
    assert "a perfect model would be right in 0." in done.warning


def test_a_world_that_ships_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = wrap("FrozenLake-v1", tmp_path)
    assert done.module not in builtin_names()
    assert find_world(done.module).env_id == "FrozenLake-v1"
    for name, reason in (("sokoban", "ships with terrella"), ("queue", "module of Python")):
        with pytest.raises(ConfigError, match=reason):
            wrap("CliffWalking-v1", tmp_path, name)


def test_a_module_that_a_world_that_ships_hides_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counter.py").write_text("")
    find_world("counter")
    assert "counter.py: give that file another name" in caplog.text


def test_a_world_without_a_rule_of_success_says_what_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_pole.py").write_text(
        "from terrella import GymWorld, State, StateDiff\n"
        "class Pole(GymWorld):\n"
        "    env_id, action_names = 'CartPole-v1', ('left', 'right')\n"
        "    verifier = StateDiff.Config().build()\n"
        "    def show(self, native): return State.of(native.tolist())\n"
    )
    with pytest.raises(ConfigError, match=r"write `succeeded` .*in Pole"):
        find_world("my_pole")


class OneStart(GymWorld):
    env_id, action_names = "CliffWalking-v1", ("up", "right", "down", "left")
    verifier = StateDiff.Config().build()

    def show(self, native):
        return State.of(rounded(native, digits=2))

    def succeeded(self, reward, terminated, info):
        return terminated


def test_closing_a_world_closes_its_env():
    world, closed = OneStart.Config().build(), []
    world.env.close = lambda: closed.append(True)
    world.close()
    assert closed == [True]


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


def test_an_env_of_a_module_in_this_folder_is_found(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text import TaxiEnv\n"
        "gymnasium.register('Cab-v0', entry_point=TaxiEnv)\n"
    )
    script = "import sys; sys.path.remove(''); from terrella.cli import main; main()"
    done = subprocess.run(  # an installed command does not have this folder on its path
        [sys.executable, "-c", script, "wrap", "mine:Cab-v0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "import mine" in (tmp_path / "cab.py").read_text()


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
