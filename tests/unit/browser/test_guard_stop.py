"""A guard that stops with open connections logs no errors and leaves nothing running."""

import asyncio
import contextlib
import logging

import pytest

from terrella.browser.guard import Allow, NetworkGuard


async def silent_site(received):
    """A site that accepts requests and never answers."""

    async def hold(reader, writer):
        await reader.read(1)
        received.set()
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


REQUESTS = {
    "idle": b"",
    "half a request": b"GET http://site.test/ HT",
    "waiting for the site": b"GET http://site.test/ HTTP/1.1\r\n\r\n",
    "a tunnel": b"CONNECT site.test:80 HTTP/1.1\r\n\r\nhello",
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_stopping_with_an_open_connection_is_quiet(request_, caplog):
    errors = []

    async def stop_in_the_middle():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        received = asyncio.Event()
        site, port = await silent_site(received)
        guard = NetworkGuard(allow=(Allow(host="site.test", at=f"127.0.0.1:{port}"),))
        before = asyncio.all_tasks()
        reader, writer = await asyncio.open_connection("127.0.0.1", await guard.start())
        writer.write(request_)
        while not guard.serving:
            await asyncio.sleep(0.01)
        if b"\r\n\r\n" in request_:
            await asyncio.wait_for(received.wait(), 5)
        await guard.stop()
        assert not guard.serving
        started = map(repr, asyncio.all_tasks() - before)
        assert [task for task in started if "Guard" in task or "_pump" in task] == []
        with contextlib.suppress(ConnectionError):  # the browser's side is closed at once
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
        site.close()
        await asyncio.sleep(0.05)  # let the callbacks of the ended tasks run

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(stop_in_the_middle())
    assert errors == []
    assert [line for line in caplog.messages if "Using selector" not in line] == []


def test_a_connection_that_arrives_while_the_guard_stops_is_closed():
    async def race():
        guard = NetworkGuard()
        port = await guard.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await guard.stop()  # the guard may not have accepted the connection yet
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert not guard.serving

    asyncio.run(race())
