"""Scripts for pages that stand for sites: mail, contacts, search results, a file tree, a calendar sheet.

SITES["email-inbox-delete"](page) -> "click 6"
"""

from __future__ import annotations

import re

from terrella.worlds.miniwob.script_tools import PageReader, Script

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
    """Log in, and send away the window that comes up on the way."""
    for node in page.of("button", "clickable", "link"):
        if node.name.lower() in ("no", "cancel", "close", "dismiss", "exit"):
            return page.click(node)
    fields = page.of("textbox")
    return page.fill(zip(fields, page.quoted, strict=False))


def search_result(page: PageReader) -> str:
    """Search, then click the n-th result, turning pages."""
    found = re.search(r"(\d+)(?:st|nd|rd|th)", page.task)
    field = page.of("textbox", "searchbox")[0]
    if found is None or field.get("value") != page.quoted[0]:
        return f"type {field.id} {page.quoted[0]}"
    results = [n for n in page.of("link", "clickable") if n.name and not re.fullmatch(r"[<>\d]+", n.name)]
    if not results:
        return page.click(page.named("Search", ("button",)))
    number, per_page = int(found.group(1)) - 1, 3
    pages = [n for n in page.of("link", "clickable") if re.fullmatch(r"\d+", n.name)]
    current = next((i for i, n in enumerate(pages) if "active" in n.get("class") or n.get("focused")), None)
    if number < per_page and current in (None, 0):
        return page.click(results[number])
    if current != number // per_page:
        return page.click(pages[number // per_page])
    return page.click(results[number % per_page])


def file_tree(page: PageReader) -> str:
    """Open folders one after the other until the wanted name is in sight."""
    wanted = page.quoted[0]
    for node in page.of("clickable", "listitem", "text", "treeitem"):
        if node.name == wanted and node.id:
            return page.click(node)
    closed = [
        n
        for n in page.of("clickable")
        if "expandable" in n.get("class").split("-")[0] or "expandable-hitarea" in n.get("class")
    ]
    if not closed:
        raise page.lost()
    return page.click(closed[0])


def choose_date(page: PageReader) -> str:
    """Open the calendar, turn to the month, click the day, submit."""
    month, day, year = map(int, re.findall(r"\d+", page.task)[:3])
    field = page.of("textbox")[0]
    if field.get("value") == f"{month:02d}/{day:02d}/{year}":
        return page.submit()
    title = next((n.name for n in page.nodes if any(m in n.name for m in MONTHS) and n.role != "button"), "")
    shown = next((i + 1 for i, name in enumerate(MONTHS) if name in title), 0)
    if not shown:
        return page.click(field)
    if shown != month:
        return page.click(page.named("Prev" if shown > month else "Next", ("link", "clickable", "button")))
    return page.click(page.named(str(day), ("link", "clickable", "cell", "gridcell")))


SITES: dict[str, Script] = {
    "login-user-popup": log_in_through_popup, "search-engine": search_result, "navigate-tree": file_tree,
    "choose-date": choose_date, "choose-date-easy": choose_date, "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
}  # fmt: skip
