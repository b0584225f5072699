"""The mini-arena: real web applications from PyPI on SQLite, on loopback, with a reset that takes milliseconds.

A shop with its back office (django-oscar), a forum (django-spirit) and a tracker with a wiki (trac), each in a virtual
environment of its own and filled by a script in `sites/`. A reset copies the snapshot into the live database through
SQLite's own backup, so that a running server sees it; `checksum` proves it.
    arena = Arena(); arena.up(); arena.reset(); arena.down()
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import URLError

from terrella.browser.guard import Allow
from terrella.core.config import record_from_json
from terrella.core.errors import MissingExtraError, WorldError

SCRIPTS = Path(__file__).parent / "sites"
START_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class Site:
    """One application: its packages, its database, and what tasks call it."""

    name: str
    packages: tuple[str, ...]
    database: str
    """Path of the SQLite file below the site's home."""
    host: str
    placeholders: Mapping[str, str]
    """Placeholder in a task's addresses -> path on the site."""
    ready: str = "/"


SITES = (
    Site(
        name="shop", packages=("django-oscar==4.2.1", "django-tables2", "whoosh", "waitress"), database="site.sqlite",
        host="shop.test", placeholders={"__SHOPPING_ADMIN__": "/dashboard", "__SHOPPING__": ""}, ready="/catalogue/",
    ),
    Site(
        name="forum", packages=("django-spirit==0.14.3", "setuptools<81", "waitress"), database="site.sqlite",
        host="forum.test", placeholders={"__REDDIT__": ""},
    ),
    Site(
        name="tracker", packages=("trac==1.6", "jinja2", "setuptools<81", "waitress"), database="trac/db/trac.db",
        host="tracker.test", placeholders={"__GITLAB__": ""}, ready="/wiki",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Running:
    """A site that is up."""

    port: int
    pid: int
    cookies: dict[str, dict[str, str]]
    """Login (as a task's site is called) -> cookie name -> value."""


def default_folder() -> Path:
    """Where the sites live: below the cache folder."""
    return Path(os.environ.get("TERRELLA_CACHE", "~/.cache/terrella")).expanduser() / "sites"


class Arena:
    """The sites of one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """Nothing is started."""
        self.folder = folder or default_folder()

    def home(self, site: Site) -> Path:
        """Where a site keeps its files."""
        return self.folder / site.name

    def live(self, site: Site) -> Path:
        """The database that the server uses."""
        return self.home(site) / "home" / site.database

    def snapshot(self, site: Site) -> Path:
        """The database as it was built."""
        return self.home(site) / "snapshot.sqlite"

    # --- up and down ------------------------------------------------------------------------------------------------

    def up(self, names: tuple[str, ...] = ()) -> dict[str, Running]:
        """Install, build and start what is not there yet; returns what is up."""
        for site in SITES:
            if (not names or site.name in names) and site.name not in self.running():
                self._install(site)
                self._build(site)
                self._start(site)
        return self.running()

    def _python(self, site: Site) -> Path:
        return self.home(site) / "venv" / "bin" / "python"

    def _install(self, site: Site) -> None:
        done = self.home(site) / "installed"
        if done.exists() and done.read_text("utf-8") == "\n".join(site.packages):
            return
        self.home(site).mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(self.home(site) / "venv")], site)
        _run([str(self._python(site)), "-m", "pip", "install", "--quiet", *site.packages], site)
        done.write_text("\n".join(site.packages), "utf-8")

    def _build(self, site: Site) -> None:
        """Fill the database once; a build that was cut off is begun again."""
        if (self.home(site) / "cookies.json").exists():
            return
        home = self.home(site) / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        told = _run([str(self._python(site)), str(SCRIPTS / f"{site.name}_build.py")], site, self._environment(site))
        cookies = json.loads(told.strip().splitlines()[-1])
        shutil.copy(self.live(site), self.snapshot(site))
        (self.home(site) / "cookies.json").write_text(json.dumps(cookies), "utf-8")

    def _environment(self, site: Site) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
        return {
            **kept,
            "SITE_HOME": str(self.home(site) / "home"),
            "PYTHONPATH": str(SCRIPTS),
            "PYTHONWARNINGS": "ignore",
        }

    def _start(self, site: Site) -> None:
        port = _free_port()
        with (self.home(site) / "server.log").open("ab") as log:
            server = subprocess.Popen(
                [str(self._python(site)), str(SCRIPTS / "serve.py"), site.name, str(port)], env=self._environment(site),
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        _wait_for(f"http://127.0.0.1:{port}{site.ready}", site, server)
        cookies = json.loads((self.home(site) / "cookies.json").read_text("utf-8"))
        state = Running(port=port, pid=server.pid, cookies=cookies)
        (self.home(site) / "running.json").write_text(json.dumps(asdict(state)), "utf-8")

    def running(self) -> dict[str, Running]:
        """Sites whose server is alive, by name."""
        found = {}
        for site in SITES:
            file = self.home(site) / "running.json"
            if file.exists():
                state = record_from_json(Running, json.loads(file.read_text("utf-8")))
                if _is_ours(state.pid, site):
                    found[site.name] = state
        return found

    def down(self) -> list[str]:
        """Stop all servers; what they had changed stays until the next reset."""
        stopped = []
        for name, state in self.running().items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGTERM)
            (self.folder / name / "running.json").unlink()
            stopped.append(name)
        return stopped

    # --- reset ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Every running site as it was built."""
        for site in SITES:
            if self.snapshot(site).exists():
                source, target = sqlite3.connect(self.snapshot(site)), sqlite3.connect(self.live(site), timeout=10)
                with contextlib.closing(source), contextlib.closing(target):
                    target.execute("PRAGMA synchronous = OFF")  # a snapshot needs no protection from a power cut
                    source.backup(target)

    def checksum(self, site: Site, *, snapshot: bool = False) -> str:
        """SHA-256 of everything in a database."""
        file = self.snapshot(site) if snapshot else self.live(site)
        digest = hashlib.sha256()
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as source:
            for line in source.iterdump():
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    # --- for a browser ----------------------------------------------------------------------------------------------

    def require(self, needed: set[str]) -> dict[str, Running]:
        """The running sites; says what to do when one is missing."""
        up = self.running()
        missing = needed - up.keys()
        if missing:
            raise MissingExtraError("web", f"the sites {', '.join(sorted(missing))} (then: terrella sites up)")
        return up

    def allow(self) -> tuple[Allow, ...]:
        """What a browser may reach: each site under its name, pinned to its loopback port."""
        up = self.running()
        return tuple(Allow(host=s.host, at=f"127.0.0.1:{up[s.name].port}") for s in SITES if s.name in up)

    def addresses(self) -> dict[str, str]:
        """Placeholder -> address, as tasks use them."""
        return {key: f"http://{s.host}{path}" for s in SITES for key, path in s.placeholders.items()}

    def cookies(self, logins: list[str]) -> list[dict[str, str]]:
        """Cookies that log a browser in, in Playwright's form."""
        found = []
        for site in SITES:
            state = self.running().get(site.name)
            for login in logins if state else ():
                for name, value in (state.cookies.get(login, {}) if state else {}).items():
                    found.append({"name": name, "value": value, "domain": site.host, "path": "/"})
        return found


def _run(command: list[str], site: Site, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise WorldError(f"site {site.name}", f"{Path(command[1]).name} failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, site: Site, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    server.kill()
    raise WorldError(
        f"site {site.name}", "its server did not come up", f"see {site.name}/server.log in the sites folder"
    )


def _is_ours(pid: int, site: Site) -> bool:
    """Whether the process is (still) this site's server, not another one that got its number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return site.name.encode() in words and any(word.endswith(b"serve.py") for word in words)
