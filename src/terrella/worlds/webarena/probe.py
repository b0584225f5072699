"""The page that a task's checks use: in the agent's context, but not the agent's page.

probe = Probe(host, sibling_tab, seconds=60.0); probe.open(url); probe.read("document.title")
"""

from __future__ import annotations

from terrella.browser.host import BrowserHost
from terrella.browser.tab import Tab
from terrella.core.errors import WorldError


class Probe:
    """The page that checks use: in the agent's context, but not the agent's page."""

    def __init__(self, host: BrowserHost, tab: Tab, seconds: float) -> None:
        self.host = host
        self.tab = tab
        self.seconds = seconds

    def open(self, url: str) -> None:
        """Load an address and wait until the page has settled."""
        self.host.run(self._open(url), self.seconds)

    async def _open(self, url: str) -> None:
        await self.tab.go(url)
        await self.tab.settle()

    def read(self, expression: str) -> str:
        """The value of an expression as text; empty when it finds nothing.

        It is evaluated out of reach of the page's own scripts.
        """
        try:
            value = self.host.run(self.tab.evaluate_isolated(expression), self.seconds)
        except WorldError:  # the locator found nothing on this page, which is a valid result
            return ""
        return "" if value is None else str(value)

    def content(self) -> str:
        """The whole document as HTML."""
        return self.host.run(self.tab.html(), self.seconds)
