"""Text actions of a web agent on a page: their execution, and those that make sense.

`codecs/web_language.py` has their grammar. `candidates` lists what a policy can choose from.
    await execute_action(tab, parse_action("type 7 kai"))
    candidates(nodes, texts=("kai",))  # ("click 3", ...)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from terrella.browser.keyboard import KEYS
from terrella.browser.tab import Tab
from terrella.codecs.web_language import Action
from terrella.verify.tree import Node

SCROLL_PIXELS = 240
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


async def execute_action(tab: Tab, action: Action) -> bool:
    """Perform the action on the page; False when that was not possible.

    `goto` and `stop` are handled by the world.
    """
    if action.verb in ("click", "right_click"):
        return await tab.click(action.id, "left" if action.verb == "click" else "right")
    if action.verb == "hover":
        return await tab.hover(action.id)
    if action.verb == "type":
        return await tab.type(action.id, action.text)
    if action.verb == "search":
        return await tab.type(action.id, action.text) and await tab.press("Enter")
    if action.verb == "select":
        return await tab.select(action.id, action.text)
    if action.verb == "scroll":
        pixels = SCROLL_PIXELS if action.text == "down" else -SCROLL_PIXELS
        return await tab.scroll(pixels, action.id)
    if action.verb == "press":
        return await tab.press(action.text)
    if action.verb == "back":
        return await tab.back()
    if action.verb == "forward":
        return await tab.forward()
    return action.verb == "wait"


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
