"""Requests are recorded and forgotten, also where the browser cannot tell all of them."""

import asyncio

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")
from playwright.async_api import Error

from terrella.browser.events import MAX_CONTENT, record_request
from terrella.browser.tab import Tab


class Response:
    status = 201

    def __init__(self, body=b'{"a": 1}', gone=()):
        self.content, self.gone = body, gone

    async def all_headers(self):
        return self.answer(
            "headers", {"content-type": "application/json", "set-cookie": "id=7; Path=/"}
        )

    async def body(self):
        return self.answer("body", self.content)

    def answer(self, what, value):
        if what in self.gone:
            raise Error("No resource with given identifier found")
        return value


class Request:
    url, method, resource_type = "http://shop.test/cart", "POST", "fetch"
    headers = {"Referer": "http://shop.test/"}

    def __init__(self, response=None, post=b"item=3", broken=None):
        self.answer, self.post_data_buffer, self.broken = response, post, broken

    async def response(self):
        if self.broken is not None:
            raise self.broken
        return self.answer


def recorded(*request, **fields):
    return asyncio.run(record_request(Request(*request, **fields)))


def test_a_request_is_recorded_with_its_response():
    event = recorded(Response())
    assert (event.url, event.method, event.post_data) == (Request.url, "POST", "item=3")
    assert (event.status, event.content, event.cookies) == (201, '{"a": 1}', {"id": "7"})
    assert recorded(None).status == 0
    assert len(recorded(Response(b"x" * (MAX_CONTENT + 1))).content) == MAX_CONTENT


@pytest.mark.parametrize("gone", [("body",), ("headers",), ("headers", "body")])
def test_what_cannot_be_read_is_empty_and_the_rest_is_kept(gone):
    event = recorded(Response(gone=gone))
    assert (event.url, event.method, event.post_data) == (Request.url, "POST", "item=3")
    assert (event.status, event.content) == (201, "")


def test_a_response_that_is_gone_leaves_the_request():
    event = recorded(broken=Error("Target page, context or browser has been closed"))
    assert (event.method, event.post_data, event.status) == ("POST", "item=3", 0)


def test_bodies_need_not_be_text():
    event = recorded(Response(b"\xff"), post=b"\x89PNG")
    assert event.post_data == "\ufffdPNG" and event.content == "\ufffd"


@pytest.mark.parametrize("broken", [None, Error("closed"), ValueError("not Playwright's")])
def test_a_request_is_forgotten_whatever_happens(broken):
    tab, events = Tab(None), []
    tab.on_event = events.append
    request = Request(Response(gone=("body",)), broken=broken)
    tab._on_request(request)
    assert tab._loading == {request}
    try:
        asyncio.run(tab._on_finished(request))
    except ValueError:
        assert isinstance(broken, ValueError)  # other errors are not hidden
    assert not tab._loading
    assert len(events) == (0 if isinstance(broken, ValueError) else 1)
