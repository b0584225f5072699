"""BrowserGym environments as worlds.

A fake environment with its interface is always tested, the real one where it is installed.
"""

import importlib.util
import os
import sys

import gymnasium
import pytest

from terrella.codecs.web_language import parse_action
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.policies.basic import Random
from terrella.worlds.browsergym import BrowserGym, read_tree, write_code


def node(number, role, name, *children, bid=None, **more):
    return {
        "nodeId": number,
        "role": {"value": role},
        "name": {"value": name},
        "childIds": list(children),
        **({"browsergym_id": bid} if bid else {}),
        **more,
    }


FORM = {
    "nodes": [
        node("1", "RootWebArea", "Sign in", "2", "6"),
        node("2", "generic", "", "3", "4", "5", bid="10"),
        node(
            "3",
            "textbox",
            "User",
            bid="a11",
            value={"value": "kai"},
            properties=[
                {"name": "focused", "value": {"value": True}},
                {"name": "required", "value": {"value": False}},
            ],
        ),
        node("4", "StaticText", " So  far "),
        node("5", "button", "Ghost", bid="12"),
        node("6", "button", "Enter", bid="13"),
    ]
}


class FakeForm(gymnasium.Env):
    """A form whose button ends the task, with a reward when the field was filled correctly."""

    action_space = observation_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.calls = []
        return self.observe(), {}

    def observe(self, error=""):
        return {
            "goal": f'Enter "{self.np_random_seed}".',
            "axtree_object": FORM,
            "last_action_error": error,
            "extra_element_properties": {"12": {"visibility": 0.0}},
        }

    def step(self, code):
        self.calls.append(code)
        done = code == 'click("13")'
        is_known = code.split("(")[0] in ("click", "fill", "scroll", "keyboard_press")
        error = "" if is_known else "unknown function"
        won = done and f'fill("a11", "{self.np_random_seed}")' in self.calls
        return self.observe(error), float(won), done, False, {}


if "fake/form" not in gymnasium.registry:
    gymnasium.register("fake/form", FakeForm)
WORLD = BrowserGym.Config(tasks=("fake/form",), max_steps=4)


def test_trees_are_converted_and_numbers_map_back_to_elements():
    nodes, element_ids = read_tree(FORM, {"12": {"visibility": 0.0}})
    world = WORLD.build()
    seen, _ = world.reset(seed=0)
    assert seen.text.splitlines() == [
        f'task "Enter \\"{world.task_seed}\\"."',
        'page "Sign in"',
        '  [1] textbox "User" value="kai" focused',
        '  text "So far"',
        '  [2] button "Enter"',
    ]
    assert element_ids == {1: "a11", 2: "13"} and len(nodes) == 4
    assert f"type 1 {world.task_seed}" in world.actions() and "click 2" in world.actions()


def test_actions_are_written_as_browsergym_code():
    wanted = {
        "click 2": 'click("13")',
        'type 1 say "hé"': 'fill("a11", "say \\"hé\\"")',
        "scroll up": "scroll(0, -240)",
        "select 1 Red": 'select_option("a11", "Red")',
        "press Enter": 'keyboard_press("Enter")',
        "back": "go_back()",
        "stop 4": 'send_msg_to_user("4")',
        "goto http://a.test/": 'goto("http://a.test/")',
        "click 9": None,
    }
    assert {text: write_code(parse_action(text), {1: "a11", 2: "13"}) for text in wanted} == wanted


def test_an_episode_is_rewarded_by_the_environment_and_errors_are_invalid_actions():
    world = WORLD.build()
    world.reset(seed=3)
    _, _, _, _, info = world.step("back")
    assert not info["valid"] and not world.step("click 9")[4]["valid"]
    world.step(f"type 1 {world.task_seed}")
    _, reward, terminated, _, info = world.step("click 2")
    assert reward == 1.0 and terminated and info["success"]
    assert play(world, Random.Config().build(), seed=5).error == ""


def test_a_config_imports_nothing_and_a_task_names_no_module():
    assert "this" not in sys.modules
    BrowserGym.Config(needs=("this",))
    assert "this" not in sys.modules
    with pytest.raises(ConfigError, match="names a module"):
        BrowserGym.Config(tasks=("this:browsergym/x",))


def test_missing_modules_missing_tasks_and_forks_are_refused():
    with pytest.raises(ConfigError, match="pip install browsergym-nowhere"):
        BrowserGym.Config(needs=("browsergym.nowhere",)).build()
    with pytest.raises(ConfigError, match="no task is named"):
        BrowserGym.Config().build()
    world = WORLD.build()
    world.reset(seed=0)
    with pytest.raises(WorldError, match="cannot be forked"):
        world.fork()


@pytest.mark.skipif(
    importlib.util.find_spec("browsergym") is None or "MINIWOB_URL" not in os.environ,
    reason="needs browsergym-miniwob in a separate environment, and MINIWOB_URL",
)
def test_the_real_browsergym_plays_an_episode():
    config = BrowserGym.Config(
        tasks=("browsergym/miniwob.enter-text",), needs=("browsergym.miniwob",), max_steps=4
    )
    world = config.build()
    seen, _ = world.reset(seed=0)
    word = seen.text.split('\\"')[1]
    typing = [action for action in world.actions() if action.startswith("type")]
    world.step(next(action for action in typing if action.endswith(word)))
    button = next(node.id for node in world.nodes if node.role == "button")
    _, reward, terminated, _, info = world.step(f"click {button}")
    world.close()
    assert reward > 0 and terminated and info["success"]
