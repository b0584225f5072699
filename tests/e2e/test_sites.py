"""The mini-arena, where `terrella sites up` was run.

Expert scripts solve tasks, an agent that does nothing does not, and a reset restores everything.
"""

import os
import signal

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.core.episode import play
from terrella.core.errors import MissingExtraError, MissingProgramError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.policies.basic import Expert
from terrella.worlds.webarena import WebArena
from terrella.worlds.webarena.arena import SITES, Arena

try:
    WebArena.Config().build()
except (MissingExtraError, MissingProgramError, WorldError) as missing:
    pytest.skip(str(missing), allow_module_level=True)


class StopAgent:
    name = "stop"

    def act(self, moment):
        return "stop"


def matches_snapshot(arena):
    return [arena.checksum(site) == arena.checksum(site, snapshot=True) for site in SITES]


# An order's status, a comment in the forum, a new ticket.
@pytest.mark.parametrize("task", [30, 35, 54])
def test_a_script_changes_the_site_and_a_reset_undoes_it(task):
    world = WebArena.Config(only=(task,)).build()
    arena = Arena()
    split = split_of(instance_id({"tasks": "mini", "task": task}))
    assert play(world, StopAgent(), seed=0, split=split).outcome.value == 0.0
    episode = play(world, Expert.Config().build(), seed=0, split=split)
    assert episode.outcome.value == 1.0, (episode.error, episode.outcome)
    assert not all(matches_snapshot(arena))
    arena.reset()
    assert all(matches_snapshot(arena))
    world.close()


def test_a_browser_killed_mid_task_masks_the_episode():
    world = WebArena.Config(only=(30,), browser=5).build()

    class Killer:
        name = "killer"

        def act(self, moment):
            os.kill(world.host.pid, signal.SIGKILL)
            return "scroll down"

    split = split_of(instance_id({"tasks": "mini", "task": 30}))
    episode = play(world, Killer(), seed=0, split=split)
    assert episode.outcome.value is None and episode.stop.is_broken
    world.host.close()
