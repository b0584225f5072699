"""MiniWoB++ in real Chromium: observations, actions, success, and a browser that dies."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")
pytest.importorskip("miniwob", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.host import descendants
from terrella.browser.launch import find_chromium
from terrella.core.episode import EpisodeRun, play
from terrella.core.errors import ConfigError, MissingExtraError, MissingProgramError, WorldError
from terrella.core.types import Split, Stop
from terrella.policies.basic import Expert, Random
from terrella.rollout.batch_rollout import BatchRollout
from terrella.verify.tree import parse
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.miniwob.families import HELD_OUT, family_names
from terrella.worlds.miniwob.scripts import SCRIPTS

try:
    find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)

# One family of each kind of page: lists, fields, dialogs, tabs, pages with a clock, drawings.
SOLVED = (
    "click-checkboxes",
    "login-user",
    "click-dialog-2",
    "click-tab-2",
    "choose-date",
    "count-shape",
    "search-engine",
)


def build(*families, **fields):
    return MiniWob.Config(families=families, max_steps=15, **fields).build()


def is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_all_families_exist_and_the_held_out_ones_are_among_them():
    assert len(family_names()) == 125
    assert set(SCRIPTS) <= set(family_names()) and len(SCRIPTS) >= 60
    assert {name for names in HELD_OUT.values() for name in names} <= set(family_names())


@pytest.mark.parametrize("family", SOLVED)
def test_the_script_solves_its_family(family):
    world = build(family)
    episodes = [play(world, Expert.Config().build(), seed=seed) for seed in (0, 1)]
    assert [episode.outcome.value for episode in episodes] == [1.0, 1.0]


def test_the_page_is_seen_and_a_wrong_answer_fails():
    world = build("click-test-2", view="tree")
    seen, _ = world.reset(seed=0)
    elements = [(node.role, node.name) for node in parse(seen.text)]
    assert elements[1:] == [("button", "ONE"), ("button", "TWO")]
    assert "click 3" in world.actions()
    _, reward, terminated, _, info = world.step("click 3")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_an_element_that_is_not_there_is_an_invalid_step():
    world = build("click-test-2")
    seen, _ = world.reset(seed=0)
    after, _, terminated, _, info = world.step("click 99")
    assert after == seen and not terminated and not info["valid"]


@pytest.mark.parametrize("reload", [True, False])
def test_nobody_goes_back_into_an_earlier_episode(reload):
    """Its page would open at its own seed, and its reward would count."""
    world = build("click-test", "click-test-2", reload=reload, browser=12)
    families = []
    for seed in range(6):
        world.reset(seed=seed)
        families.append(world.family)
        page = world.state
        for _ in range(2):
            _, reward, terminated, _, info = world.step("back")
            assert (reward, terminated, info["valid"]) == (0.0, False, False)
        assert world.state == page and world.tab.url.endswith(f"/{world.family}.html")
    assert len(set(families)) == 2
    world.host.close()


def test_seeds_that_draw_the_same_page_are_one_instance():
    """`click-test-2` shows the same buttons whatever the seed; a login has new names."""
    families = {name: MiniWob.Config(families=(name,)) for name in ("click-test-2", "login-user")}
    with BatchRollout(families) as rollout:
        found = {name: len(rollout.distinct_seeds(name, 3, Split.TEST)) for name in families}
    assert found == {"click-test-2": 1, "login-user": 3}


def test_the_test_split_can_hold_out_families():
    world = build(*sorted(SCRIPTS), by="family")
    for split in (Split.TEST, Split.VALIDATION):
        drawn = set()
        for seed in range(4):
            world.reset(seed=seed, options={"split": split})
            drawn.add(world.family)
        assert drawn <= set(HELD_OUT[split])
    with pytest.raises(WorldError, match="belongs to test"):
        build("click-test", by="family").reset(seed=0, options={"split": "test"})
    with pytest.raises(ConfigError, match="no family"):
        build("no-such-family")


def test_an_episode_survives_a_killed_browser():
    world = build("login-user", browser=7)
    run = EpisodeRun(world, seed=3)
    run.advance(run.moment.expert())
    os.kill(world.host.pid, signal.SIGKILL)
    while not run.over:
        run.advance(run.moment.expert())
    assert run.episode.outcome.value == 1.0 and world.host.starts == 2
    world.host.close()


def test_a_browser_that_cannot_be_restarted_masks_the_episode(monkeypatch):
    world = build("login-user", browser=8)
    run = EpisodeRun(world, seed=3)
    os.kill(world.host.pid, signal.SIGKILL)
    monkeypatch.setattr(world.host, "executable", "/no/such/chromium")

    class Advance:
        name = "advance"

        def act(self, moment):
            return "click 6"

    episode = play(world, Advance(), seed=3)
    assert episode.stop is Stop.WORLD_ERROR and episode.outcome.value is None
    assert not run.over
    world.host.close()


def test_a_page_that_hangs_is_killed_and_the_next_episode_runs():
    world = build("click-test", browser=9, seconds=2.0)
    world.reset(seed=0)
    with pytest.raises(Exception, match="no answer within 2 s"):
        world.host.run(world.tab.evaluate("while (true) {}"), world.config.seconds)
    assert play(world, Expert.Config().build(), seed=0).success
    world.host.close()


def test_no_process_is_left_behind():
    world = build("click-test", browser=10)
    play(world, Random.Config().build(), seed=0)
    processes = [world.host.pid, *descendants(world.host.pid)]
    assert len(processes) > 1 and all(map(is_alive, processes))
    world.host.close()
    assert not any(map(is_alive, processes))


def test_the_page_is_available_as_html_and_screenshot():
    world = build("click-test")
    world.reset(seed=0)
    assert "Click Me!" in world.html() and world.screenshot().startswith(b"\x89PNG")
