"""Runs the leak page in real Chromium, in a network namespace where every packet is seen.

The namespace has a loopback, and a device `out0` as the way to everywhere else. Both are read
packet by packet: whatever is sent, to whomever, is counted, and nothing leaves this machine. It
prints what was tried, what the guard refused, and what got past it.
    unshare --net python -m tests.support.leaking confined|flags|old
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import http.server
import ipaddress
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from terrella.browser import host as hosts
from terrella.browser import launch
from terrella.browser.guard import Allow
from terrella.browser.tab import Tab

PUBLIC = "http://203.0.113.9"
NAMED = "http://leak.example.com"
PAGE = (Path(__file__).parent / "leak_page.html").read_text("utf-8")
QUIET_SECONDS = 3
"""The tries are over when the guard has refused nothing new for so long."""
MOST_SECONDS = 20
TCP, UDP = 6, 17
LEAVING_PAGES = ("/redirect-page", "/refresh", "/navigate")


class Site(http.server.BaseHTTPRequestHandler):
    """The site that the pages may reach."""

    def do_GET(self):
        path = urlsplit(self.path)
        headers = {"Content-Type": "text/html"}
        body, status = "", 200
        if path.path == "/":
            body = self.server.page
            headers["Set-Cookie"] = "login=secret"
            headers["Link"] = f"<{PUBLIC}/link-header>; rel=preload; as=script"
        elif path.path == "/redirect":
            status, headers["Location"] = 302, unquote(path.query)
        elif path.path == "/redirect-page":
            status, headers["Location"] = 307, f"{PUBLIC}/redirect-page"
        elif path.path == "/refresh":
            headers["Refresh"] = f"0;url={PUBLIC}/refresh-header"
        elif path.path == "/navigate":
            body = f"<script>location = '{PUBLIC}/navigate'</script>"
        elif path.path == "/csp":
            headers["Content-Security-Policy"] = (
                f"img-src 'none'; report-uri {PUBLIC}/csp-report; report-to out"
            )
            headers["Reporting-Endpoints"] = f'out="{PUBLIC}/report-to"'
            body = "<img src=/x>"
        elif path.path == "/worker.js":
            headers["Content-Type"] = "text/javascript"
            body = f"fetch({json.dumps(unquote(path.query))}, {{mode: 'no-cors'}})"
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/tried":
            self.server.tried = json.loads(body)
        self.do_GET()

    def log_message(self, *args):
        pass


# --- the namespace --------------------------------------------------------------------------------


def make_network():
    """Bring up loopback and a device that is the way to everywhere; return the device."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH14x", b"out0", 0x1 | 0x1000))
    for command in (
        "link set lo up",
        "link set out0 up",
        "addr add 10.77.0.1/24 dev out0",
        "route add default dev out0",
        "-6 addr add fd77::1/64 dev out0 nodad",
        "-6 route add default dev out0",
    ):
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    return device


def read_packet(packet):
    """(protocol, destination, source port, destination port), or None for other protocols."""
    if packet[0] >> 4 == 4:
        protocol, start = packet[9], 4 * (packet[0] & 15)
        target = ipaddress.ip_address(packet[16:20])
    else:
        protocol, start = packet[6], 40
        target = ipaddress.ip_address(packet[24:40])
    if protocol not in (TCP, UDP):
        return None
    source_port, target_port = struct.unpack("!HH", packet[start : start + 4])
    return protocol, str(target), source_port, target_port


class Capture:
    """Counts packets that are neither to nor from one of the expected TCP ports."""

    def __init__(self, device):
        self.expected = set()
        self.leaks = {TCP: [], UDP: []}
        self.device = device
        self.loopback = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self.loopback.bind(("lo", 0))
        threading.Thread(target=self.watch_device, daemon=True).start()
        threading.Thread(target=self.watch_loopback, daemon=True).start()

    def watch_device(self):
        while True:
            self.count(os.read(self.device, 65536))

    def watch_loopback(self):
        while True:
            packet, address = self.loopback.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING:
                self.count(packet)

    def count(self, packet):
        read = read_packet(packet)
        if read is None:
            return
        protocol, target, source_port, target_port = read
        if protocol == TCP and {source_port, target_port} & self.expected:
            return
        text = re.sub(rb"[^ -~]+", b" ", packet[28:]).decode()[-60:]
        self.leaks[protocol].append(f"{target} port {target_port}: {text}")


# --- the attack -----------------------------------------------------------------------------------


def set_mode(mode):
    """`confined` is what users get here; the others leave the network to the flags alone."""
    launch.UNWANTED_FLAGS = ()  # popups need no click, so that the guard sees them
    found = launch.confinement_of(launch.find_chromium())
    if mode == "confined":
        return found
    found = dataclasses.replace(found, network=False)
    hosts.confinement_of = lambda _: found
    if mode == "old":  # with the flag that Chromium ignores in silence, and without the self-test
        hosts.check_for_leaks = lambda _: asyncio.sleep(0)
        launch.FLAGS = tuple(
            f"--force-{flag[2:]}" if flag.startswith("--webrtc") else flag for flag in launch.FLAGS
        )
    return found


async def show_leak_page(host, site):
    """Show the page in a context without our restrictions: service workers, downloads."""
    tab = await Tab.open(await host.browser.new_context())
    with contextlib.suppress(host.playwright_module.Error):  # a page may leave before it has loaded
        await tab.page.goto("http://localhost/", wait_until="commit")
    for _ in range(MOST_SECONDS):
        await asyncio.sleep(1.0)
        if site.tried:
            break
    quiet, seen = 0, 0
    while quiet < QUIET_SECONDS:
        await asyncio.sleep(1.0)
        now = len(set(host.guard.refused))
        quiet, seen = (quiet + 1, seen) if now == seen else (0, now)
    await tab.close()


def attack(mode):
    capture = Capture(make_network())
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    secret = socket.create_server(("127.0.0.1", 0))  # a service that no page may reach
    loopback = f"http://127.0.0.1:{secret.getsockname()[1]}"
    site.page = PAGE.replace("PUBLIC", PUBLIC).replace("LOOPBACK", loopback).replace("NAMED", NAMED)
    site.tried = []
    capture.expected.add(site.server_address[1])
    confinement = set_mode(mode)
    pinned = Allow(host="localhost", at=f"127.0.0.1:{site.server_address[1]}")
    host = hosts.BrowserHost(hosts.BrowserSettings(allow=(pinned,)))
    expect_guard(capture)
    host.tab()
    host.run(show_leak_page(host, site), 90)
    for path in LEAVING_PAGES:
        host.run(host.tab().visit(f"http://localhost{path}"), 60)
    time.sleep(0.5)
    version, guard = host.browser.version, host.guard
    host.close()
    return {
        "chromium": version,
        "confinement": dataclasses.asdict(confinement),
        "refused": sorted({refused_try(line) for line in guard.refused}),
        "tried": site.tried,
        "tcp": sorted(set(capture.leaks[TCP])),
        "tcp_packets": len(capture.leaks[TCP]),
        "udp": sorted(set(capture.leaks[UDP])),
        "udp_packets": len(capture.leaks[UDP]),
    }


def expect_guard(capture):
    """Expect packets of the guard's port from its first one on."""
    start = hosts.NetworkGuard.start

    async def started(guard, *arguments):
        port = await start(guard, *arguments)
        capture.expected.add(port)
        return port

    hosts.NetworkGuard.start = started


def refused_try(line):
    """The try behind a line of the guard: the first part of its path, or the host it asked for."""
    target = line.split()[1].rstrip(":")
    return urlsplit(target).path.strip("/") or target


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attack(sys.argv[1])))
