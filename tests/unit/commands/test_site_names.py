"""`terrella sites VERB NAME`: only the named sites, and only names that exist."""

import contextlib
import json
import sqlite3
import subprocess
import sys
import time

import pytest

from terrella.commands.sites import run
from terrella.core.errors import ConfigError, WorldError
from terrella.worlds.webarena.arena import SITES, Arena


@pytest.fixture
def arena(tmp_path, monkeypatch):
    """Every site with a changed database and a process that passes for its server."""
    monkeypatch.setenv("TERRELLA_CACHE", str(tmp_path))
    arena = Arena()
    servers = []
    for site in SITES:
        arena.live(site).parent.mkdir(parents=True)
        write(arena.snapshot(site), "built")
        write(arena.live(site), "changed")
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)", "serve.py", site.name]
        servers.append(subprocess.Popen(sleeper))
        running = {"port": 1, "pid": servers[-1].pid, "cookies": {}}
        (arena.home(site) / "running.json").write_text(json.dumps(running))
    while len(arena.running()) < len(SITES):  # a command line can be read a moment after the start
        time.sleep(0.01)
    yield arena
    for server in servers:
        server.kill()
        server.wait()


def write(file, text):
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE said (text)")
        database.execute("INSERT INTO said VALUES (?)", (text,))
        database.commit()


def said(arena):
    found = {}
    for site in SITES:
        with contextlib.closing(sqlite3.connect(arena.live(site))) as database:
            found[site.name] = database.execute("SELECT text FROM said").fetchone()[0]
    return found


def test_down_stops_the_named_site_only(arena, capsys):
    run("down", ("shop",))
    assert set(arena.running()) == {"forum", "tracker"}
    run("down", ())
    assert arena.running() == {}


def test_reset_restores_the_named_site_only(arena, capsys):
    run("reset", ("forum",))
    assert said(arena) == {"shop": "changed", "forum": "built", "tracker": "changed"}
    run("reset", ())
    assert set(said(arena).values()) == {"built"}


@pytest.mark.parametrize("verb", ["up", "reset", "down", "status"])
def test_an_unknown_site_is_refused_before_anything_is_done(arena, verb):
    with pytest.raises(ConfigError, match="config shopp: no such site\n  -> sites: shop, forum"):
        run(verb, ("forum", "shopp"))
    assert len(arena.running()) == 3 and set(said(arena).values()) == {"changed"}


def test_sites_that_are_down_are_named_with_the_command_that_starts_them(arena):
    arena.down(("tracker", "forum"))
    with pytest.raises(WorldError, match="forum, tracker are not running\n  -> terrella sites up"):
        arena.require({site.name for site in SITES})
