"""BrowserGym's environments as worlds: a stand-in that speaks its language, and the real thing where there is one."""

import importlib.util
import os

import gymnasium
import pytest

from terrella.browser.actions import parse_action
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.policies.basic import Random
from terrella.worlds.browsergym import BrowserGym, read_tree, write_code


def node(number, role, name, *children, bid=None, **more):
    return {"nodeId": number, "role": {"value": role}, "name": {"value": name}, "childIds": list(children),
            **({"browsergym_id": bid} if bid else {}), **more}  # fmt: skip


FORM = {"nodes": [
    node("1", "RootWebArea", "Sign in", "2", "6"),
    node("2", "generic", "", "3", "4", "5", bid="10"),
    node("3", "textbox", "User", bid="a11", value={"value": "kai"},
         properties=[{"name": "focused", "value": {"value": True}}, {"name": "required", "value": {"value": False}}]),
    node("4", "StaticText", " So  far "),
    node("5", "button", "Ghost", bid="12"),
    node("6", "button", "Enter", bid="13"),
]}  # fmt: skip


class StandIn(gymnasium.Env):
    """One form; the button ends the task, and rewards it when the field holds the word."""

    action_space = observation_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.said = []
        return self.seen(), {}

    def seen(self, error=""):
        return {"goal": f'Enter "{self.np_random_seed}".', "axtree_object": FORM, "last_action_error": error,
                "extra_element_properties": {"12": {"visibility": 0.0}}}  # fmt: skip

    def step(self, code):
        self.said.append(code)
        done = code == 'click("13")'
        error = "" if code.split("(")[0] in ("click", "fill", "scroll", "keyboard_press") else "unknown function"
        won = done and f'fill("a11", "{self.np_random_seed}")' in self.said
        return self.seen(error), float(won), done, False, {}


if "stand-in/form" not in gymnasium.registry:
    gymnasium.register("stand-in/form", StandIn)
WORLD = BrowserGym.Config(tasks=("stand-in/form",), max_steps=4)


def test_trees_become_ours_and_numbers_lead_back_to_elements():
    nodes, names = read_tree(FORM, {"12": {"visibility": 0.0}})
    world = WORLD.build()
    seen, _ = world.reset(seed=0)
    assert seen.text.splitlines() == [
        f'task "Enter \\"{world.task_seed}\\"."', 'page "Sign in"', '  [1] textbox "User" value="kai" focused',
        '  text "So far"', '  [2] button "Enter"',
    ]  # fmt: skip
    assert names == {1: "a11", 2: "13"} and len(nodes) == 4
    assert f"type 1 {world.task_seed}" in world.actions() and "click 2" in world.actions()


def test_actions_are_written_in_its_language():
    wanted = {
        "click 2": 'click("13")', 'type 1 say "hé"': 'fill("a11", "say \\"hé\\"")', "scroll up": "scroll(0, -240)",
        "select 1 Red": 'select_option("a11", "Red")', "press Enter": 'keyboard_press("Enter")', "back": "go_back()",
        "stop 4": 'send_msg_to_user("4")', "goto http://a.test/": 'goto("http://a.test/")', "click 9": None,
    }  # fmt: skip
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


def test_what_cannot_be_is_said():
    with pytest.raises(ConfigError, match="pip install browsergym-nowhere"):
        BrowserGym.Config(needs=("browsergym.nowhere",))
    with pytest.raises(ConfigError, match="no task is named"):
        BrowserGym.Config().build()
    world = WORLD.build()
    world.reset(seed=0)
    with pytest.raises(WorldError, match="cannot be forked"):
        world.fork()


@pytest.mark.skipif(
    importlib.util.find_spec("browsergym") is None or "MINIWOB_URL" not in os.environ,
    reason="needs browsergym-miniwob in an environment of its own, and MINIWOB_URL",
)
def test_the_real_thing_plays_an_episode():
    config = BrowserGym.Config(tasks=("browsergym/miniwob.enter-text",), needs=("browsergym.miniwob",), max_steps=4)
    world = config.build()
    seen, _ = world.reset(seed=0)
    word = seen.text.split('\\"')[1]
    world.step(next(action for action in world.actions() if action.startswith("type") and action.endswith(word)))
    button = next(node.id for node in world.nodes if node.role == "button")
    _, reward, terminated, _, info = world.step(f"click {button}")
    world.close()
    assert reward > 0 and terminated and info["success"]
