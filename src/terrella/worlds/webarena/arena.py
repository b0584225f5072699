"""The mini-arena: real web applications from PyPI on loopback, with a reset in milliseconds.

It has a shop with its back office (django-oscar), a forum (django-spirit) and a tracker with a wiki
(trac). Each runs on SQLite in its own virtual environment and is filled by a script in `sites/`. A
reset copies the snapshot into the live database through SQLite's backup API, so that a running
server sees it; `checksum` proves it.
    arena = Arena()
    arena.up()
    arena.reset()
    arena.down()
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
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from terrella.browser.guard import Allow
from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, WorldError
from terrella.core.files import read_json
from terrella.worlds.webarena.databases import query_rows
from terrella.worlds.webarena.install import Report, bare_environment, install

SCRIPTS = Path(__file__).parent / "sites"
START_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class Site:
    """A web application: its database and its names in tasks; `install.py` has its packages."""

    name: str
    database: str
    """Path of the SQLite file, relative to the site's home."""
    host: str
    placeholders: Mapping[str, str]
    """Placeholder in the addresses of tasks -> path on the site."""
    ready: str = "/"
    """Path that is requested until it answers after a start."""


SITES = (
    Site(
        name="shop",
        database="site.sqlite",
        host="shop.test",
        placeholders={"__SHOPPING_ADMIN__": "/dashboard", "__SHOPPING__": ""},
        ready="/catalogue/",
    ),
    Site(
        name="forum",
        database="site.sqlite",
        host="forum.test",
        placeholders={"__REDDIT__": ""},
    ),
    Site(
        name="tracker",
        database="trac/db/trac.db",
        host="tracker.test",
        placeholders={"__GITLAB__": ""},
        ready="/wiki",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running site."""

    port: int
    pid: int
    cookies: dict[str, dict[str, str]]
    """Login (the site name in tasks) -> cookie name -> value."""


def sites_named(names: tuple[str, ...] = ()) -> list[Site]:
    """The sites of these names, all without one; an unknown name is refused."""
    known = [site.name for site in SITES]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(", ".join(unknown), "no such site", f"sites: {', '.join(known)}")
    return [site for site in SITES if not names or site.name in names]


def default_folder() -> Path:
    """The folder of the sites, below the cache folder."""
    return Path(os.environ.get("TERRELLA_CACHE", "~/.cache/terrella")).expanduser() / "sites"


class Arena:
    """The sites of one folder; `up` starts them."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def home(self, site: Site) -> Path:
        """The folder of a site's files."""
        return self.folder / site.name

    def live(self, site: Site) -> Path:
        """The database that the server uses."""
        return self.home(site) / "home" / site.database

    def snapshot(self, site: Site) -> Path:
        """The database as it was after the build."""
        return self.home(site) / "snapshot.sqlite"

    # --- start and stop ---------------------------------------------------------------------------

    def up(
        self, names: tuple[str, ...] = (), report: Report = lambda line: None
    ) -> dict[str, Running]:
        """Install, build and start sites that are not running; returns all running sites.

        `report` is told what is done.
        """
        for site in sites_named(names):
            if site.name not in self.running():
                self.home(site).mkdir(parents=True, exist_ok=True)
                install(site.name, self.home(site), report)
                report(f"{site.name}: filling its database")
                self._build(site)
                report(f"{site.name}: starting its server")
                self._start(site)
        return self.running()

    def _python(self, site: Site) -> Path:
        return self.home(site) / "venv" / "bin" / "python"

    def _build(self, site: Site) -> None:
        """Fill the database once; an interrupted build starts over."""
        if (self.home(site) / "cookies.json").exists():
            return
        home = self.home(site) / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        command = [str(self._python(site)), str(SCRIPTS / f"{site.name}_build.py")]
        output = _run(command, site, self._environment(site))
        cookies = json.loads(output.strip().splitlines()[-1])
        shutil.copy(self.live(site), self.snapshot(site))
        (self.home(site) / "cookies.json").write_text(json.dumps(cookies), "utf-8")

    def _environment(self, site: Site) -> dict[str, str]:
        return {
            **bare_environment(self.home(site) / "scratch"),
            "SITE_HOME": str(self.home(site) / "home"),
            "PYTHONPATH": str(SCRIPTS),
            "PYTHONWARNINGS": "ignore",
        }

    def _start(self, site: Site) -> None:
        port = _free_port()
        with (self.home(site) / "server.log").open("ab") as log:
            server = subprocess.Popen(
                [str(self._python(site)), str(SCRIPTS / "serve.py"), site.name, str(port)],
                env=self._environment(site),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for(f"http://127.0.0.1:{port}{site.ready}", site, server)
        cookies = read_json(self.home(site) / "cookies.json")
        state = Running(port=port, pid=server.pid, cookies=cookies)
        (self.home(site) / "running.json").write_text(json.dumps(asdict(state)), "utf-8")

    def running(self) -> dict[str, Running]:
        """The sites whose server is alive, by name."""
        alive = {}
        for site in SITES:
            file = self.home(site) / "running.json"
            if file.exists():
                state = record_from_json(Running, read_json(file))
                if _is_server(state.pid, site):
                    alive[site.name] = state
        return alive

    def down(self, names: tuple[str, ...] = ()) -> list[str]:
        """Stop servers; changes to their databases stay until the next reset."""
        stopped = []
        running = self.running()
        for site in sites_named(names):
            if site.name not in running:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(running[site.name].pid, signal.SIGTERM)
            (self.home(site) / "running.json").unlink()
            stopped.append(site.name)
        return stopped

    # --- reset ------------------------------------------------------------------------------------

    def reset(self, names: tuple[str, ...] = ()) -> None:
        """Restore sites to their state after the build."""
        for site in sites_named(names):
            if self.snapshot(site).exists():
                source = sqlite3.connect(self.snapshot(site))
                target = sqlite3.connect(self.live(site), timeout=10)
                with contextlib.closing(source), contextlib.closing(target):
                    # A copy of a snapshot needs no protection from a power cut.
                    target.execute("PRAGMA synchronous = OFF")
                    source.backup(target)

    def checksum(self, site: Site, *, snapshot: bool = False) -> str:
        """SHA-256 of the whole content of a database."""
        file = self.snapshot(site) if snapshot else self.live(site)
        digest = hashlib.sha256()
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as source:
            for line in source.iterdump():
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    def query_snapshot(
        self, site: str, query: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Rows of a site as it was built."""
        file = self.snapshot(next(known for known in SITES if known.name == site))
        return query_rows(file, query, values)

    # --- for a browser ----------------------------------------------------------------------------

    def require(self, needed: set[str]) -> dict[str, Running]:
        """Return the running sites; the error for a missing one says what to do."""
        up = self.running()
        missing = needed - up.keys()
        if missing:
            names = ", ".join(sorted(missing))
            raise WorldError("webarena", f"the sites {names} are not running", "terrella sites up")
        return up

    def allow(self) -> tuple[Allow, ...]:
        """The allow-list for a browser: each site by name, pinned to its loopback port."""
        up = self.running()
        return tuple(
            Allow(host=site.host, at=f"127.0.0.1:{up[site.name].port}")
            for site in SITES
            if site.name in up
        )

    def addresses(self) -> dict[str, str]:
        """Placeholder in tasks -> address."""
        addresses = {}
        for site in SITES:
            for placeholder, path in site.placeholders.items():
                addresses[placeholder] = f"http://{site.host}{path}"
        return addresses

    def cookies(self, logins: list[str]) -> list[dict[str, str]]:
        """Cookies that log a browser in, in Playwright's format."""
        cookies = []
        for site in SITES:
            state = self.running().get(site.name)
            if state is None:
                continue
            for login in logins:
                for name, value in state.cookies.get(login, {}).items():
                    cookies.append({"name": name, "value": value, "domain": site.host, "path": "/"})
        return cookies


def _run(command: list[str], site: Site, environment: dict[str, str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise WorldError(
            f"site {site.name}", f"{Path(command[1]).name} failed: {result.stderr.strip()[-600:]}"
        )
    return result.stdout


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
        f"site {site.name}",
        "its server did not start",
        f"see {site.name}/server.log in the sites folder",
    )


def _is_server(pid: int, site: Site) -> bool:
    """Whether the process is still this site's server, not another one that got its id."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    runs_server = any(argument.endswith(b"serve.py") for argument in arguments)
    return runs_server and site.name.encode() in arguments
