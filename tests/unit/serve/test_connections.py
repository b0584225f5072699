"""Connections over real sockets: deadlines, limits, and bodies that nobody reads."""

import asyncio
import contextlib
import json

import pytest

for module in ("starlette", "uvicorn", "websockets"):
    pytest.importorskip(module, reason="needs the extra: pip install 'terrella[serve]'")

from tests.support.served import TOKEN, lying_service, running
from tests.support.slow_clients import ended, exchange, head, post, read_reply

from terrella.serve.settings import ServeSettings

LARGE = 3_900_000


@contextlib.contextmanager
def serving(**limits):
    with running(lying_service(ServeSettings.Config(**limits))) as url:
        yield int(url.rsplit(":", 1)[1])


async def connect(port, data=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def start_of_reply(port, data):
    """Send a head with a body to come, which is not sent: the status and what is kept open."""
    reader, writer = await connect(port, data)
    async with asyncio.timeout(10):
        reply = await read_reply(reader)
    if not reply[1]:
        assert await ended(reader) == b""
    writer.transport.abort()
    return reply[:2]


@pytest.mark.parametrize("start", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nX: 1\r\n"])
def test_a_head_that_does_not_arrive_in_time_ends_its_connection(start):
    async def check(port):
        reader, writer = await connect(port, start)
        assert b"408" in await ended(reader)
        writer.close()

    with serving(head_seconds=0.3) as port:
        asyncio.run(check(port))


def test_a_connection_that_is_kept_has_a_deadline_for_its_next_head():
    async def check(port):
        reader, writer = await connect(port)
        for _ in range(3):
            await asyncio.sleep(0.2)
            writer.write(head("GET", "/health"))
            assert await read_reply(reader) == (200, True, b'{"status":"healthy"}')
        writer.write(b"GET /health HTT")
        assert b"408" in await ended(reader)

    with serving(head_seconds=0.5) as port:
        asyncio.run(check(port))


def test_requests_that_are_sent_ahead_are_answered_in_order():
    async def check(port):
        reader, writer = await connect(port, head("GET", "/health") * 3 + head("GET", "/state"))
        assert [(await read_reply(reader))[0] for _ in range(4)] == [200, 200, 200, 404]
        writer.close()

    with serving() as port:
        asyncio.run(check(port))


def test_a_head_without_end_is_refused():
    async def check(port):
        reader, writer = await connect(port, b"GET /health HTTP/1.1\r\n" + b"X: 1\r\n" * 1000)
        assert b"431" in await ended(reader)
        writer.close()

    with serving(max_head=4096) as port:
        asyncio.run(check(port))


def test_silent_connections_give_way_to_those_who_ask():
    async def check(port):
        silent = [await connect(port, b"GET / HTTP/1.1\r\nX: 1\r\n") for _ in range(50)]
        for _ in range(20):
            assert (await exchange(port, head("GET", "/health")))[0] == 200
        for _, writer in silent:
            writer.transport.abort()

    with serving(max_connections=20, head_seconds=60) as port:
        asyncio.run(check(port))


def test_when_all_connections_are_busy_the_next_is_refused():
    """Open WebSockets are busy until they are closed."""
    from websockets.asyncio.client import connect as open_socket

    async def check(port):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"ws://127.0.0.1:{port}/ws"
        options = {"additional_headers": headers, "proxy": None}
        async with open_socket(url, **options) as first, open_socket(url, **options):
            assert (await exchange(port, head("GET", "/health")))[0] == 503
            await first.close()
            await asyncio.sleep(0.1)
            assert (await exchange(port, head("GET", "/health")))[0] == 200

    with serving(max_connections=2) as port:
        asyncio.run(check(port))


@pytest.mark.parametrize(
    ("expected", "request_"),
    [
        (413, head("GET", "/health", token=None, length=LARGE)),
        (413, head("POST", "/health", token=None, length=LARGE)),
        (413, head("GET", "/metadata", length=LARGE)),
        (413, head("GET", "/health", lines=["Transfer-Encoding: chunked"])),
        (413, head("POST", "/nowhere", length=10)),
        (400, head("POST", "/predict", length=10**30)),
        (413, head("POST", "/predict", length=LARGE * 2)),
        (401, head("POST", "/predict", token="wrong", length=LARGE)),
        (401, head("POST", "/predict", token=None, lines=["Transfer-Encoding: chunked"])),
        (503, head("POST", "/predict", length=1_500_000) + b"x" * 1_100_000),
    ],
)
def test_a_body_that_will_not_be_used_is_refused_before_it_arrives(expected, request_):
    with serving(max_bodies=1_000_000) as port:
        assert asyncio.run(start_of_reply(port, request_)) == (expected, False)


def test_a_body_that_does_not_arrive_in_time_is_given_up():
    async def check(port):
        reader, writer = await connect(port, head("POST", "/predict", length=1000) + b"{")
        assert b"408" in await ended(reader)
        writer.close()

    with serving(body_seconds=0.3) as port:
        asyncio.run(check(port))


def test_bodies_are_counted_only_while_they_are_held():
    async def check(port):
        small = {"questions": [{"observation": "x", "action": "Up"}]}
        large = post("/predict", {"questions": [], "x": "x" * 150_000})
        for _ in range(5):
            assert (await exchange(port, large))[0] == 422
        _, writer = await connect(port, large[:-10])
        await asyncio.sleep(0.3)
        assert (await exchange(port, large))[0] == 503
        assert (await exchange(port, post("/predict", small)))[0] == 200
        writer.transport.abort()
        await asyncio.sleep(0.3)
        assert (await exchange(port, large))[0] == 422

    with serving(max_bodies=200_000) as port:
        asyncio.run(check(port))


def test_a_refusal_after_the_body_was_read_keeps_the_connection():
    async def check(port):
        reader, writer = await connect(port, post("/predict", b"{"))
        assert (await read_reply(reader))[:2] == (400, True)
        writer.write(post("/predict", {"questions": []}))
        status, _, body = await read_reply(reader)
        assert status == 422 and "error" in json.loads(body)
        writer.close()

    with serving() as port:
        asyncio.run(check(port))
