"""Text actions of a web agent: their grammar, their execution, and the candidates of a page.

Elements are named by id:

    click 7 | type 7 some text | select 7 An option | scroll down | scroll 7 up
    press Enter | back | goto URL | stop 4
`parse_action` reads any of them. `candidates` lists those that make sense on a page, which is what
a small policy chooses from.
    parse_action("type 7 kai")  # Action("type", 7, "kai")
    candidates(nodes, texts=("kai",))  # ("click 3", ...)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.browser.tab import KEYS, Tab
from terrella.verify.tree import Node

SCROLL_PIXELS = 240
MAX_TEXT_LENGTH = 2000
_GRAMMAR = re.compile(
    r"(?P<verb>click|type|select) (?P<id>\d{1,9})(?: (?P<text>.*))?"
    r"|scroll (?:(?P<scrolled>\d{1,9}) )?(?P<direction>up|down)"
    r"|press (?P<key>\S{1,40})"
    r"|goto (?P<url>\S{1,1500})"
    r"|(?P<back>back)\s*"
    r"|stop(?: (?P<answer>.*))?",
    re.DOTALL,
)
TEXT_FIELDS = ("textbox", "searchbox", "spinbutton")
LISTS = ("combobox", "listbox")
STATIC = (
    "task",
    "text",
    "heading",
    "cell",
    "gridcell",
    "row",
    "list",
    "listitem",
    "table",
    "form",
    "main",
    "navigation",
    "option",
    "banner",
    "contentinfo",
    "region",
    "group",
    "article",
    "columnheader",
    "rowheader",
    "dialog",
    "alert",
    "tabpanel",
    "slider",
    "separator",
    "menu",
    "menubar",
    "tablist",
    "tree",
    "grid",
    "log",
    "progressbar",
    "term",
    "definition",
    "figure",
    "search",
    "complementary",
    "toolbar",
    "radiogroup",
    "caption",
    *TEXT_FIELDS,
    *LISTS,
)
"""Roles on which a click normally has no effect."""


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed action."""

    verb: str
    id: int = 0
    text: str = ""


def parse_action(text: str) -> Action | None:
    """Parse an action; None when the text does not follow the grammar."""
    if len(text) > MAX_TEXT_LENGTH:
        return None
    match = _GRAMMAR.fullmatch(text.lstrip().rstrip("\r\n"))
    if match is None:
        return None
    if match["verb"]:
        return _element_action(match["verb"], int(match["id"]), match["text"])
    if match["direction"]:
        return Action("scroll", int(match["scrolled"] or 0), match["direction"])
    if match["key"]:
        return Action("press", 0, match["key"])
    if match["url"]:
        return Action("goto", 0, match["url"])
    if match["back"]:
        return Action("back")
    return Action("stop", 0, match["answer"] or "")


def _element_action(verb: str, element: int, text: str | None) -> Action | None:
    """A click takes no text; `type` and `select` need one, which may be empty."""
    if verb == "click":
        return None if (text or "").strip() else Action(verb, element)
    return None if text is None else Action(verb, element, text)


async def execute_action(tab: Tab, action: Action) -> bool:
    """Perform the action on the page; False when that was not possible.

    `goto` and `stop` are handled by the world.
    """
    if action.verb == "click":
        return await tab.click(action.id)
    if action.verb == "type":
        return await tab.type(action.id, action.text)
    if action.verb == "select":
        return await tab.select(action.id, action.text)
    if action.verb == "scroll":
        pixels = SCROLL_PIXELS if action.text == "down" else -SCROLL_PIXELS
        return await tab.scroll(pixels, action.id)
    if action.verb == "press":
        return await tab.press(action.text)
    if action.verb == "back":
        return await tab.back()
    return False


def candidates(
    nodes: Sequence[Node], texts: Sequence[str] = (), *, keys: Sequence[str] = ()
) -> tuple[str, ...]:
    """List the actions that make sense on this page.

    These are a click on each control, each text in each text field, each option of each list, the
    given keys, scrolling and stop.
    """
    actions: list[str] = []
    open_list = 0  # id of the list that the following options belong to
    for node in nodes:
        if node.role in LISTS:
            open_list = node.id
        if node.role == "option" and open_list:
            actions.append(f"select {open_list} {node.name}")
        elif _takes_text(node):
            actions += [f"type {node.id} {text}" for text in texts]
            actions.append(f"click {node.id}")
        elif node.id and node.role not in STATIC:
            actions.append(f"click {node.id}")
    actions += [f"press {key}" for key in keys if key in KEYS]
    return tuple(dict.fromkeys([*actions, "scroll down", "scroll up", "stop"]))


def _takes_text(node: Node) -> bool:
    """Text fields, and lists without a current value, which are fields with suggestions."""
    if node.role in TEXT_FIELDS:
        return True
    return node.role in LISTS and "value" not in dict(node.properties)


def quoted_texts(task: str) -> tuple[str, ...]:
    """Texts of a task that an agent may have to type.

    First what stands in quotes, then other likely words: numbers, names, dates.
    """
    quoted = re.findall(r'"([^"]+)"', task)
    rest = re.sub(r'"[^"]*"', " ", task)
    words = [word.strip(".,:;!?()'") for word in rest.split()]
    special = [word for word in words if word and _is_special(word, words[0])]
    return tuple(dict.fromkeys([*quoted, *special]))


def _is_special(word: str, first_word: str) -> bool:
    """Numbers, and capitalised words other than the one that begins the sentence."""
    return word[0].isdigit() or (word[0].isupper() and word != first_word)
