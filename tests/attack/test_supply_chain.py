"""Nothing is installed that was not chosen: pins, hashes, and a bare environment for foreign code.

Every week the pinned packages are looked up in a database of vulnerabilities, where it can be had.
"""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from campaign import LEVEL, ROOT, record

from terrella.core.errors import WorldError
from terrella.worlds.webarena import install as module
from terrella.worlds.webarena.arena import SITES
from terrella.worlds.webarena.install import REQUIREMENTS, bare_environment, install

LOCKS = sorted(REQUIREMENTS.glob("*.txt"))
CONSTRAINTS = [ROOT / "constraints.txt", ROOT / "constraints-verl.txt"]
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[.*\])?==(?P<version>[^\s;]+)", re.MULTILINE)
NOT_IN_CI = {"vllm": "its GPU build; CI has the CPU build of constraints-verl.txt"}
"""Dependencies without a pin, and why."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    return {normal(match["name"]): match["version"] for match in PIN.finditer(path.read_text())}


def declared():
    """Every dependency of pyproject.toml, with the extra that names it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return [
        (extra, normal(re.match(r"[A-Za-z0-9._-]+", line)[0]))
        for extra, lines in groups.items()
        for line in lines
    ]


def test_every_dependency_has_a_pinned_version():
    known = pins(CONSTRAINTS[0])
    missing = [f"{name} ({extra})" for extra, name in declared() if name not in known]
    assert missing == [f"{name} ({name})" for name in NOT_IN_CI]


def requirements(path):
    """The requirements of a lock, each with its continued lines."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "--"))]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_a_site_is_locked_by_hashes(path):
    assert requirements(path)
    for line in requirements(path):
        assert PIN.match(line) and re.search(r"--hash=sha256:[0-9a-f]{64}", line), line
    wanted = [line for line in path.with_suffix(".in").read_text().splitlines() if line]
    assert {normal(re.match(r"[\w.-]+", line)[0]) for line in wanted} <= pins(path).keys()


def test_a_lock_exists_for_each_site_and_names_no_host():
    assert {path.stem for path in LOCKS} == {"build", *(site.name for site in SITES)}
    for path in (*LOCKS, *CONSTRAINTS):
        assert "://" not in path.read_text(), path
    for path in LOCKS:
        assert path.read_text().splitlines()[1] == "--only-binary :all:"
        built = re.findall(r"--no-binary (\S+)", path.read_text())
        for name in ",".join(built).split(",") if built else ():
            assert name in pins(path), f"{name} is built from source, but not locked"


SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "TINKER_API_KEY", "SSH_AUTH_SOCK", "PYTHONPATH")


@pytest.fixture
def secrets(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "hf_secret_of_the_user")


def test_foreign_code_inherits_no_secret(secrets, tmp_path):
    environment = bare_environment(tmp_path / "home")
    assert environment.keys() <= {"PATH", "LANG", "LC_ALL", "TMPDIR", "HOME"}
    assert environment["HOME"] == str(tmp_path / "home")


def make_wheel(folder, body):
    """The smallest package that pip installs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "honest_package-1.0-py3-none-any.whl"
    info = "honest_package-1.0.dist-info"
    about = "Metadata-Version: 2.1\nName: honest-package\nVersion: 1.0\n"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("honest_package.py", body)
        wheel.writestr(f"{info}/METADATA", about)
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_a_package_whose_hash_differs_is_not_installed(secrets, tmp_path, monkeypatch):
    """pip itself, without an index: the hash of the lock decides, and pip sees no secret."""
    wheel = make_wheel(tmp_path / "wheels", "print('honest')")
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "build.txt").write_text("--only-binary :all:\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (locks / "shop.txt").write_text(f"honest-package==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(module, "REQUIREMENTS", locks)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    python = tmp_path / "shop/venv/bin/python"
    seen, told = [], []
    run = module._run

    def run_seen(command, site, environment, report):
        seen.append(environment)
        if "venv" not in command or not python.exists():  # one environment is enough here
            run(command, site, environment, report)

    monkeypatch.setattr(module, "_run", run_seen)

    def said():
        return subprocess.run([python, "-c", "import honest_package"], capture_output=True).stdout

    install("shop", tmp_path / "shop", told.append)
    assert said() == b"honest\n"
    assert any("package 1 of 1, honest_package" in line for line in told)
    assert not any("hf_secret_of_the_user" in value for env in seen for value in env.values())

    subprocess.run([python, "-m", "pip", "uninstall", "-qy", "honest-package"], check=True)
    make_wheel(tmp_path / "wheels", "print('something else')")
    (locks / "shop.txt").write_text((locks / "shop.txt").read_text() + "\n")
    with pytest.raises(WorldError, match=r"(?i)hash"):
        install("shop", tmp_path / "shop", told.append)
    assert said() == b""


@pytest.mark.skipif(LEVEL != "weekly", reason="looks up every package: .ci/attack weekly")
@pytest.mark.timeout(1800)
def test_no_pinned_package_has_a_known_vulnerability(tmp_path):
    audit = Path(sys.executable).with_name("pip-audit")
    if not audit.exists():
        record("supply_chain", {"audited": 0, "reason": "pip-audit is not installed"})
        pytest.skip("pip-audit is not installed: no package was audited")
    everything = {}
    for path in (*CONSTRAINTS, *LOCKS):
        everything |= pins(path)
    listed = tmp_path / "all.txt"
    listed.write_text("".join(f"{name}=={version}\n" for name, version in everything.items()))
    command = [str(audit), "--format", "json", "--no-deps", "--disable-pip", "-r", str(listed)]
    run = subprocess.run(command, capture_output=True, text=True)
    try:
        rows = json.loads(run.stdout)["dependencies"]
    except ValueError:
        rows = []
    audited = [row for row in rows if "skip_reason" not in row]
    known = {row["name"]: [one["id"] for one in row["vulns"]] for row in audited if row["vulns"]}
    findings = {"packages": len(everything), "audited": len(audited), "vulnerable": known}
    if not audited:
        reason = f"the database cannot be reached: {run.stderr.strip()[-200:]}"
        record("supply_chain", {**findings, "reason": reason})
        pytest.skip(f"no package was audited: {reason}")
    record("supply_chain", findings)
    assert not known
