"""Expert scripts for pages that imitate sites: logins, search results, a file tree, a calendar.

SITES["navigate-tree"](page)  # "click 6"
"""

from __future__ import annotations

import re

from terrella.verify.tree import Node
from terrella.worlds.miniwob.script_tools import PageReader, Script

RESULTS_PER_PAGE = 3
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def log_in_through_popup(page: PageReader) -> str:
    """Log in, and close the popup that appears on the way."""
    for node in page.of("button", "clickable", "link"):
        if node.name.lower() in ("no", "cancel", "close", "dismiss", "exit"):
            return page.click(node)
    fields = page.of("textbox")
    return page.fill(zip(fields, page.quoted, strict=False))


def search_result(page: PageReader) -> str:
    """Search, then click the n-th result, paging through the results."""
    ordinal = re.search(r"(\d+)(?:st|nd|rd|th)", page.task)
    field = page.of("textbox", "searchbox")[0]
    if ordinal is None or field.get("value") != page.quoted[0]:
        return f"type {field.id} {page.quoted[0]}"
    links = page.of("link", "clickable")
    results = [node for node in links if node.name and not re.fullmatch(r"[<>\d]+", node.name)]
    if not results:
        return page.click(page.named("Search", ("button",)))
    result_page, row = divmod(int(ordinal.group(1)) - 1, RESULTS_PER_PAGE)
    page_links = [node for node in links if re.fullmatch(r"\d+", node.name)]
    current = next((i for i, node in enumerate(page_links) if _is_current(node)), None)
    if result_page == current or (result_page == 0 and current is None):
        return page.click(results[row])
    return page.click(page_links[result_page])


def _is_current(node: Node) -> bool:
    return "active" in node.get("class") or bool(node.get("focused"))


def file_tree(page: PageReader) -> str:
    """Open folders one after the other until the wanted name is visible."""
    wanted = page.quoted[0]
    for node in page.of("clickable", "listitem", "text", "treeitem"):
        if node.name == wanted and node.id:
            return page.click(node)
    for node in page.of("clickable"):
        names = node.get("class")
        if "expandable" in names.split("-")[0] or "expandable-hitarea" in names:
            return page.click(node)
    raise page.unexpected()


def choose_date(page: PageReader) -> str:
    """Open the calendar, go to the month, click the day, submit."""
    month, day, year = map(int, re.findall(r"\d+", page.task)[:3])
    field = page.of("textbox")[0]
    if field.get("value") == f"{month:02d}/{day:02d}/{year}":
        return page.submit()
    shown = _shown_month(page)
    if not shown:
        return page.click(field)
    if shown != month:
        direction = "Prev" if shown > month else "Next"
        return page.click(page.named(direction, ("link", "clickable", "button")))
    return page.click(page.named(str(day), ("link", "clickable", "cell", "gridcell")))


def _shown_month(page: PageReader) -> int:
    """The number of the month that the calendar shows; 0 when it is closed."""
    for node in page.nodes:
        if node.role == "button":
            continue
        for number, name in enumerate(MONTHS, start=1):
            if name in node.name:
                return number
    return 0


SITES: dict[str, Script] = {
    "login-user-popup": log_in_through_popup,
    "search-engine": search_result,
    "navigate-tree": file_tree,
    "choose-date": choose_date,
    "choose-date-easy": choose_date,
    "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
}
