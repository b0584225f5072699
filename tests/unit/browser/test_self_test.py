"""A browser whose pages get past the guard is refused before it shows any page."""

import dataclasses
import logging
import os
from pathlib import Path

import psutil
import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser import host as hosts
from terrella.browser import launch
from terrella.browser.host import BrowserHost, BrowserSettings
from terrella.core.errors import ConfigError, MissingExtraError, MissingProgramError

try:
    CHROMIUM = launch.find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture
def host(monkeypatch):
    """A browser in this machine's network, that was not tested before."""
    shared = dataclasses.replace(launch.confinement_of(CHROMIUM), network=False)
    monkeypatch.setattr(hosts, "confinement_of", lambda _: shared)
    monkeypatch.setattr(hosts, "_tested", set())
    started = BrowserHost(BrowserSettings())
    yield started
    started.close()


def test_a_flag_that_chromium_ignores_is_noticed(host, monkeypatch):
    """Chromium 150 to 156 ignore this spelling, and pages sent UDP packets."""
    policy = "--webrtc-ip-handling-policy=disable_non_proxied_udp"
    flags = [flag.replace("--webrtc", "--force-webrtc") for flag in launch.FLAGS]
    assert policy in launch.FLAGS and policy not in flags
    monkeypatch.setattr(launch, "FLAGS", flags)
    with pytest.raises(ConfigError, match=r"[1-9]\d* UDP packets"):
        host.tab()
    assert host.browser is None and host.pid == 0
    with pytest.raises(ConfigError, match="past the guard"):  # and so is the next attempt
        host.tab()


def test_a_browser_that_does_not_use_the_guard_is_noticed(host, monkeypatch):
    monkeypatch.setattr(launch, "proxy", lambda port: None)
    with pytest.raises(ConfigError, match=r"[1-9]\d* TCP connections"):
        host.tab()


def test_a_browser_has_no_rights_no_keys_and_no_network(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    confinement = launch.confinement_of(CHROMIUM)
    host = BrowserHost(BrowserSettings())
    host.tab()
    process = psutil.Process(host.pid)
    assert "HF_TOKEN" not in process.environ() and "TERRELLA_CONFINE" not in process.environ()
    namespace = Path(f"/proc/{host.pid}/ns/net").readlink()
    assert (namespace != Path("/proc/self/ns/net").readlink()) == confinement.network
    assert process.uids().real == (confinement.user or os.geteuid())
    assert ("--no-sandbox" in process.cmdline()) != confinement.sandbox
    host.close()
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("missing", "logged", "expected"),
    [
        ({}, [], (True, 65534, True)),
        ({"network": "EPERM"}, ["shares this machine's network (EPERM)"], (False, 65534, True)),
        ({"sandbox": "ENOSPC"}, ["without its sandbox: ENOSPC"], (True, 65534, False)),
        ({"user": "no access"}, ["runs as root: no access", "refuses"], (True, 0, False)),
    ],
)
def test_what_cannot_be_confined_is_said_once(missing, logged, expected, monkeypatch, caplog):
    works = {"network": "", "user": "", "sandbox": ""}

    def probe(wish):
        return works | (missing if wish.user or "user" not in missing else {})

    monkeypatch.setattr(launch, "_probe", probe)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv(launch.USER_VARIABLE, raising=False)
    launch.confinement_of.cache_clear()
    with caplog.at_level(logging.WARNING, "terrella.browser"):
        found = launch.confinement_of("/usr/bin/chromium")
        launch.confinement_of("/usr/bin/chromium")
    launch.confinement_of.cache_clear()
    assert (found.network, found.user, found.sandbox) == expected
    assert len(caplog.messages) == len(logged)
    assert all(text in line for text, line in zip(logged, caplog.messages, strict=True))


def test_an_unknown_user_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv(launch.USER_VARIABLE, "nobody-has-this-name")
    launch.confinement_of.cache_clear()
    with pytest.raises(ConfigError, match="there is no user"):
        launch.confinement_of("/usr/bin/chromium")
