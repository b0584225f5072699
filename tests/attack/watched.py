"""Run commands of terrella under an audit hook, and write down what they did to the machine.

python -m tests.attack.watched PLAN REPORT

The plan is a JSON list of {"name", "words", "folder"}; each entry is one command line. All run in
this process, one after the other: what the first imports, the others have.
"""

import contextlib
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path

PROCESSES = (
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
)
SOCKETS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind")
CHANGES = (
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
)
FOREIGN = ("this", "antigravity", "turtledemo", "evilmod", "terrella.cli.__main__")
"""Modules that nothing but a hostile file asks for."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """What happened while it was on."""

    def __init__(self, inside, hub):
        self.inside = [os.path.realpath(folder) for folder in inside]
        self.hub = hub
        self.on = False
        self.seen = []
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if not self.on:
            return
        if event in PROCESSES:
            self.seen.append(["process", event, repr(arguments)[:200]])
        elif event in SOCKETS:
            address = arguments[1] if len(arguments) > 1 else ""
            if not isinstance(address, tuple) or list(address[:2]) != self.hub:
                self.seen.append(["socket", event, repr(address)[:200]])
        elif event == "socket.getaddrinfo" and arguments[0] not in (self.hub[0], None):
            self.seen.append(["socket", event, repr(arguments[:2])[:200]])
        elif event == "import":
            name = str(arguments[0])
            if name.split(".")[0] in FOREIGN or name in FOREIGN or name.endswith(".__main__"):
                self.seen.append(["module", event, name])
        elif (event == "open" and self.writes(arguments)) or event in CHANGES:
            self.check(arguments[0], event)

    @staticmethod
    def writes(arguments):
        _, mode, flags = arguments
        if isinstance(mode, str):
            return any(letter in mode for letter in "wax+")
        return bool((flags or 0) & WRITING)

    def check(self, path, event):
        if isinstance(path, int):
            return
        # A link is followed by opening it, and by nothing else.
        text = os.fsdecode(path)
        folder, name = os.path.split(text.rstrip("/"))
        real = os.path.realpath(text) if event == "open" else f"{os.path.realpath(folder)}/{name}"
        known = ("/dev/null", "/dev/tty", "/dev/shm", "/proc/self")
        if not real.startswith((*self.inside, *known)):
            self.seen.append(["file", event, real])


def run(words):
    """The command in this process; returns how it ended."""
    from terrella.cli import main

    sys.argv = ["terrella", *words]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main()
    except SystemExit as error:
        return f"exit {error.code}", output.getvalue()
    except BaseException as error:  # noqa: BLE001  a traceback is a finding, not the end
        traceback.print_exc(file=output)
        return f"raised {type(error).__name__}", output.getvalue()
    return "exit 0", output.getvalue()


def main(plan_file, report_file):
    plan = json.loads(Path(plan_file).read_text())
    watch = Watch(plan["inside"], plan["hub"])
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does, in a folder that a stranger filled
    warm_up()
    results = []
    for entry in plan["commands"]:
        watch.seen, before, began = [], set(sys.modules), time.monotonic()
        watch.on = True
        ended, said = run(entry["words"])
        watch.on = False
        for name in set(sys.modules) - before:
            file = getattr(sys.modules.get(name), "__file__", None) or ""
            if file and os.path.realpath(file).startswith(tuple(watch.inside)):
                watch.seen.append(["module", "imported", f"{name} from {file}"])
        results.append(
            {
                **entry,
                "ended": ended,
                "said": said[-2000:],
                "did": watch.seen,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    Path(report_file).write_text(json.dumps(results, indent=1))


def warm_up():
    """What honest commands import: libraries look for programs and devices while they load."""
    import matplotlib.pyplot
    import torch
    import transformers

    import terrella.cli
    import terrella.commands.view_videos
    import terrella.models.presets
    import terrella.pipelines.certify.pipeline

    assert matplotlib and torch and transformers and terrella


if __name__ == "__main__":
    main(*sys.argv[1:])
