"""What an agent can do to a page, as short texts by element id; and what there is to do on a given page.

    click 7 | type 7 some text | select 7 An option | scroll down | scroll 7 up | press Enter | back | goto URL | stop 4
`parse_action` reads any of them, `candidates` lists those that make sense on a page: what a small policy points at.
    parse_action("type 7 kai") -> Action("type", 7, "kai"); candidates(nodes, texts=("kai",)) -> ("click 3", ...)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.browser.tab import KEYS, Tab
from terrella.verify.tree import Node

SCROLL_PIXELS = 240
LONGEST = 2000
_FORMS = re.compile(
    r"(?P<verb>click|type|select) (?P<id>\d{1,9})(?: (?P<text>.*))?|scroll (?:(?P<scrolled>\d{1,9}) )?(?P<way>up|down)"
    r"|press (?P<key>\S{1,40})|goto (?P<url>\S{1,1500})|(?P<bare>back)\s*|stop(?: (?P<answer>.*))?",
    re.DOTALL,
)
TEXT_FIELDS = ("textbox", "searchbox", "spinbutton")
LISTS = ("combobox", "listbox")
STATIC = (
    "task", "text", "heading", "cell", "gridcell", "row", "list", "listitem", "table", "form", "main", "navigation",
    "option", "banner", "contentinfo", "region", "group", "article", "columnheader", "rowheader", "dialog", "alert",
    "tabpanel", "slider", "separator", "menu", "menubar", "tablist", "tree", "grid", "log", "progressbar", "term",
    "definition", "figure", "search", "complementary", "toolbar", "radiogroup", "caption", *TEXT_FIELDS, *LISTS,
)  # fmt: skip
"""Roles that a click does nothing to, as a rule."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    verb: str
    id: int = 0
    text: str = ""


def parse_action(text: str) -> Action | None:
    """The action, or None for what is none."""
    found = _FORMS.fullmatch(text.lstrip().rstrip("\r\n")) if len(text) <= LONGEST else None
    if found is None:
        return None
    if found["verb"]:
        words = found["text"]
        is_whole = not (words or "").strip() if found["verb"] == "click" else words is not None
        return (
            Action(found["verb"], int(found["id"]), words if words and found["verb"] != "click" else "")
            if is_whole
            else None
        )
    if found["way"]:
        return Action("scroll", int(found["scrolled"] or 0), found["way"])
    for verb, group in (("press", "key"), ("goto", "url"), ("back", "bare")):
        if found[group]:
            return Action(verb, 0, found[group] if group != "bare" else "")
    return Action("stop", 0, found["answer"] or "")


async def carry_out(tab: Tab, action: Action) -> bool:
    """Do it to the page; False when it could not be done. `goto` and `stop` are the world's to decide."""
    if action.verb == "click":
        return await tab.click(action.id)
    if action.verb == "type":
        return await tab.type(action.id, action.text)
    if action.verb == "select":
        return await tab.select(action.id, action.text)
    if action.verb == "scroll":
        return await tab.scroll(SCROLL_PIXELS if action.text == "down" else -SCROLL_PIXELS, action.id)
    if action.verb == "press":
        return await tab.press(action.text)
    return await tab.back() if action.verb == "back" else False


def candidates(nodes: Sequence[Node], texts: Sequence[str] = (), *, keys: Sequence[str] = ()) -> tuple[str, ...]:
    """What makes sense on this page: a click on each control, each text in each field, each option, keys, stop."""
    found: list[str] = []
    choosing = 0  # the list whose options follow
    for node in nodes:
        if node.role in LISTS:
            choosing = node.id
        if node.role == "option" and choosing:
            found.append(f"select {choosing} {node.name}")
        elif node.role in TEXT_FIELDS or (node.role in LISTS and "value" not in dict(node.properties)):
            found += [f"type {node.id} {text}" for text in texts]
            found.append(f"click {node.id}")
        elif node.id and node.role not in STATIC:
            found.append(f"click {node.id}")
    found += [f"press {key}" for key in keys if key in KEYS]
    return tuple(dict.fromkeys([*found, "scroll down", "scroll up", "stop"]))


def quoted_texts(task: str) -> tuple[str, ...]:
    """What a task puts in quotes, then its other words that could be typed: numbers, names, dates."""
    quoted = re.findall(r'"([^"]+)"', task)
    rest = re.sub(r'"[^"]*"', " ", task)
    words = [word.strip(".,:;!?()'") for word in rest.split()]
    special = [word for word in words if word and (word[0].isdigit() or (word[0].isupper() and word != words[0]))]
    return tuple(dict.fromkeys([*quoted, *special]))
