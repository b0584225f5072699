"""A program that becomes Chromium: without a network, and as a user without rights.

It runs by itself, before Chromium and in its place, so it imports nothing of terrella. It enters a
network namespace in which nothing exists but a loopback of its own, listens there, and hands the
listening socket to the guard. A socket stays in the namespace where it was made. So the guard,
outside, answers the browser, and the browser reaches the guard and nothing else: no flag has to be
believed. Then it takes the user's id and executes Chromium.
    TERRELLA_CONFINE='{"chromium": ...}' confine.sh --user-data-dir=... ...
    TERRELLA_CONFINE='{"chromium": ...}' confine.sh --probe   # prints what works here
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from typing import Any

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
SIOCSIFADDR = 0x8916
TUNSETIFF = 0x400454CA
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
IFF_TUN, IFF_NO_PI = 0x1, 0x1000
NO_ROUTE = "192.0.2.1"
"""An address of documentation: the device that has it leads nowhere."""
PROFILE = "--user-data-dir="


def unshare(flags: int) -> None:
    """Enter new namespaces; raises OSError where that is not allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def leave_network() -> None:
    """Enter a network namespace that has a loopback and no way out."""
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER)
    if user != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123  pathlib loads slowly
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.pack("16sH14x", b"lo", IFF_UP | IFF_LOOPBACK | IFF_RUNNING)
        fcntl.ioctl(control, SIOCSIFFLAGS, flags)


def add_dead_end() -> None:
    """Add a device without a route, so that pages see `navigator.onLine` as true.

    It lives as long as its file, which the browser inherits. Nobody reads what is sent to it.
    """
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"net0", IFF_TUN | IFF_NO_PI))
    os.set_inheritable(device, True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        address = socket.inet_aton(NO_ROUTE)
        request = struct.pack("16sH2x4s8x", b"net0", socket.AF_INET, address)
        fcntl.ioctl(control, SIOCSIFADDR, request)
        flags = struct.pack("16sH14x", b"net0", IFF_UP | IFF_RUNNING)
        fcntl.ioctl(control, SIOCSIFFLAGS, flags)


def hand_over(path: str, port: int) -> None:
    """Listen, and give the socket to the guard, which waits at `path`."""
    with (
        socket.create_server(("127.0.0.1", port), backlog=256) as listening,
        socket.socket(socket.AF_UNIX) as guard,
    ):
        guard.connect(path)
        socket.send_fds(guard, [b"listening"], [listening.fileno()])
        guard.recv(1)  # the guard accepts connections from now on


def become(user: int, group: int) -> None:
    """Take the user's id for good, without supplementary groups."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def has_sandbox() -> str:
    """Why Chromium's sandbox cannot work for this user; empty when it can."""
    pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"user namespaces: {os.strerror(number)}" if number else ""


def probe(spec: dict[str, Any]) -> dict[str, str]:
    """For each part, why it does not work here; empty when it does."""
    missing = {"network": "", "user": "", "sandbox": ""}
    try:
        leave_network()
    except OSError as error:
        missing["network"] = str(error)
    try:
        if spec["user"]:
            become(spec["user"], spec["group"])
        for path in (spec["chromium"], spec["temporary"]):
            if not os.access(path, os.X_OK):
                missing["user"] = f"user {spec['user']} has no access to {path}"
    except OSError as error:
        missing["user"] = f"cannot become user {spec['user']}: {error}"
    missing["sandbox"] = has_sandbox()
    return missing


def main(arguments: list[str]) -> None:
    """Confine this process and become Chromium."""
    spec = json.loads(os.environ.pop("TERRELLA_CONFINE"))
    if arguments == ["--probe"]:
        sys.stdout.write(json.dumps(probe(spec)))
        return
    if spec["guard"]:
        leave_network()
        with contextlib.suppress(OSError):  # containers often lack /dev/net/tun
            add_dead_end()
        hand_over(spec["guard"], spec["port"])
    if spec["user"]:
        profile = next(word for word in arguments if word.startswith(PROFILE))
        os.environ["HOME"] = profile.removeprefix(PROFILE)
        os.chown(os.environ["HOME"], spec["user"], spec["group"])
        become(spec["user"], spec["group"])
    os.execv(spec["chromium"], [spec["chromium"], *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
