"""Installs the built wheel into an empty environment: results/install.json and docs/install.md.

    python benchmarks/install.py sizes --uv uv                    # base and each extra; a minute
    python benchmarks/install.py quickstart --folder /tmp/first   # the README's next command, timed
    python benchmarks/install.py page                             # only the page, from the results
`quickstart` runs one command of the README a call, in an environment with [train,plots] that the
first call makes, so that it can be interrupted. `--torch` holds uv's options that find torch's CPU
build; PyTorch's index unless given.
"""

import argparse
import os
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import common

ALONE = ("plots", "serve", "hub", "web", "video", "ray", "docs")
WITH_TORCH = ("train",)
PAGE = common.ROOT / "docs/install.md"
MARKS = ("<!-- measured: written by `python benchmarks/install.py` -->", "<!-- /measured -->")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("sizes", "quickstart", "page"))
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "quickstart"))
    parser.add_argument("--torch", nargs="*", default=["--torch-backend", "cpu"])
    arguments = parser.parse_args()
    if arguments.what == "sizes":
        common.write_part("install", "sizes", sizes(arguments), command=common.command("sizes"))
    if arguments.what == "quickstart":
        quickstart(arguments)
    write_page()


def build_wheel(arguments, folder):
    """The wheel of this tree; the sdist is built on the way, as a release does."""
    command = [arguments.uv, "build", "--quiet", "--out-dir", folder, common.ROOT]
    subprocess.run(command, check=True)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def environment(arguments, folder, *wanted):
    """An empty virtual environment with these packages, the versions of CI; seconds and size."""
    subprocess.run([arguments.uv, "venv", "--quiet", folder], check=True)
    pinned = ["--constraint", common.ROOT / "constraints.txt"]
    install = [arguments.uv, "pip", "install", "--quiet", "--python", Path(folder, "bin/python")]
    began = time.perf_counter()
    subprocess.run([*install, *pinned, *arguments.torch, *map(str, wanted)], check=True)
    seconds = round(time.perf_counter() - began, 1)
    used = subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True)
    return {"seconds": seconds, "megabytes": int(used.stdout.split()[0])}


def sizes(arguments):
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(arguments, Path(folder, "dist"))
        rows["base"] = environment(arguments, Path(folder, "base"), wheel)
        for extra in (*ALONE, *WITH_TORCH):
            torch = ["torch==2.13.0"] if extra in WITH_TORCH else []
            place = Path(folder, extra)
            rows[extra] = environment(arguments, place, *torch, f"{wheel}[{extra}]")
            rows[extra]["added"] = rows[extra]["megabytes"] - rows["base"]["megabytes"]
            subprocess.run(["rm", "-r", place], check=True)
        files = {
            path.name: round(path.stat().st_size / 1e6, 2) for path in wheel.parent.glob("terr*")
        }
    return {"environments": rows, "files_megabytes": files}


def quickstart(arguments):
    """Run the next command of the README's quickstart; the exit code is kept, too."""
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    record = common.read_results("install").get("quickstart", {})
    done = record.get("commands", []) if (folder / "env").exists() else []
    if not done:
        wheel = build_wheel(arguments, folder / "dist")
        made = environment(arguments, folder / "env", "torch==2.13.0", f"{wheel}[train,plots]")
        done = [{"command": "install [train,plots]", "seconds": made["seconds"], "code": 0}]
    commands = readme_commands()
    if len(done) <= len(commands):
        done = [*done, timed(commands[len(done) - 1], folder)]
    metrics = {"commands": done, "load_average": os.getloadavg()}
    common.write_part("install", "quickstart", metrics, command=common.command("quickstart"))


def readme_commands():
    readme = (common.ROOT / "README.md").read_text("utf-8")
    block = re.search(r"## Quickstart.*?```bash\n(.*?)```", readme, re.S)[1]
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith("terrella ")]


def timed(command, folder):
    clean = {"PATH": f"{folder / 'env/bin'}:/usr/bin:/bin", "HOME": str(folder)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command.split(), cwd=folder, env={**clean, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.perf_counter() - began
    return {
        "command": command,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "code": done.returncode,
    }


def write_page():
    """Put the tables between the marks of the page."""
    record = common.read_results("install")
    lines = []
    if "sizes" in record:
        rows = record["sizes"]["environments"]
        lines += [
            "| extra | adds | in all |",
            "|---|---|---|",
            f"| none | | {size(rows['base'])} |",
        ]
        lines += [
            f"| `{extra}` | {row['added']} MB | {size(row)} |"
            for extra, row in rows.items()
            if extra != "base"
        ]
    if "quickstart" in record:
        lines += ["", "| command | seconds | CPU seconds | exit code |", "|---|---|---|---|"]
        lines += [
            f"| `{row['command']}` | {row['seconds']} | {row.get('cpu_seconds', '')} "
            f"| {row['code']} |"
            for row in record["quickstart"]["commands"]
        ]
    text = PAGE.read_text("utf-8")
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text("\n".join([before + MARKS[0], *lines, MARKS[1] + after]), "utf-8")


def size(row):
    return f"{row['megabytes']:,} MB"


if __name__ == "__main__":
    main()
