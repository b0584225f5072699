"""Measures the server: results/serve_load.json.

    python benchmarks/serve.py load FOLDER        64 clients for 60 s, compared with the bare model
    python benchmarks/serve.py load8 FOLDER       the same with eight queries in each request
    python benchmarks/serve.py malformed FOLDER   10,000 wrong requests; routes without a token
FOLDER is a world model with a certificate (`terrella train-world-model`, `terrella certify`).
*Bare* is the same model in a process of its own, without a server: `predict` on the same queries
in the same batch size, and nothing else.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

TOKEN = "measured-on-loopback-only"
CLIENTS = 64
SECONDS = float(os.environ.get("SECONDS", "60"))
TURNS = 6
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TERRELLA_TOKEN": TOKEN,
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "200",
}


def write(part, metrics):
    arguments = [sys.argv[1], *(Path(argument).name for argument in sys.argv[2:])]
    command = common.command(*arguments)
    print(json.dumps(common.write_part("serve_load", part, metrics, command=command), indent=1))


# --- the bare model ------------------------------------------------------------------------------


def read_pairs(folder):
    """Distinct (kind, observation, action) of the model's own data, shuffled."""
    from terrella.data.store import EpisodeStore

    steps = EpisodeStore.open(folder / "data").transitions()
    pairs = sorted(
        {(step.observation.kind.value, step.observation.text, step.action) for step in steps}
    )
    random.Random(0).shuffle(pairs)
    return pairs


def make_queries(pairs):
    from terrella.core.predictive import Query
    from terrella.core.types import Situation, State, Text

    kinds = {"text": Text, "state": State}
    queries = []
    for kind, text, action in pairs:
        situation = Situation(
            instruction="", observation=kinds[kind](text), actions=(), history=(), steps_left=1
        )
        queries.append(Query(situation, action))
    return queries


def serve_bare(folder, batch, seconds):
    """Measure the model alone for some seconds whenever a line arrives on standard input."""
    from terrella.world_models.language import load_world_model

    model = load_world_model(folder / "model", cache_limit=0)
    queries = make_queries(read_pairs(folder))
    model.predict(queries[:batch])
    for _ in sys.stdin:
        done, timer = 0, common.Timer()
        while timer.seconds < seconds:
            start = done % (len(queries) - batch)
            model.predict(queries[start : start + batch])
            done += batch
        rates = {
            "per_second": done / timer.seconds,
            "cpu_ms_each": 1000 * timer.cpu_seconds / done,
        }
        print(json.dumps(rates), flush=True)


class BareModel:
    """The bare model in a process of its own, idle between its turns."""

    def __init__(self, folder, batch, seconds):
        command = [sys.executable, __file__, "bare", str(folder), str(batch), str(seconds)]
        self.process = subprocess.Popen(
            command,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=common.ROOT,
        )

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


# --- the server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def served(folder, log, *settings):
    """A running `terrella serve`: its port and its process."""
    arguments = common.settings("limits.port=0", *settings)
    with log.open("w") as errors:
        server = subprocess.Popen(
            common.terrella("serve", folder, *arguments),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=common.ROOT,
        )
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        yield port, server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(600)


async def exchange(reader, writer, method, path, body, headers=()):
    """One request on a connection that stays open."""
    head = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, await reader.readexactly(length)


async def run_client(number, port, bodies, until, latencies, failures):
    """One client: the next request as soon as the last one is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    index = number
    while time.perf_counter() < until:
        with common.Timer() as timer:
            status, reply = await exchange(
                reader,
                writer,
                "POST",
                "/predict",
                bodies[index % len(bodies)],
                [f"Authorization: Bearer {TOKEN}"],
            )
        if status != 200 or b'"risk"' not in reply or b'"safe_horizon"' not in reply:
            failures.append((status, reply[:200].decode(errors="replace")))
        latencies.append(timer.seconds)
        index += CLIENTS
    writer.close()


async def run_clients(port, bodies, seconds):
    latencies, failures = [], []
    until = time.perf_counter() + seconds
    await asyncio.gather(
        *(run_client(n, port, bodies, until, latencies, failures) for n in range(CLIENTS))
    )
    return latencies, failures


def request_bodies(pairs, each):
    """Bodies of /predict with `each` queries."""
    bodies = []
    for start in range(0, len(pairs) - each, each):
        queries = [
            {"observation": {"kind": kind, "text": text}, "action": action}
            for kind, text, action in pairs[start : start + each]
        ]
        bodies.append(json.dumps({"questions": queries}).encode())
    return bodies


def load(folder, each=1):
    """64 clients in a closed loop, in turns with the bare model."""
    bodies = request_bodies(read_pairs(folder), each)
    bare_model = BareModel(folder, CLIENTS * each, SECONDS / TURNS / 2)
    bare, served_turns, latencies, failures = [bare_model.measure()], [], [], []
    with (
        tempfile.TemporaryDirectory() as scratch,
        served(folder, Path(scratch, "log"), "keep=0") as (port, server),
    ):
        asyncio.run(run_clients(port, bodies, SECONDS / 12))  # warm up
        for _ in range(TURNS):
            cpu_before = common.cpu_seconds_of(server.pid)
            with common.Timer() as timer:
                more, failed = asyncio.run(run_clients(port, bodies, SECONDS / TURNS))
            cpu = common.cpu_seconds_of(server.pid) - cpu_before
            count = len(more) * each
            served_turns.append(
                {"per_second": count / timer.seconds, "cpu_ms_each": 1000 * cpu / count}
            )
            latencies += more
            failures += failed
            bare.append(bare_model.measure())
            print(served_turns[-1], bare[-1], file=sys.stderr, flush=True)
    bare_model.close()
    return {
        "what": f"{CLIENTS} clients for {SECONDS} s, {each} query(s) a request, nothing cached; "
        f"8 samples each; {TURNS} turns, the bare model between them",
        "clients": CLIENTS,
        "requests": len(latencies),
        "errors": len(failures),
        "first_errors": failures[:3],
        **compare_rates(served_turns, bare),
        "latency_ms": percentiles(latencies),
        "load_average": os.getloadavg(),
    }


def compare_rates(served_turns, bare):
    """Rates of both, and their ratio turn by turn.

    Each turn of the server is compared with the mean of the bare turns before and after it, so that
    other load on the machine cancels out.
    """
    ratios = []
    for turn, around in zip(served_turns, itertools.pairwise(bare), strict=True):
        bare_rate = statistics.fmean(run["per_second"] for run in around)
        ratios.append(turn["per_second"] / bare_rate)
    ratio = common.mean_row(ratios)
    return {
        "served_per_second": mean_of("per_second", served_turns),
        "bare_per_second": mean_of("per_second", bare),
        "ratio": round(ratio["mean"], 3),
        "ratio_interval": [round(ratio["low"], 3), round(ratio["high"], 3)],
        "ratios": [round(value, 3) for value in ratios],
        "server_cpu_ms_each": mean_of("cpu_ms_each", served_turns),
        "bare_cpu_ms_each": mean_of("cpu_ms_each", bare),
    }


def mean_of(name, rows):
    return round(statistics.fmean(row[name] for row in rows), 3)


def percentiles(latencies):
    ordered = sorted(latencies)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {
        name: round(1000 * ordered[min(int(share * len(ordered)), last)], 1)
        for name, share in shares.items()
    }


# --- wrong requests -------------------------------------------------------------------------------


async def send_malformed(port, count):
    """Wrong requests over real sockets; a connection that the server closed is opened again."""
    from tests.support.made_requests import malformed

    rng, statuses, leaks, unanswered = random.Random(1), {}, [], 0
    connection = None
    for number in range(count):
        method, path, headers, body = malformed(rng)
        if number % 10 == 0:
            leaks += await send_garbage(port, rng)
            continue
        if connection is None:
            connection = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        lines = [f"{name.decode()}: {value.decode('latin-1')}" for name, value in headers]
        try:
            method = "GET" if method == "HEAD" else method
            request = exchange(
                *connection, method, path, body, [f"Authorization: Bearer {TOKEN}", *lines]
            )
            status, reply = await asyncio.wait_for(request, 30.0)
        except (ConnectionError, IndexError, asyncio.IncompleteReadError, TimeoutError):
            unanswered += 1  # the parser refused it and hung up
            connection = None
            continue
        statuses[status] = statuses.get(status, 0) + 1
        if b"Traceback" in reply or b".py" in reply:
            leaks.append(reply[:300].decode(errors="replace"))
    return statuses, leaks, unanswered


async def send_garbage(port, rng):
    """Send bytes that are not HTTP; returns replies with a traceback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n")
    leaks = []
    with contextlib.suppress(ConnectionError, TimeoutError):
        reply = await asyncio.wait_for(reader.read(4096), 2.0)
        leaks = [reply] if b"Traceback" in reply else []
    writer.close()
    return leaks


GET_ROUTES = ("/metadata", "/schema", "/state", "/metrics", "/v1/models", "/", "/nowhere", "/ws")
POST_ROUTES = ("/predict", "/reset", "/step", "/v1/chat/completions")
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def try_without_token(port):
    """The status of every route without a token and with a wrong one, and that of /health."""
    routes = [("GET", path) for path in GET_ROUTES] + [("POST", path) for path in POST_ROUTES]
    statuses = {}
    for method, path in routes:
        upgrade = UPGRADE if path == "/ws" else ()
        for name, headers in (("none", ()), ("wrong", ("Authorization: Bearer wrong",))):
            connection = await asyncio.open_connection("127.0.0.1", port)
            status, _ = await exchange(*connection, method, path, b"", [*headers, *upgrade])
            statuses[f"{method} {path}, {name}"] = status
            connection[1].close()
    connection = await asyncio.open_connection("127.0.0.1", port)
    health, _ = await exchange(*connection, "GET", "/health", b"")
    return statuses, health


def malformed_requests(folder, count=10_000):
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        with served(folder, log) as (port, server):
            refused, health = asyncio.run(try_without_token(port))
            with common.Timer() as timer:
                statuses, leaks, unanswered = asyncio.run(send_malformed(port, count))
            alive = server.poll() is None
            healthy = asyncio.run(try_without_token(port))[1] == 200
        log_text = log.read_text()
    return {
        "what": f"{count} wrong requests (one in ten is not HTTP), then /health; every route "
        "without a token",
        "requests": count,
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "hung_up_on": unanswered,
        "server_errors": sum(
            number
            for status, number in statuses.items()
            if status >= 500 and status not in (501, 503)
        ),
        "tracebacks_leaked": len(leaks),
        "tracebacks_in_the_log": log_text.count("Traceback"),
        "alive_after": alive,
        "healthy_after": healthy,
        "seconds": round(timer.seconds, 1),
        "without_token": sorted(set(refused.values())),
        "doors": len(refused),
        "health_without_token": health,
    }


def main():
    part, folder = sys.argv[1], Path(sys.argv[2])
    if part == "bare":
        serve_bare(folder, batch=int(sys.argv[3]), seconds=float(sys.argv[4]))
    elif part == "load":
        write("load", load(folder))
    elif part == "load8":
        write("load_of_eight", load(folder, each=8))
    elif part == "malformed":
        write("malformed", malformed_requests(folder))


if __name__ == "__main__":
    main()
