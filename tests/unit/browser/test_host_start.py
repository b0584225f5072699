"""A browser that cannot start leaves nothing behind, and says why."""

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")
from terrella.browser import host
from terrella.browser.guard import NetworkGuard
from terrella.browser.host import BrowserHost, BrowserSettings
from terrella.core.errors import ConfigError


class Driver:
    """Playwright with a Chromium that cannot be launched."""

    def __init__(self, error):
        self.error = error
        self.starts = self.stops = 0
        self.chromium = self

    def async_playwright(self):
        return self

    async def start(self):
        self.starts += 1
        return self

    async def launch(self, **options):
        if self.error is not None:
            raise self.error
        return SimpleNamespace(is_connected=lambda: True)

    async def stop(self):
        self.stops += 1


@pytest.fixture
def browser(monkeypatch):
    """Makes a host with such a driver, which keeps all its guards."""
    guards = []

    class KeptGuard(NetworkGuard):
        async def start(self, listening=None):
            guards.append(self)
            return await super().start(listening)

    @contextlib.asynccontextmanager
    async def launcher(guard):
        await guard.start()
        yield {}

    monkeypatch.setattr(host, "NetworkGuard", KeptGuard)
    monkeypatch.setattr(host, "find_chromium", lambda executable: "chromium")
    monkeypatch.setattr(host, "confinement_of", lambda path: SimpleNamespace(launcher=launcher))
    made = []

    def make(error):
        started = BrowserHost(BrowserSettings())
        started.playwright_module = Driver(error)
        started.guards = guards
        made.append(started)
        return started

    yield make
    for started in made:
        started.close()


def serving(started):
    return [guard for guard in started.guards if guard.server.is_serving()]


def test_a_browser_that_cannot_be_launched_leaves_no_driver_and_no_guard(browser):
    started = browser(RuntimeError("libnss3.so is missing"))
    for attempt in (1, 2, 3):
        with pytest.raises(RuntimeError, match="libnss3"):
            started.tab()
        driver = started.playwright_module
        assert driver.starts == driver.stops == attempt == len(started.guards)
        assert not serving(started)


def test_a_browser_that_starts_and_leaks_is_cleaned_up_as_well(browser, monkeypatch):
    async def leaks(self):
        raise ConfigError("chromium", "it leaks")

    monkeypatch.setattr(BrowserHost, "_browser_pid", leaks)
    started = browser(None)
    with pytest.raises(ConfigError):
        started.tab()
    assert started.playwright_module.stops == 1 and not serving(started)
    assert started.browser is None
