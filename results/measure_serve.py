"""Figures of the server and the viewer, each written to its own JSON with the command that made it.

    python results/measure_serve.py load FOLDER        64 clients for 60 s, beside the bare sampler   -> serve_load.json
    python results/measure_serve.py load8 FOLDER       the same with eight questions in each request  -> serve_load.json
    python results/measure_serve.py malformed FOLDER   10,000 requests that are wrong; closed doors   -> serve_load.json
    python results/measure_serve.py viewer             1,000 episodes in Chromium                     -> viewer.json
FOLDER is a world model with a certificate (`terrella train-world-model`, `terrella certify`). *Bare* is the same model,
asked for the same questions in the same batch size in a process of its own, without a server: `believe`, nothing else.
"""

import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
TOKEN = "measured-on-loopback-only"
CLIENTS, SECONDS, TURNS = 64, float(os.environ.get("SECONDS", "60")), 6
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERRELLA_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def save(name, part, found):
    path = ROOT / "results" / name
    record = json.loads(path.read_text()) if path.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    words = [Path(word).name if n else word for n, word in enumerate(sys.argv[1:])]
    about = {"command": f"python results/measure_serve.py {' '.join(words)}", "commit": commit,
             "machine": f"{os.cpu_count()} cores, shared; Python {platform.python_version()}"}  # fmt: skip
    record[part] = {**about, **found}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record[part], indent=1))


# --- questions ----------------------------------------------------------------------------------------------------


def questions(folder):
    """Different (observation, action) pairs of the model's own data, shuffled."""
    from terrella.data.store import EpisodeStore

    steps = EpisodeStore.open(folder / "data").transitions()
    pairs = sorted({(step.observation.kind.value, step.observation.text, step.action) for step in steps})
    random.Random(0).shuffle(pairs)
    return pairs


def bare(folder, batch, seconds):
    """Predictions per second of the model alone, and CPU seconds per thousand."""
    from terrella.core.types import Situation, State, Text
    from terrella.trust.beliefs import Question
    from terrella.use.world_models import load_world_model

    model = load_world_model(folder / "model")
    model.most_kept = 0
    records = {"text": Text, "state": State}
    asked = [
        Question(
            Situation(instruction="", observation=records[kind](text), actions=(), history=(), steps_left=1), action
        )
        for kind, text, action in questions(folder)
    ]
    model.believe(asked[:batch])
    for _ in sys.stdin:  # a line asks for one more turn
        done, began, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            at = done % (len(asked) - batch)
            model.believe(asked[at : at + batch])
            done += batch
        took = time.perf_counter() - began
        found = {"per_second": done / took, "cpu_ms_each": 1000 * (time.process_time() - cpu) / done}
        print(json.dumps(found), flush=True)


class Bare:
    """The bare model in a process of its own, which waits for its turns."""

    def __init__(self, folder, batch, seconds):
        command = [sys.executable, __file__, "bare", str(folder), str(batch), str(seconds)]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


# --- the server ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(folder, log, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "terrella.cli", "serve", str(folder), "--set", "limits.port=0", *words]
    with log.open("w") as errors:
        server = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        yield port, server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(600)


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def exchange(reader, writer, method, path, body, headers=()):
    """One request on a connection that stays open."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, await reader.readexactly(length)


async def client(number, port, bodies, until, times, failures):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    at = number
    while time.perf_counter() < until:
        began = time.perf_counter()
        status, reply = await exchange(
            reader, writer, "POST", "/predict", bodies[at % len(bodies)], [f"Authorization: Bearer {TOKEN}"]
        )
        if status != 200 or b'"risk"' not in reply or b'"safe_horizon"' not in reply:
            failures.append((status, reply[:200].decode(errors="replace")))
        times.append(time.perf_counter() - began)
        at += CLIENTS
    writer.close()


async def all_clients(port, bodies, seconds):
    times, failures = [], []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(n, port, bodies, until, times, failures) for n in range(CLIENTS)))
    return times, failures


def load(folder, each=1):
    """64 clients, closed loop, in turns with the bare model."""
    pairs = questions(folder)
    groups = [pairs[n : n + each] for n in range(0, len(pairs) - each, each)]
    bodies = [json.dumps({"questions": [{"observation": {"kind": kind, "text": text}, "action": action}
                                        for kind, text, action in group]}).encode() for group in groups]  # fmt: skip
    bare_model = Bare(folder, CLIENTS * each, SECONDS / TURNS / 2)
    alone, served_turns, times, failures = [bare_model.turn()], [], [], []
    with tempfile.TemporaryDirectory() as scratch, served(folder, Path(scratch, "log"), "keep=0") as (port, server):
        asyncio.run(all_clients(port, bodies, SECONDS / 12))  # warm
        for _ in range(TURNS):
            cpu, began = cpu_seconds(server.pid), time.perf_counter()
            more, failed = asyncio.run(all_clients(port, bodies, SECONDS / TURNS))
            took, cpu = time.perf_counter() - began, cpu_seconds(server.pid) - cpu
            count = len(more) * each
            served_turns.append({"per_second": count / took, "cpu_ms_each": 1000 * cpu / count})
            times, failures = times + more, failures + failed
            alone.append(bare_model.turn())
            print(served_turns[-1], alone[-1], file=sys.stderr, flush=True)
    bare_model.end()
    return figures(each, times, failures, served_turns, alone)


def figures(each, times, failures, served_turns, alone):
    from terrella.core.stats import mean_interval

    times = sorted(times)
    # each turn of the server beside the mean of the bare turns before and after it: the machine's mood drops out
    beside = [statistics.fmean(run["per_second"] for run in pair) for pair in itertools.pairwise(alone)]
    ratios = [turn["per_second"] / rate for turn, rate in zip(served_turns, beside, strict=True)]
    mean = lambda rows, key: round(statistics.fmean(row[key] for row in rows), 3)  # noqa: E731
    low, high = mean_interval(ratios)
    return {
        "what": f"{CLIENTS} clients for {SECONDS} s, {each} question(s) a request, nothing remembered; 8 samples each; "
                f"{TURNS} turns, the bare model between them",
        "clients": CLIENTS, "requests": len(times), "errors": len(failures), "first_errors": failures[:3],
        "served_per_second": mean(served_turns, "per_second"), "bare_per_second": mean(alone, "per_second"),
        "ratio": round(statistics.fmean(ratios), 3), "ratio_interval": [round(low, 3), round(high, 3)],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "server_cpu_ms_each": mean(served_turns, "cpu_ms_each"), "bare_cpu_ms_each": mean(alone, "cpu_ms_each"),
        "latency_ms": {name: round(1000 * times[min(int(share * len(times)), len(times) - 1)], 1) for name, share in
                       (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))},
        "load_average": os.getloadavg(),
    }  # fmt: skip


# --- wrong requests -----------------------------------------------------------------------------------------------


async def throw(port, count):
    """Wrong requests over real sockets; a connection that the server closed is opened again."""
    from tests.support.made_requests import malformed

    rng, statuses, leaks, unanswered = random.Random(1), {}, [], 0
    connection = None
    for number in range(count):
        method, path, headers, body = malformed(rng)
        lines = [f"Authorization: Bearer {TOKEN}", *(f"{k.decode()}: {v.decode('latin-1')}" for k, v in headers)]
        if number % 10 == 0:  # raw bytes that are no HTTP at all
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n")
            with contextlib.suppress(ConnectionError, TimeoutError):
                reply = await asyncio.wait_for(reader.read(4096), 2.0)
                leaks += [reply] if b"Traceback" in reply else []
            writer.close()
            continue
        if connection is None:
            connection = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        try:
            method = "GET" if method == "HEAD" else method
            status, reply = await asyncio.wait_for(exchange(*connection, method, path, body, lines), 30.0)
            statuses[status] = statuses.get(status, 0) + 1
            leaks += [reply[:300].decode(errors="replace")] if b"Traceback" in reply or b".py" in reply else []
        except (ConnectionError, IndexError, asyncio.IncompleteReadError, TimeoutError):
            unanswered += 1  # the parser refused it and hung up
            connection = None
    return statuses, leaks, unanswered


async def doors(port):
    """Every route without a token, and with a wrong one."""
    routes = [("GET", path) for path in ("/metadata", "/schema", "/state", "/metrics", "/v1/models", "/", "/nowhere")]
    routes += [("POST", path) for path in ("/predict", "/reset", "/step", "/v1/chat/completions")] + [("GET", "/ws")]
    found = {}
    for method, path in routes:
        for name, headers in (("none", []), ("wrong", ["Authorization: Bearer wrong"])):
            connection = await asyncio.open_connection("127.0.0.1", port)
            upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="] if path == "/ws" else []  # fmt: skip
            found[f"{method} {path}, {name}"] = (await exchange(*connection, method, path, b"", [*headers, *upgrade]))[
                0
            ]
            connection[1].close()
    connection = await asyncio.open_connection("127.0.0.1", port)
    health, _ = await exchange(*connection, "GET", "/health", b"")
    return found, health


def malformed_requests(folder, count=10_000):
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        with served(folder, log) as (port, server):
            closed, health = asyncio.run(doors(port))
            began = time.perf_counter()
            statuses, leaks, unanswered = asyncio.run(throw(port, count))
            took, alive = time.perf_counter() - began, server.poll() is None
            connection_ok = asyncio.run(doors(port))[1] == 200
        words = log.read_text()
    return {
        "what": f"{count} wrong requests (one in ten is no HTTP), then /health; every route without a token",
        "requests": count, "statuses": {str(k): v for k, v in sorted(statuses.items())}, "hung_up_on": unanswered,
        "server_errors": sum(v for k, v in statuses.items() if k >= 500 and k not in (501, 503)),
        "tracebacks_leaked": len(leaks), "tracebacks_in_the_log": words.count("Traceback"), "alive_after": alive,
        "healthy_after": connection_ok, "seconds": round(took, 1), "without_token": sorted(set(closed.values())),
        "doors": len(closed), "health_without_token": health,
    }  # fmt: skip


# --- the viewer ---------------------------------------------------------------------------------------------------


def viewer():
    """Ten openings of a page with 1,000 episodes, from `goto` to ready, in Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    from terrella.policies.basic import Random
    from terrella.show.progress import SilentProgress
    from terrella.stages.collect import Collect
    from terrella.stages.view import View
    from terrella.worlds.sokoban import Sokoban

    found = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        store = Path(folder, "store")
        config = Collect.Config(world=Sokoban.Config(), policy=Random.Config(), out=store, episodes=1000)
        Collect(config).run(SilentProgress())
        began = time.process_time()
        (page,) = View(View.Config(run=store, forked=1000)).write()
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        seconds = []
        for _ in range(10):
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]")
            seconds.append(time.perf_counter() - start)
            tab.close()
        browser.close()
        found = {
            "what": "sokoban, 1,000 episodes with all counterfactuals, ten openings in Chromium, from goto to ready",
            "episodes": 1000, "page_megabytes": round(page.stat().st_size / 1e6, 2),
            "seconds": {"median": round(statistics.median(seconds), 3), "worst": round(max(seconds), 3)},
            "writing_cpu_seconds": round(time.process_time() - began, 1), "load_average": os.getloadavg(),
        }  # fmt: skip
    return found


def main():
    part = sys.argv[1]
    if part == "bare":
        bare(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    elif part == "load":
        save("serve_load.json", "load", load(Path(sys.argv[2])))
    elif part == "load8":
        save("serve_load.json", "load_of_eight", load(Path(sys.argv[2]), each=8))
    elif part == "malformed":
        save("serve_load.json", "malformed", malformed_requests(Path(sys.argv[2])))
    elif part == "viewer":
        save("viewer.json", "open", viewer())


if __name__ == "__main__":
    main()
