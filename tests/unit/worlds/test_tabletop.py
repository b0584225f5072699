"""The tabletop: frames, numbers as actions, success from the state, forks, Meta-World."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

# Not imported here, because the world sets the rendering backend before the import.
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.policies.basic import Expert, Mixture, Random
from terrella.worlds.tabletop import Tabletop
from terrella.worlds.tabletop.env import read_action, write_action


@pytest.fixture(scope="module")
def world():
    return Tabletop.Config(task="push", size=32).build()


def test_actions_are_numbers_and_nothing_else():
    assert write_action([1.5, -0.004]) == "+1.00 +0.00"
    assert list(read_action("+1.00 -0.25", 2)) == [1.0, -0.25]
    for text in ("", "1", "1 2 3", "nan 0", "inf 0", "up left", "1" * 100):
        assert read_action(text, 2) is None


def test_the_frame_changes_only_when_the_hand_moves(world):
    first, _ = world.reset(seed=0)
    still, *_, info = world.step("+0.00 +0.00")
    assert np.abs(still.array.astype(int) - first.array).max() <= 2 and info["valid"]
    moved, *_ = world.step("+1.00 +0.00")
    assert np.abs(moved.array.astype(int) - first.array).max() > 50
    before, _ = world.reset(seed=0)
    after, *_, info = world.step("not numbers")
    assert after == before == first and not info["valid"]


def test_the_expert_succeeds_and_random_actions_lower_the_success_rate(world):
    def success_rate(policy):
        return sum(play(world, policy.build(), seed=seed).success for seed in range(10)) / 10

    expert = success_rate(Expert.Config())
    mixture = success_rate(Mixture.Config(share=0.6))
    random = success_rate(Random.Config())
    assert expert >= 0.9 and expert > mixture >= random and random < 0.2


def test_reach_and_push_share_their_frames_but_not_their_success():
    push, reach = (Tabletop.Config(task=task, size=32).build() for task in ("push", "reach"))
    assert push.reset(seed=4)[0] == reach.reset(seed=4)[0]
    episode = play(reach, Expert.Config().build(), seed=4)
    assert episode.success and len(episode.transitions) < 8


def test_a_fork_is_independent(world):
    world.reset(seed=1)
    world.step("+0.50 +0.50")
    twin = world.fork()
    ahead = [twin.step("+1.00 -1.00")[0] for _ in range(3)]
    assert [world.step("+1.00 -1.00")[0] for _ in range(3)] == ahead


def test_frames_have_the_size_that_is_asked_for():
    assert Tabletop.Config(size=144).build().reset(seed=0)[0].shape == (1, 144, 144, 3)


def test_unknown_tasks_are_refused():
    with pytest.raises(ConfigError, match="no task 'juggle'"):
        Tabletop.Config(task="juggle")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="pip install 'terrella[metaworld]'"
)
@pytest.mark.filterwarnings("ignore")
def test_a_metaworld_task_works_as_a_scene():
    world = Tabletop.Config(task="metaworld/reach", size=32).build()
    episode = play(world, Expert.Config().build(), seed=0)
    assert episode.success and episode.first.shape == (1, 32, 32, 3)
    assert episode.transitions[0].changed
    assert play(world, Expert.Config().build(), seed=0) == episode
    with pytest.raises(ConfigError, match="no juggle-v3"):
        Tabletop.Config(task="metaworld/juggle").build()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="pip install 'terrella[metaworld]'"
)
@pytest.mark.filterwarnings("ignore")
def test_scenes_of_a_metaworld_task_share_a_renderer_and_draw_their_own_state():
    from terrella.worlds.tabletop import metaworld_scene

    made = metaworld_scene._renderer.cache_info().misses
    first, second = (Tabletop.Config(task="metaworld/push", size=32).build() for _ in range(2))
    drawn = first.reset(seed=1)[0]
    assert second.reset(seed=2)[0] != drawn  # with another block and another goal
    assert first.step("+1 +1 +0 +0")[0] != drawn
    assert first.reset(seed=1)[0] == second.reset(seed=1)[0] == drawn
    assert metaworld_scene._renderer.cache_info().misses == made + 1


def test_frames_are_rendered_without_a_window_even_if_mujoco_was_imported_first():
    """MuJoCo chooses its backend at import; a user's own import chose windows."""
    program = "import mujoco\nfrom terrella.worlds.tabletop import Tabletop\n"
    program += "print(Tabletop.Config().build().reset(seed=0)[0].array.shape)"
    without = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=without
    )
    assert done.stdout.strip() == "(1, 32, 32, 3)", done.stderr[-2000:]
