"""Killing a browser kills its processes and no other; who waits for a dead one is told soon."""

import asyncio
import os
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")
from terrella.browser import host
from terrella.browser.host import BrowserHost, BrowserLostError, BrowserSettings


@pytest.fixture
def waiting(monkeypatch):
    """A host whose browser never answers, and the processes that were killed."""
    monkeypatch.setattr(host, "find_chromium", lambda executable: "chromium")
    monkeypatch.setattr(host, "LOOK_SECONDS", 0.05)
    made = BrowserHost(BrowserSettings())
    made.browser, made.pid, made.killed = SimpleNamespace(is_connected=lambda: True), 4242, []
    monkeypatch.setattr(host, "descendants", lambda pid: [])
    monkeypatch.setattr(os, "kill", lambda pid, _: made.killed.append(pid))
    yield made
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), made.loop).result()  # cancelled ones end
    made.loop.call_soon_threadsafe(made.loop.stop)


def test_a_browser_that_hangs_is_killed(waiting):
    with pytest.raises(BrowserLostError, match=r"no answer within 0\.2 s, so it was killed"):
        waiting.run(asyncio.sleep(60), 0.2)
    assert waiting.killed == [4242]


def test_who_waits_for_a_browser_that_died_is_told_at_once(waiting):
    waiting.browser.is_connected = lambda: False
    began = time.monotonic()
    with pytest.raises(BrowserLostError, match="the browser died"):
        waiting.run(asyncio.sleep(60), 30.0)
    assert time.monotonic() - began < 5


def test_a_late_caller_of_the_old_browser_does_not_kill_the_new_one(waiting):
    async def while_another_thread_starts_a_new_one():
        waiting.browser = SimpleNamespace(is_connected=lambda: True)
        await asyncio.sleep(60)

    with pytest.raises(BrowserLostError):
        waiting.run(while_another_thread_starts_a_new_one(), 0.2)
    assert waiting.killed == []


def test_an_answer_is_an_answer(waiting):
    assert waiting.run(asyncio.sleep(0.2, "page"), 5.0) == "page"


def test_a_browser_that_two_threads_kill_takes_no_other_process_with_it(monkeypatch):
    """Process 0 would be the whole process group: the run, its shell, the launcher."""
    killed = []
    browser = BrowserHost.__new__(BrowserHost)
    browser.pid = 4242

    def looked_up_while_the_other_thread_kills(pid):
        browser.pid = 0
        return [4243] if pid == 4242 else [1]

    monkeypatch.setattr(host, "descendants", looked_up_while_the_other_thread_kills)
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    browser.kill()
    browser.kill()
    assert killed == [4243, 4242]
