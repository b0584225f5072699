"""Killing a browser kills its processes, and no other."""

import os

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")
from terrella.browser import host
from terrella.browser.host import BrowserHost


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
