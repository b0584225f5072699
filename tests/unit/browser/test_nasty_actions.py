"""No action masks the episode of the agent that takes it: a masked episode leaves every mean.

Every action here is carried out in a real browser, on MiniWoB++ and on a site of one's own.
"""

import asyncio
import http.server
import json
import threading

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from playwright.async_api import Error

from terrella.browser.launch import find_chromium
from terrella.browser.tab import _opened
from terrella.codecs.web_language import parse_action
from terrella.core.episode import EpisodeRun
from terrella.core.errors import MissingExtraError, MissingProgramError
from terrella.core.types import Split
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.webarena import WebArena

try:
    find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)

KEYS = (
    *("ß", "ŉ", "ǰ", "ﬁ", "+", "++", "Control+", "Control+ß", "Shift+ŉ", "a+", "+a", "é", "İ"),
    *("\u0131", "\U0001f375", "\ud800", "\x00", "\u202e", "Control+a", "Control+w", "Alt+F4"),
    *("F5", "F12", "Control+Shift+i", "Meta+q", "Space", "Tab", "Escape", "Enter", "Hyper+x"),
)
PRESSES = tuple(f"press {key}" for key in KEYS)
ELEMENTS = (
    *("click 0", "click 999999999", "right_click 2", "hover 3", "hover 0", "type 2 \x00\x07\x1b"),
    *("type 2 \ud800", "type 3 \U0001f375\r\n\t", "type 2 ", "type 999999999 x", "search 2 ß"),
    *("select 2 ", "select 3 \"\\'`", "select 2 \ud800", "scroll 999999999 down", "scroll 0 up"),
    *("back", "back", "forward", "forward", "back", "wait"),
)
ADDRESSES = (
    *("http://[3]", "http://[", "http://]", "http://[::1]/", "http://[::1", "http://", "http:///"),
    *("http://%00/", "http://%zz/", "http://a b", "http://\ud800/", "http://ß.test/", "http://.."),
    *("http://x:99999/", "http://x:port/", "http://user:pass@x/", "http://closed/[", "HTTP://X/"),
    *("http://net::/", "http://crashed:x/", "https://x.test/", "http://127.0.0.1:1/", "http:x"),
    *("about:blank", "chrome://crash", "javascript:1", "file:///etc/passwd", "data:text/html,x"),
    *("view-source:http://x/", "ws://x/", "blob:http://x/1", "//x", "x", "http://1.1.1.1.1/"),
    "http://" + "a" * 1400 + "/",
)
PATHS = (
    *("/", "/empty", "/file", "/loop", "/gone", "/closed", "/later", "/window", "/text", "/no"),
    *("/#%", "/?closed=Timeout", "/back", "/plain", "/" + "%" * 700, "/\u202e", '/"closed"'),
)
HOME = """<title>Home</title><form action="/plain"><input name="a"><textarea></textarea>
<select><option>One</option><option>Two</option></select><button>Go</button></form>
<a href="/file">File</a> <a href="javascript:window.close()">Close</a> <a href="#x">Here</a>"""
PAGES = {
    "/": HOME,
    "/plain": HOME,
    "/later": '<script>setTimeout(() => location = "/", 50)</script>',
    "/window": "<script>for (let i = 0; i < 9; i++) window.open('/'); window.close()</script>",
    "/back": "<script>history.back()</script>",
    "/text": "<body>" + "x" * 100_000,
}


class Site(http.server.BaseHTTPRequestHandler):
    """A site with a page of each troublesome kind."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/closed":
            self.connection.close()
        elif path == "/empty":
            self.answer(204, "")
        elif path == "/gone":
            self.answer(500, "")
        elif path == "/loop":
            self.answer(302, "", Location="/loop")
        elif path == "/file":
            self.answer(200, "x", **{"Content-Disposition": "attachment; filename=x.bin"})
        else:
            self.answer(200 if path in PAGES else 404, PAGES.get(path, "none"))

    def answer(self, status, text, **headers):
        self.send_response(status)
        body = text.encode()
        for name, value in {"Content-Type": "text/html", **headers}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *_):
        """Silent."""


@pytest.fixture
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def masking(world, actions, split=None):
    """The actions that masked an episode, with what was said."""
    found = []
    run = EpisodeRun(world, seed=0, split=split)
    for action in actions:
        if run.over:
            run = EpisodeRun(world, seed=0, split=split)
        try:
            run.advance(action)
        except Exception as error:  # noqa: BLE001  whatever it is, it masks
            found.append((action, f"{type(error).__name__}: {error}"))
            run = EpisodeRun(world, seed=0, split=split)
        if run.over and run.episode.outcome.masked:
            found.append((action, run.episode.outcome.evidence))
    if not run.over:
        run.advance("stop \ud800 \x00")
    assert not run.episode.outcome.masked, run.episode.outcome
    return found


@pytest.mark.parametrize("family", ["login-user", "click-link", "search-engine"])
def test_no_action_masks_an_episode_of_miniwob(family):
    pytest.importorskip("miniwob", reason="needs the extra: pip install 'terrella[web]'")
    world = MiniWob.Config(families=(family,), max_steps=40, browser=11).build()
    gotos = tuple(f"goto {address}" for address in ADDRESSES[:3])
    clicks = tuple(f"click {number}" for number in range(1, 9))
    assert masking(world, (*PRESSES, *ELEMENTS, *clicks, *gotos)) == []
    world.close()


def test_no_action_masks_an_episode_on_a_site(site, tmp_path):
    row = {
        "task_id": 1,
        "sites": ["shopping"],
        "intent": "Go home.",
        "start_url": "__SHOPPING__/",
        "intent_template_id": 1,
        "require_login": False,
        "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "x"}},
    }
    (tmp_path / "own.json").write_text(json.dumps([row]))
    world = WebArena.Config(
        tasks=str(tmp_path / "own.json"),
        addresses={"__SHOPPING__": site},
        max_steps=60,
        test_all=True,
        browser=11,
    ).build()
    home = f"goto {site}/"
    paths = [part for path in PATHS for part in (f"goto {site}{path}", "back")]
    gotos = [f"goto {address}" for address in ADDRESSES]
    clicks = [part for number in range(1, 9) for part in (home, f"click {number}")]
    actions = [*gotos, "back", *paths, home, *PRESSES, home, *ELEMENTS, *clicks]
    assert masking(world, actions, Split.TEST) == []
    world.close()


def test_what_is_carried_out_is_what_an_agent_can_say():
    said = [parse_action(action) for action in (*PRESSES, *ELEMENTS, "goto http://[3]")]
    assert None not in said


@pytest.mark.parametrize(
    ("said", "masks"),
    [
        ("Page.goto: Page crashed", True),
        ("Page.goto: Target page, context or browser has been closed", True),
        ("Connection closed while reading from the driver", True),
        ("Page.goto: net::ERR_CONNECTION_CLOSED at http://x/", False),
        ('Page.goto: Navigation to "http://x/closed" is interrupted by another navigation', False),
        ("Page.goto: Invalid url\nCall log:\n  - navigating to Page crashed closed", False),
    ],
)
def test_only_a_lost_page_raises_and_no_address_can_say_so(said, masks):
    async def failing():
        raise Error(said)

    if masks:
        with pytest.raises(Error):
            asyncio.run(_opened(failing()))
    else:
        assert not asyncio.run(_opened(failing()))
