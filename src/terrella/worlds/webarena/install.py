"""Install a site's packages: exactly those that were locked, in an environment without secrets.

`sites/requirements/SITE.txt` names every package with its hashes. Wheels are used; the few packages
that have none are built with build tools that are locked as well, without downloading more.
Installing runs code of these packages, so pip inherits no variable but those that it needs.
    install(site, folder, report=print)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from terrella.core.errors import WorldError

REQUIREMENTS = Path(__file__).parent / "sites" / "requirements"
INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR")
NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"),
    *("PIP_CERT", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_CONFIG_FILE"),
)
"""What pip needs to reach an index."""
Report = Callable[[str], None]
_PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)", re.MULTILINE)
_SEEN = re.compile(r"^(?:Collecting|Processing) (?:\S*/)?(?P<name>[A-Za-z0-9._-]+)")


def bare_environment(home: Path, inherited: tuple[str, ...] = INHERITED) -> dict[str, str]:
    """The variables of a process that runs foreign code: no tokens, a home of its own."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: os.environ[name] for name in inherited if name in os.environ}
    return {**kept, "HOME": str(home)}


def locked_packages(site: str) -> str:
    """The requirements of a site, with hashes; its environment is new when they change."""
    return (REQUIREMENTS / f"{site}.txt").read_text("utf-8")


def install(site: str, folder: Path, report: Report) -> None:
    """Make `folder/venv` with the packages of a site, unless it has them already."""
    wanted = locked_packages("build") + locked_packages(site)
    marker = folder / "installed"
    if marker.exists() and marker.read_text("utf-8") == wanted:
        return
    marker.unlink(missing_ok=True)
    environment = bare_environment(folder / "scratch", INHERITED + NETWORK)
    user_config = Path("~/.config/pip/pip.conf").expanduser()
    if user_config.is_file():  # it may name the index, and pip would not find it in a bare home
        environment.setdefault("PIP_CONFIG_FILE", str(user_config))
    report(f"{site}: making its environment")
    python = folder / "venv" / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--clear", str(folder / "venv")], site, environment, report)
    for name in ("build", site):
        command = [str(python), "-I", "-m", "pip", "install", "--require-hashes", "--no-deps"]
        command += ["--no-build-isolation", "--use-pep517", "--disable-pip-version-check"]
        command += ["--no-input", "-r", str(REQUIREMENTS / f"{name}.txt")]
        _run(command, site, environment, _Counter(name, site, report))
    marker.write_text(wanted, "utf-8")


class _Counter:
    """Reports pip's lines as `shop: package 3 of 21, django`."""

    def __init__(self, requirements: str, site: str, report: Report) -> None:
        self.total = len(_PACKAGE.findall(locked_packages(requirements)))
        self.site = site
        self.report = report
        self.seen = 0

    def __call__(self, line: str) -> None:
        match = _SEEN.match(line)
        if match:
            self.seen += 1
            self.report(f"{self.site}: package {self.seen} of {self.total}, {match['name']}")
        elif line.startswith(("Building", "Installing")):
            self.report(f"{self.site}: {line[:80]}")


def _run(command: list[str], site: str, environment: dict[str, str], report: Report) -> None:
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.strip():
                report(line.strip())
    if process.returncode != 0:
        said = "".join(line for line in lines if not line.startswith("WARNING"))[-800:].strip()
        raise WorldError(
            f"site {site}",
            f"its packages were not installed: {said}",
            "if an index cannot be reached, set PIP_INDEX_URL; hashes that differ are never used",
        )
