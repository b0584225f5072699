"""The server under attack: honest clients are answered, and memory comes back.

A third of the slow clients sends heads without end, a third sends nothing, a third sends a body
drop by drop. Large bodies go to routes that read none, without a token, and with one.
"""

import asyncio
import contextlib
import json
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="needs the extra: pip install 'terrella[serve]'")
pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from tests.attack.campaign import LEVEL, ROOT, record, trials
from tests.support.served import TOKEN
from tests.support.slow_clients import exchange, head, post, read_reply, send_slowly

SLOW = trials(commit=150, nightly=1100)
LARGE = trials(commit=24, nightly=200)
HONEST = trials(commit=16, nightly=64)
SECONDS = trials(commit=6, nightly=30)
REST_SECONDS = trials(commit=15, nightly=60)
"""Longest time in which memory must be back."""
LIMITS = {"max_connections": trials(commit=128, nightly=1024)}
LONG = trials(commit=3000, nightly=8000)
"""Characters, and tokens, of a question that is served."""
BODY = b"x" * 3_900_000
PATIENCE = 30.0
"""Seconds after which an honest client counts as unanswered."""


@contextlib.contextmanager
def attacked_server(**limits):
    """A server in a process of its own; yields its port and its process."""
    command = [sys.executable, "-m", "tests.support.attacked_server", json.dumps(limits)]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield int(server.stdout.readline()), psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=60)[1]
    assert "Traceback" not in errors, errors[-2000:]


# --- honest clients -------------------------------------------------------------------------------


async def ask_honestly(number, port, until, latencies, failures):
    """Small questions one after another; every second client keeps its connection."""
    keeps = number % 2 == 0
    connection = None
    while time.perf_counter() < until:
        text = "PG_O"[number % 4] + f"_G\n___\n{'_' * (number % 3)}"
        question = {"questions": [{"observation": text, "action": "Up"}]}
        request = post("/predict", question) if number % 4 else head("GET", "/health")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE):
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", port)
                connection[1].write(request)
                status, _, _ = await read_reply(connection[0])
        except (OSError, IndexError, TimeoutError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
        latencies.append(time.perf_counter() - began)
        if status != 200:
            failures.append(status)
        if not keeps or status != 200:
            connection[1].transport.abort()
            connection = None
        await asyncio.sleep(0.01)


async def honest_clients(port, seconds):
    latencies, failures = [], []
    until = time.perf_counter() + seconds
    clients = [ask_honestly(n, port, until, latencies, failures) for n in range(HONEST)]
    await asyncio.gather(*clients)
    return latencies, failures


# --- attackers ------------------------------------------------------------------------------------


async def slow_clients(port, seconds):
    until = time.perf_counter() + seconds
    starts = (
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-Slow: 1\r\n"),
        (b"", b""),
        (head("POST", "/predict", length=3_900_000), b"{"),
    )
    clients = [
        send_slowly(port, *starts[n % 3][:1], until, rest=starts[n % 3][1]) for n in range(SLOW)
    ]
    return sum(await asyncio.gather(*clients))


def large_requests():
    """Requests of nearly four megabytes, by kind."""
    text = "P" * 3_900_000
    question = {"observation": text[:90_000], "action": "Up"}
    return [
        ("health", head("GET", "/health", token=None, length=len(BODY)) + BODY),
        ("no token", head("POST", "/predict", token=None, length=len(BODY)) + BODY),
        ("not JSON", head("POST", "/predict", length=len(BODY)) + BODY),
        ("long questions", post("/predict", {"questions": [question] * 40})),
        ("long chat", post("/v1/chat/completions", {"messages": [message(text[:90_000])] * 40})),
        (
            "many questions",
            post("/predict", {"questions": [question | {"observation": "P" * 9000}] * 250}),
        ),
    ]


def message(text):
    return {"role": "user", "content": text}


async def large_bodies(port, seconds):
    """Send them all at once, again and again; returns the statuses."""
    kinds, statuses = large_requests(), {}
    until = time.perf_counter() + seconds

    async def send(number):
        kind, request = kinds[number % len(kinds)]
        while time.perf_counter() < until:
            try:
                status = (await exchange(port, request, seconds=PATIENCE))[0]
            except (OSError, IndexError, TimeoutError, asyncio.IncompleteReadError):
                status = "hung up"
            statuses.setdefault(kind, {}).setdefault(str(status), 0)
            statuses[kind][str(status)] += 1
            await asyncio.sleep(0.2)

    await asyncio.gather(*(send(number) for number in range(LARGE)))
    return statuses


def long_requests(tokens=1000):
    questions = [
        {"observation": "P" * LONG, "action": "Up"},
        {"observation": "G" * LONG, "action": "Up"},
    ]
    chat = {"messages": [message("P" * LONG)], "max_tokens": tokens}
    return post("/predict", {"questions": questions}), post("/v1/chat/completions", chat)


async def leaving_clients(port, seconds):
    """Long questions and chats whose clients leave at once."""
    until = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < until:
        for request in long_requests():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                await writer.drain()
                await asyncio.sleep(0.1)
                writer.transport.abort()
                count += 1
    return count


# --- the attack -----------------------------------------------------------------------------------


async def watch_memory(process, peak):
    while True:
        peak[0] = max(peak[0], process.memory_info().rss)
        await asyncio.sleep(0.1)


async def use_every_part(port):
    """What is loaded once is loaded before memory is measured."""
    await honest_clients(port, SECONDS / 3)
    for request in long_requests(tokens=1):
        assert (await exchange(port, request, 120))[0] == 200
    for _, request in large_requests():
        with contextlib.suppress(OSError, IndexError, asyncio.IncompleteReadError):
            await exchange(port, request, 60)
    await asyncio.sleep(1.0)


async def attack(port, process):
    await use_every_part(port)
    before = process.memory_info().rss
    peak = [before]
    watcher = asyncio.create_task(watch_memory(process, peak))
    slow = asyncio.create_task(slow_clients(port, SECONDS + 2))
    await asyncio.sleep(2.0)  # all places are taken
    (latencies, failures), statuses, left = await asyncio.gather(
        honest_clients(port, SECONDS), large_bodies(port, SECONDS), leaving_clients(port, SECONDS)
    )
    dropped = await slow
    watcher.cancel()
    began = time.perf_counter()
    while (after := process.memory_info().rss) > 1.1 * before:
        if time.perf_counter() - began > REST_SECONDS:
            break
        await asyncio.sleep(0.5)
    seconds_back = time.perf_counter() - began
    health = await exchange(port, head("GET", "/health", token=None))
    ordered = sorted(latencies)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        "honest_requests": len(latencies),
        "honest_failures": failures,
        "latency_ms": {
            name: round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)])
            for name, share in shares.items()
        },
        "large_bodies": statuses,
        "slow_connections": dropped,
        "clients_that_left": left,
        "memory_mb": {
            "before": before >> 20,
            "peak": peak[0] >> 20,
            "after": after >> 20,
            "seconds_until_back": round(seconds_back, 1),
        },
        "healthy_after": health[0] == 200,
    }


def test_honest_clients_are_answered_and_memory_comes_back():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with attacked_server(**LIMITS) as (port, process):
        found = asyncio.run(attack(port, process))
    what = f"{SLOW} slow clients, {LARGE} large bodies at once, {HONEST} honest clients"
    record(
        "server", {"what": f"{what}, for {SECONDS} s", "level": LEVEL, "limits": LIMITS, **found}
    )
    assert found["honest_failures"] == [] and found["honest_requests"] >= HONEST
    assert found["healthy_after"]
    memory = found["memory_mb"]
    assert memory["after"] <= 1.1 * memory["before"], found
    refused = {"401", "413", "503", "400", "hung up"}
    assert all(set(statuses) <= refused for statuses in found["large_bodies"].values()), found


def test_every_route_needs_the_token_over_a_real_socket():
    """The sixty probes of tests/unit/serve/test_serve_app.py, as a client would send them."""
    from tests.unit.serve.test_serve_app import ROUTES

    async def probe(port):
        for method, path in ROUTES:
            for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1]):
                status, _, body = await exchange(port, head(method, path, token=token))
                assert status == 401 and b"Traceback" not in body, (method, path, token)

    with attacked_server() as (port, _):
        asyncio.run(probe(port))
