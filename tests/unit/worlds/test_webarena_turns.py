"""Episodes on the mini-arena take turns: none loses its writes to the reset of another one."""

import asyncio
import json
import multiprocessing
import os
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest
from tests.support.page_world import Buttons

from terrella.browser.guard import Allow
from terrella.commands import sites
from terrella.commands.check.runner import check_world
from terrella.core.errors import WorldError
from terrella.core.tokens import Task
from terrella.core.types import Split, Stop
from terrella.data.attempts import PracticeTask
from terrella.rollout.batch_rollout import BatchRollout, expert_actions
from terrella.rollout.env_pool import EnvPool
from terrella.worlds.webarena import arena as arenas
from terrella.worlds.webarena import env, turns
from terrella.worlds.webarena.arena import SITES, Arena
from terrella.worlds.webarena.env import WebArena
from terrella.worlds.webarena.turns import ArenaTurn

ROW = {
    "task_id": 1,
    "sites": ["forum"],
    "intent": "Write a note.",
    "start_url": "__REDDIT__",
    "intent_template_id": 1,
    "require_login": False,
    "eval": {
        "eval_types": ["db_query"],
        "db_query": [{"site": "forum", "query": "SELECT text FROM notes", "expected": [["mine"]]}],
    },
}


class Browser:
    """A host and a tab in one; scrolling writes a note on the forum."""

    url = "http://forum.test/"

    def __init__(self, database):
        self.database = database
        self.context = SimpleNamespace(browser=SimpleNamespace(is_connected=lambda: False))

    def tab(self, storage):
        return self

    def run(self, work, seconds):
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the stub never waits")

    async def go(self, url):
        return None

    async def settle(self):
        pass

    async def rows(self):
        return []

    async def sibling(self):
        return self

    async def scroll(self, pixels, element):
        with sqlite3.connect(self.database, timeout=10) as database:
            database.execute("INSERT INTO notes VALUES ('mine')")
        return True


@pytest.fixture
def arena(monkeypatch, tmp_path):
    """A built arena whose servers do not matter; the config of a world on it."""
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path))
    made = Arena()
    for site in SITES:
        made.live(site).parent.mkdir(parents=True)
        for file in (made.live(site), made.snapshot(site)):
            with sqlite3.connect(file) as database:
                database.execute("CREATE TABLE notes (text)")
    monkeypatch.setattr(Arena, "require", lambda self, names: {})
    monkeypatch.setattr(Arena, "allow", lambda self: (Allow(host="forum.test"),))
    forum = next(site for site in SITES if site.name == "forum")
    monkeypatch.setattr(env, "browser_for", lambda settings: Browser(made.live(forum)))
    (tmp_path / "own.json").write_text(json.dumps([ROW]))
    return WebArena.Config(tasks=str(tmp_path / "own.json"), test_all=True, split=Split.TEST)


async def written_and_judged(pool, seed):
    async with pool.take() as worker:
        await worker.start(Task(seed=seed, split=Split.TEST), 0)
        await worker.act("scroll down")
        await asyncio.sleep(0.02)  # a model thinks, and other episodes begin
        await worker.act("stop done")
        return (await worker.finish(Stop.OUT_OF_STEPS)).outcome.value


@pytest.mark.parametrize("place", ["inline", "thread"])
@pytest.mark.parametrize("pools", [1, 2])
def test_episodes_that_are_asked_for_at_once_all_keep_their_writes(arena, place, pools):
    made = [EnvPool(EnvPool.Config(place=place, workers=4), arena) for _ in range(pools)]

    async def play_all():
        each = (written_and_judged(pool, seed) for seed in range(4) for pool in made)
        return await asyncio.gather(*each)

    assert asyncio.run(play_all()) == [1.0] * 4 * pools
    assert asyncio.run(play_all()) == [1.0] * 4 * pools  # in another event loop
    for pool in made:
        pool.close()


def test_an_episode_that_nobody_ends_gives_its_turn_back(arena):
    pool = EnvPool(EnvPool.Config(), arena)

    async def leave_one_and_play():
        async with pool.take() as worker:
            await worker.start(Task(seed=0, split=Split.TEST), 0)
        other = EnvPool(EnvPool.Config(), arena)
        return await written_and_judged(other, 1)

    assert asyncio.run(leave_one_and_play()) == 1.0


def test_a_second_world_of_a_thread_does_not_reset_the_first_and_says_why(arena):
    first, second = arena.build(), arena.build()
    first.reset(seed=0)
    first.step("scroll down")
    with pytest.raises(WorldError, match="this thread has begun an episode") as refused:
        second.reset(seed=0)
    assert "`leave` or `close`" in refused.value.remedy
    with pytest.raises(WorldError, match="this thread has begun an episode"):
        sites.run("reset", ())
    assert first.step("stop done")[4]["success"]
    second.reset(seed=0)  # the first one is over
    second.close()
    third = arena.build()
    third.reset(seed=0)
    del third
    first.reset(seed=0)  # a world that is gone plays none


def test_a_reset_that_fails_gives_the_turn_back(arena, monkeypatch):
    broken = arena.build()
    monkeypatch.setattr(broken.host, "tab", lambda storage: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.reset(seed=0)
    arena.build().reset(seed=0)


def test_check_builds_several_worlds_and_leaves_none_in_the_middle(arena, tmp_path):
    tasks = [{**ROW, "task_id": number, "oracle": ["scroll down"]} for number in range(60)]
    (tmp_path / "many.json").write_text(json.dumps(tasks))
    many = WebArena.Config(tasks=str(tmp_path / "many.json"), max_steps=3)
    said = {result.name: result.detail for result in check_world(many)}
    assert not [name for name, detail in said.items() if "not over" in detail], said
    assert said["fork_is_independent"] == "2 seeds, 3 moments"


def hold(folder, seconds):
    turn = ArenaTurn(folder)
    turn.take()
    (folder / "held").touch()
    time.sleep(seconds)


def test_another_process_waits_or_is_told_who_plays(tmp_path):
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=hold, args=(tmp_path, 60))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    turn = ArenaTurn(tmp_path)
    with pytest.raises(WorldError, match=f"process {process.pid} still plays") as told:
        turn.take(seconds=0.1)
    assert "TERRELLA_CACHE" in told.value.remedy
    threading.Timer(0.3, process.kill).start()
    began = time.monotonic()
    turn.take(seconds=30)
    assert 0.2 < time.monotonic() - began < 20
    process.join()


def test_a_fork_does_not_give_back_the_turn_of_its_parent(tmp_path):
    turn = ArenaTurn(tmp_path)
    turn.take()
    child = os.fork()
    if not child:
        turn.leave()
        os._exit(0)
    os.waitpid(child, 0)
    refused = []

    def try_it():
        with pytest.raises(WorldError, match="still plays") as error:
            ArenaTurn(tmp_path).take(seconds=0.1)
        refused.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert refused


def test_who_begins_again_at_once_does_not_starve_others(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.01)
    over = threading.Event()

    def play_on_and_on():
        turn = ArenaTurn(tmp_path)
        while not over.is_set():
            turn.take()
            time.sleep(0.03)
            turn.leave()

    greedy = threading.Thread(target=play_on_and_on)
    greedy.start()
    time.sleep(0.1)
    turn = ArenaTurn(tmp_path)
    try:
        for _ in range(3):
            turn.take(seconds=1.0)
            turn.leave()
    finally:
        over.set()
        greedy.join()


def test_the_own_sites_of_a_user_are_not_reset_and_take_no_turns(arena):
    assert arena.exclusive == f"mini-arena {arenas.default_folder()}"
    assert not arena.replace(addresses={"__REDDIT__": "http://10.0.0.5"}).exclusive


# --- any world that has something to itself -------------------------------------------------------


class Alone(Buttons):
    """Counts how many of it are played at once."""

    class Config(Buttons.Config):
        @property
        def exclusive(self):
            return "the buttons"

    playing, most = set(), 0

    def _draw_instance(self):
        super()._draw_instance()
        Alone.playing.add(id(self))
        Alone.most = max(Alone.most, len(Alone.playing))

    def leave(self):
        Alone.playing.discard(id(self))


@pytest.mark.parametrize("threads", [0, 4])
def test_a_batch_plays_such_worlds_one_after_the_other(threads):
    Alone.most = 0
    families = {"a": Alone.Config(), "b": Alone.Config(max_steps=3), "c": Buttons.Config()}
    tasks = [PracticeTask(family=name, seed=seed) for seed in range(4) for name in "abc"]
    with BatchRollout(families, slots=8, threads=threads) as rollout:
        played = rollout.play(expert_actions, tasks, split=Split.TRAIN)
        assert None not in rollout.first_inputs(tasks, Split.TRAIN)
    assert [attempt.task for attempt in played] == tasks
    assert all(attempt.success for attempt in played)
    assert Alone.most == 1 and not Alone.playing
