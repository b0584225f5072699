"""Whatever a page tries, no packet leaves Chromium but through the guard.

The leak page runs in a network namespace where every packet is read: see tests/support/leaking.py.
`confined` is what users get where namespaces are allowed, and `flags` what they get elsewhere.
`old` is the flag that Chromium ignores: it shows that the page and the capture can see a leak.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.attack.campaign import LEVEL, ROOT, record

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.launch import find_chromium
from terrella.core.errors import MissingExtraError, MissingProgramError

try:
    find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)

OWN_NETWORK = ["unshare", "--net", *(["--user", "--map-root-user"] if os.geteuid() else [])]
PROBE = [*OWN_NETWORK, "sh", "-c", "ip link set lo up && test -c /dev/net/tun"]
if not shutil.which("unshare") or subprocess.run(PROBE, capture_output=True).returncode:
    pytest.skip("needs a network namespace of its own", allow_module_level=True)

SEEN = {
    *("audio", "beacon", "body-background", "css-background", "css-font", "css-import", "download"),
    *("embed", "events", "favicon.ico", "fetch", "fetch-cors", "form", "iframe", "img"),
    *(
        "keepalive",
        "link-header",
        "link-icon",
        "link-prefetch",
        "link-preload",
        "meta-refresh",
        "module",
    ),
    *("navigate", "object", "popup", "redirect", "redirect-img", "redirect-page", "script"),
    *("service-worker", "shared-worker", "srcset", "stylesheet", "svg", "video", "worker-fetch"),
    *("worker-import", "xhr", "203.0.113.9:80", "203.0.113.9:3478"),
}
"""Tries that must have reached the guard, or the page did not try: WebSocket and TURN come last."""


MODES = ("confined", "flags", "old")
RUNS = {}


def findings(mode):
    if mode not in RUNS:
        RUNS[mode] = leak_page(mode)
    return RUNS[mode]


def leak_page(mode):
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [*OWN_NETWORK, sys.executable, "-m", "tests.support.leaking", mode]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def recorded():
    """Record what the tests saw, if they ran the page in all three modes."""
    yield
    if RUNS.keys() != set(MODES):
        return
    keys = ("confinement", "tcp_packets", "udp_packets")
    record(
        "browser",
        {
            "what": "the leak page in real Chromium, in a network namespace where every packet is "
            "read; `old` is the flag that Chromium ignores, and shows that a leak is seen",
            "level": LEVEL,
            "chromium": RUNS["flags"]["chromium"],
            "tried": len(RUNS["flags"]["tried"]),
            "kinds_refused_by_the_guard": len(RUNS["flags"]["refused"]),
            **{mode: {key: found[key] for key in keys} for mode, found in RUNS.items()},
        },
    )


@pytest.mark.parametrize("mode", ["confined", "flags"])
def test_nothing_leaves_but_through_the_guard(mode):
    found = findings(mode)
    if mode == "confined" and not found["confinement"]["network"]:
        pytest.skip("no network namespace for Chromium inside this one")
    assert found["tcp"] == [] and found["udp"] == []
    assert len(found["tried"]) >= 150
    assert set(found["refused"]) >= SEEN


def test_the_same_page_leaks_with_the_flag_that_chromium_ignores():
    found = findings("old")
    assert any("secretcookie" in packet for packet in found["udp"])
