"""WebArena on sites of one's own: which hosts the browser may reach, and how tasks log in."""

from types import SimpleNamespace

import pytest

from terrella.browser.guard import GUARD_HEADER, NetworkGuard, RefusedError
from terrella.core.errors import ConfigError, WorldError
from terrella.worlds.webarena import env
from terrella.worlds.webarena.env import WebArena, _allowed

# --- the allow-list -------------------------------------------------------------------------------


def guard_of(monkeypatch, address, resolved):
    """The guard for one site, with a resolver that always gives the same addresses."""
    monkeypatch.setattr(env, "resolve", lambda *_: resolved)
    return NetworkGuard(allow=_allowed({"__X__": address}), resolver=lambda *_: resolved)


def test_a_site_at_a_private_address_is_reached():
    guard = NetworkGuard(allow=_allowed({"__X__": "http://10.0.0.5:7770"}))
    assert guard.target("10.0.0.5", 7770) == ("10.0.0.5", 7770)
    for host, port in (("10.0.0.5", 22), ("10.0.0.6", 7770), ("127.0.0.1", 7770)):
        with pytest.raises(RefusedError):
            guard.target(host, port)


@pytest.mark.parametrize(
    ("resolved", "pinned"),
    [
        (["192.168.1.9"], "192.168.1.9"),
        (["::1", "127.0.0.1"], "127.0.0.1"),
        (["fd00::7"], "fd00::7"),
        (["2001:4860::1", "192.168.1.9"], "192.168.1.9"),  # a machine at home often has both
    ],
)
def test_a_name_in_the_own_network_is_pinned_to_what_it_was(monkeypatch, resolved, pinned):
    guard = guard_of(monkeypatch, "http://Shop.local/", resolved)
    guard.resolver = lambda *_: ["127.0.0.1"]  # where it points later does not matter
    assert guard.target("shop.local", 80) == (pinned, 80)


def test_a_public_name_is_resolved_by_the_guard_and_link_local_is_never_pinned(monkeypatch):
    guard = guard_of(monkeypatch, "https://shop.example", ["8.8.8.8"])
    assert guard.allow[0].at == "" and guard.target("shop.example", 443) == ("8.8.8.8", 443)
    guard = guard_of(monkeypatch, "http://shop.example", ["169.254.169.254"])
    with pytest.raises(RefusedError):
        guard.target("shop.example", 80)


def test_a_site_without_an_address_is_named(monkeypatch):
    def unknown(host, port):
        raise OSError("Name or service not known")

    monkeypatch.setattr(env, "resolve", unknown)
    with pytest.raises(WorldError, match=r"shop\.local:7770 cannot be resolved"):
        _allowed({"__X__": "http://shop.local:7770"})
    for address in ("shop.local:7770", "http://", "http://shop:port", "ftp://shop"):
        with pytest.raises(ConfigError, match="is not the address of a site"):
            _allowed({"__X__": address})


# --- the start page -------------------------------------------------------------------------------


class Browser:
    """A host and a tab in one: a single page, with these headers."""

    def __init__(self, headers):
        self.headers = headers
        self.url = "http://10.0.0.5/"
        self.storage = []
        self.context = SimpleNamespace(browser=SimpleNamespace(is_connected=lambda: False))

    def tab(self, storage):
        self.storage.append(storage)
        return self

    def run(self, work, seconds):
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the stub never waits")

    async def go(self, url):
        return self

    async def settle(self):
        pass

    async def rows(self):
        return []


@pytest.fixture
def started(monkeypatch):
    """Starts a world whose browser shows one page."""

    def start(headers=(), **fields):
        browser = Browser(dict(headers))
        monkeypatch.setattr(env, "browser_for", lambda settings: browser)
        addresses = {"__SHOPPING__": "http://10.0.0.5", "__SHOPPING_ADMIN__": "http://10.0.0.6"}
        config = WebArena.Config(tasks="mini", addresses=addresses, **fields)
        return config.build(), browser

    return start


def test_an_episode_does_not_begin_on_a_page_of_the_guard(started):
    world, _ = started({GUARD_HEADER: "shop.test:80 is not on the allow-list"})
    with pytest.raises(WorldError, match=r"did not open: http://10\.0\.0\.5/: shop\.test:80 is no"):
        world.reset(seed=0)
    world, _ = started({"content-type": "text/html"})
    world.reset(seed=0)
