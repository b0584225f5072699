"""Pages that load slowly or hold broken text are read; they do not end their episodes."""

import asyncio
import time

import pytest

from terrella.browser import tab as tabs
from terrella.browser.tab import Tab


class Page:
    """A page whose images never end."""

    url = "http://shop.test/"

    def __init__(self, error):
        self.error = error

    async def wait_for_load_state(self, state, timeout):
        raise self.error


def slow_tab(error="Page.wait_for_load_state: Timeout 1ms exceeded."):
    tab = Tab(None)
    page = Page(RuntimeError(error))
    tab.pages, tab._session_page = [page], page
    return tab


def test_a_page_that_does_not_load_in_time_is_read_as_it_is():
    asyncio.run(slow_tab().settle(0.1))
    with pytest.raises(RuntimeError, match="crashed"):
        asyncio.run(slow_tab("Page crashed").settle(0.1))


class Request:
    """One that never ends."""

    def __init__(self, resource_type):
        self.resource_type = resource_type


@pytest.mark.parametrize(
    ("kind", "opening", "least", "most"), [("document", 0.3, 0.3, 60), ("fetch", 60, 0.1, 30)]
)
def test_a_document_is_waited_for_longer_than_what_a_page_loads(
    monkeypatch, kind, opening, least, most
):
    monkeypatch.setattr(tabs, "OPENING_SECONDS", opening)
    tab = slow_tab()
    tab._on_request(Request(kind))
    began = time.monotonic()
    asyncio.run(tab.settle(0.1))
    assert least <= time.monotonic() - began < most


def test_halves_of_characters_are_replaced():
    """A script that cuts a text in the middle of an emoji leaves one."""
    tab = slow_tab()

    async def read(expression):
        return [[0, 1, "link", "caf\u00e9 \U0001f375 \ud83c", {"value": "\udf75!"}]]

    tab.evaluate_isolated = read
    (row,) = asyncio.run(tab.rows())
    assert row.name == "caf\u00e9 \U0001f375 \ufffd" and row.properties == {"value": "\ufffd!"}
    row.name.encode()
