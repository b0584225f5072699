"""Pages reach what the allow-list names and nothing else.

There is one hostile page for each way out, tried against loopback servers.
"""

import asyncio
import http.server
import threading
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.guard import GUARD_HEADER, Allow, NetworkGuard, RefusedError
from terrella.browser.host import BrowserHost, BrowserSettings
from terrella.browser.launch import find_chromium
from terrella.browser.tab import MAX_PAGES
from terrella.core.errors import MissingExtraError, MissingProgramError, WorldError

try:
    find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)


class RecordingHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.hits.append(self.path)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.secret_port}/stolen")
            self.end_headers()
            return
        self.send_response(200)
        if self.path == "/file.bin":
            self.send_header("Content-Disposition", "attachment; filename=file.bin")
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    do_POST = do_GET  # noqa: N815

    def log_message(self, *args):
        pass


def start_server(page=""):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler)
    server.hits = []
    server.page = page
    server.secret_port = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def secret():
    """A service on this machine that no page may reach."""
    server = start_server("the secret")
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def site(secret):
    server = start_server()
    server.secret_port = secret.server_address[1]
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def host(site):
    pinned = Allow(host="site.test", at=f"127.0.0.1:{site.server_address[1]}")
    started = BrowserHost(BrowserSettings(allow=(pinned, Allow(host="rebound.test"))))
    yield started
    started.close()


@pytest.fixture
def tab(host, secret):
    secret.hits.clear()
    opened = host.tab()
    yield opened
    host.run(opened.close(), 10)


def show(host, site, tab, page, seconds=0.4):
    """Serve a page, load it, and give its scripts time to run."""
    site.page = page
    host.run(tab.go("http://site.test/"), 20)
    host.run(asyncio.sleep(seconds), 20)


def test_allowed_sites_are_reached(host, site, tab, secret):
    show(host, site, tab, "<p>hello</p>")
    assert "hello" in host.run(tab.html(), 10) and not secret.hits


def test_a_page_of_the_guard_says_so_and_why(host, site, tab):
    assert GUARD_HEADER not in host.run(tab.go("http://site.test/"), 20).headers
    refused = host.run(tab.go("http://elsewhere.test/"), 20)
    assert refused.headers[GUARD_HEADER] == "elsewhere.test:80 is not on the allow-list"
    redirected = host.run(tab.go("http://site.test/redirect"), 20)
    assert redirected.headers[GUARD_HEADER].endswith("is not on the allow-list")


def test_what_playwright_disables_stays_disabled(host, tab):
    flags = Path(f"/proc/{host.pid}/cmdline").read_text().split("\0")
    name = "--disable-features="
    playwrights, ours = (set(f[len(name) :].split(",")) for f in flags if f.startswith(name))
    assert playwrights < ours  # Chromium reads the last one only


def test_a_redirect_does_not_lead_out(host, site, tab, secret):
    host.run(tab.visit("http://site.test/redirect"), 20)
    assert "/redirect" in site.hits and not secret.hits
    assert any("not on the allow-list" in line for line in host.guard.refused)


def test_scripts_images_and_forms_stay_inside(host, site, tab, secret):
    port = secret.server_address[1]
    out = f"http://127.0.0.1:{port}"
    page = (
        f"<img src='{out}/i'>"
        f"<script>fetch('{out}/f',{{mode:'no-cors'}}).catch(e=>0);"
        f"fetch('http://localhost:{port}/l',{{mode:'no-cors'}}).catch(e=>0);"
        f"navigator.sendBeacon('{out}/b','x')</script>"
        f"<form id=f method=post action='{out}/p'></form>"
        "<script>f.submit()</script>"
    )
    show(host, site, tab, page)
    assert not secret.hits


def test_a_web_socket_stays_inside(host, site, tab, secret):
    socket = f"ws://127.0.0.1:{secret.server_address[1]}/w"
    show(host, site, tab, f"<script>new WebSocket('{socket}')</script>")
    assert not secret.hits


def test_popups_stay_inside_and_a_click_opens_one_of_them(host, site, tab, secret):
    out = f"http://127.0.0.1:{secret.server_address[1]}/popup"
    script = f'for(let i=0;i<30;i++)window.open("{out}"+i)'
    show(host, site, tab, f"<button onclick='{script}'>open</button>")
    host.run(tab.click(host.run(tab.rows(), 10)[0].id), 20)
    wait_for_pages(host, tab, 2)
    host.run(asyncio.sleep(0.5), 10)
    assert not secret.hits and len(tab.pages) == 2


def test_the_number_of_windows_is_limited(host, site, tab):
    show(host, site, tab, "")
    opening = {"expression": "window.open('about:blank')", "userGesture": True}
    first_page = tab.session
    for _ in range(MAX_PAGES + 2):
        host.run(first_page.send("Runtime.evaluate", opening), 20)
    wait_for_pages(host, tab, MAX_PAGES)
    host.run(asyncio.sleep(0.5), 10)
    assert len(tab.pages) == MAX_PAGES
    assert len(tab.context.pages) == MAX_PAGES


def wait_for_pages(host, tab, number):
    """Wait until some windows are open; the test's own check says how many there are then."""
    for _ in range(100):
        if len(tab.pages) >= number:
            return
        host.run(asyncio.sleep(0.1), 10)


def test_a_name_that_is_rebound_to_this_machine_is_refused(host, site, tab, secret):
    host.guard.resolver = lambda name, port: ["127.0.0.1"]
    host.run(tab.visit("http://rebound.test:80/"), 20)
    assert not secret.hits
    assert any("rebound.test resolves to" in line for line in host.guard.refused)


def test_local_files_cannot_be_opened(host, site, tab):
    with pytest.raises(WorldError, match="refuses to open"):
        host.run(tab.go("file:///etc/passwd"), 10)
    assert host.run(tab.visit("file:///etc/passwd"), 10) is False
    page = (
        "<iframe src='file:///etc/passwd'></iframe>"
        "<script>location.href='file:///etc/passwd'</script>"
    )
    show(host, site, tab, page)
    assert tab.url.startswith("http://site.test") and "root:" not in host.run(tab.html(), 10)


def test_a_download_leaves_no_file(host, site, tab, tmp_path, monkeypatch):
    failures = []

    async def record(download):
        failures.append(await download.failure())

    show(host, site, tab, "<a href='/file.bin'>get</a>")
    tab.page.on("download", record)
    host.run(tab.click(host.run(tab.rows(), 10)[0].id), 20)
    for _ in range(30):
        host.run(asyncio.sleep(0.1), 10)
        if failures:
            break
    assert failures and failures[0]  # Chromium says why it was cancelled


FORGERY = (
    "<button>Delete all</button>"
    "<script>Object.defineProperty(HTMLElement.prototype,'innerText',{get(){return 'x'}});"
    "Element.prototype.getBoundingClientRect=()=>null;"
    "window.terrella={tree:()=>[]}</script>"
)


def test_a_page_cannot_forge_its_tree(host, site, tab):
    show(host, site, tab, FORGERY)
    rows = host.run(tab.rows(), 10)
    assert [(row.role, row.name) for row in rows] == [("button", "Delete all")]


def test_only_public_addresses_need_no_pin():
    guard = NetworkGuard(
        allow=(Allow(host="a.test"), Allow(host="b.test", at="10.0.0.1:8080")),
        resolver=lambda *_: ["8.8.8.8"],
    )
    assert guard.target("a.test", 80) == ("8.8.8.8", 80)
    assert guard.target("B.test.", 80) == ("10.0.0.1", 8080)
    for addresses in (["127.0.0.1"], ["8.8.8.8", "192.168.1.1"], ["169.254.169.254"], ["::1"], []):
        guard.resolver = lambda *_, resolved=addresses: resolved
        with pytest.raises(RefusedError):
            guard.target("a.test", 80)
    for host, port in (("c.test", 80), ("a.test", 22), ("127.0.0.1", 80), ("", 80)):
        with pytest.raises(RefusedError):
            guard.target(host, port)


def test_a_site_that_is_down_is_told_in_one_header_line():
    guard = NetworkGuard(allow=(Allow(host="a.test", at="127.0.0.1:1"),))

    async def head(target):
        port = await guard.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\n\r\n".encode("latin-1"))
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        writer.close()
        await guard.stop()
        return [line for line in text.split("\r\n") if line.startswith(GUARD_HEADER)]

    (down,) = asyncio.run(head("http://a.test/"))
    assert "ConnectionRefusedError" in down
    (hostile,) = asyncio.run(head("http://b.test\nx-evil:1/"))
    assert hostile.endswith("is not on the allow-list")


def test_a_served_folder_does_not_leak_its_neighbours(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    guard = NetworkGuard(folders={"pages.test": tmp_path / "in"})

    async def status_line(path):
        port = await guard.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET http://pages.test{path} HTTP/1.1\r\n\r\n".encode())
        line = await reader.readuntil(b"\r\n")
        writer.close()
        await guard.stop()
        return line

    assert b"404" in asyncio.run(status_line("/%2e%2e/secret.txt"))
    assert b"404" in asyncio.run(status_line("/../secret.txt"))
