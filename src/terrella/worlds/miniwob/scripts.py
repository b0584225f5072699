"""Teachers: for a family and a page, the next action that solves the task. Pure functions of what the page shows.

A script reads the task's sentence and the tree, and answers with one action; it keeps no memory, so it also goes on
from wherever another policy has left the page. `SCRIPTS` maps a family to its script; families of one kind share one.
    best_action("login-user", task, nodes) -> "type 3 kai"
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from terrella.core.errors import WorldError
from terrella.verify.tree import Node
from terrella.worlds.miniwob.script_tools import PageReader, Script
from terrella.worlds.miniwob.scripts_reading import READING
from terrella.worlds.miniwob.scripts_sites import SITES

CLICKED = ("button", "clickable", "link", "tab", "menuitem", "listitem", "text", "checkbox", "radio", "option", "label")


def click_the_only_button(page: PageReader) -> str:
    """Press the one button there is."""
    return page.click(page.of("button")[0])


def click_what_is_quoted(page: PageReader) -> str:
    """Click on the element that carries the quoted name."""
    return page.click(page.named(page.quoted[0], CLICKED))


def click_button_by_word(page: PageReader) -> str:
    """Click the button that the task calls ONE, or ONE and then TWO."""
    wanted = re.findall(r"button (ONE|TWO)", page.task)
    pressed = [node for node in page.of("button") if node.get("focused")]
    place = 1 if len(wanted) > 1 and pressed and pressed[0].name == wanted[0] else 0
    return page.click(page.named(wanted[place], ("button",)))


def click_in_dialog(page: PageReader) -> str:
    """Press the button of a dialog; "x" is the one that closes it."""
    wanted = page.quoted[0]
    return page.click(page.named("Close" if wanted == "x" else wanted, ("button",)))


def choose_and_submit(page: PageReader) -> str:
    """Tick all boxes that the task lists, then submit."""
    listed = _between(page.task, r"Select (.*?) and click Submit")
    wanted = [] if listed in ("nothing", "") else [one.strip() for one in listed.split(",")]
    for node in page.of("checkbox", "radio"):
        if (node.name in wanted) != bool(node.get("checked")):
            return page.click(node)
    return page.submit()


def select_from_list(page: PageReader) -> str:
    """Choose options of a list, then submit."""
    listed = _between(page.task, r"Select (.*?) from the (?:scroll )?list")
    wanted, box = [one.strip() for one in listed.split(",")], page.of("combobox", "listbox")[0]
    for node in page.of("option"):
        if node.name in wanted and not node.get("selected"):
            return f"select {box.id} {node.name}"
    return page.submit()


def fill_what_is_quoted(page: PageReader) -> str:
    """Type the quoted texts into the fields in order (one text for all when there is only one), then submit."""
    fields = page.of("textbox")
    texts = page.quoted if len(page.quoted) > 1 else page.quoted * len(fields)
    return page.fill(zip(fields, texts, strict=False))


def fill_changed_case(page: PageReader) -> str:
    """Type the quoted text in upper or lower case, then submit."""
    text = page.quoted[0].upper() if "upper" in page.task else page.quoted[0].lower()
    return page.fill([(page.of("textbox")[0], text)])


def focus_a_field(page: PageReader) -> str:
    """Click into the field with the given number."""
    found = re.search(r"(\d+)(?:st|nd|rd|th)", page.task)
    return page.click(page.of("textbox")[int(found.group(1)) - 1 if found else 0])


def enter_date(page: PageReader) -> str:
    """A native date field takes the digits in its own order."""
    month, day, year = re.findall(r"\d+", page.task)[:3]
    field = page.of("textbox")[0]
    return page.submit() if field.get("value") else f"type {field.id} {month}{day}{year}"


def enter_time(page: PageReader) -> str:
    """A native time field takes the digits and the half of the day."""
    found = re.search(r"(\d+):(\d+) (AM|PM)", page.task)
    field = page.of("textbox")[0]
    if found is None or field.get("value"):
        return page.submit()
    return f"type {field.id} {int(found.group(1)):02d}{found.group(2)}{found.group(3)}"


def click_tab(page: PageReader) -> str:
    """Open the tab that the task names."""
    return page.click(page.named(_between(page.task, r"Click on (Tab #\d+)"), ("tab",)))


def find_link_in_sections(page: PageReader) -> str:
    """Click the quoted link if it is in sight, else open the next section."""
    wanted = page.quoted[0]
    shown = [node for node in page.of("clickable", "link") if node.name == wanted]
    if shown:
        return page.click(shown[0])
    tabs = page.of("tab")
    opened = [place for place, tab in enumerate(tabs) if tab.get("expanded") or tab.get("selected")]
    return page.click(tabs[(opened[-1] + 1) % len(tabs) if opened else 0])


def expand_and_submit(page: PageReader) -> str:
    """Open the section, then press its button."""
    opened = [tab for tab in page.of("tab") if tab.get("expanded") or tab.get("selected")]
    return page.submit() if opened else page.click(page.of("tab")[0])


def widget_of_a_kind(page: PageReader) -> str:
    """Click a widget of the kind that the task names."""
    kinds = {"text": "textbox", "textarea": "textbox", "checkbox": "checkbox", "radio": "radio", "button": "button"}
    wanted = page.quoted[0]
    return page.click(next(n for n in page.of(kinds[wanted]) if bool(n.get("multiline")) == (wanted == "textarea")))


def shape_like(page: PageReader) -> str:
    """Click on a shape of the wanted colour, size and kind."""
    wanted = _between(page.task, r"Click on an? (.*)")
    return page.click(next(node for node in page.of(*SHAPES) if matches_shape(node, wanted)))


SHAPES = ("label", "rect", "circle", "polygon")
COLORS = ("red", "green", "blue", "aqua", "black", "magenta", "yellow")


def matches_shape(node: Node, wanted: str) -> bool:
    """Whether a shape is what a phrase such as "small red letters" describes."""
    words = wanted.replace("items", "item").rstrip("s").split()
    width = max(map(int, node.get("size").split("x")))
    kinds = {
        "digit": node.name.isdigit(), "letter": node.name.isalpha(), "item": True, "shape": node.role != "label",
        "rectangle": node.role == "rect", "circle": node.role == "circle", "triangle": node.role == "polygon",
    }  # fmt: skip
    for word in words:
        if word in COLORS and node.get("fill") != word:
            return False
        if word in ("small", "large") and (width > 12) != (word == "large"):
            return False
        if word in kinds and not kinds[word]:
            return False
    return True


def count_shapes(page: PageReader) -> str:
    """Press the button with the number of such shapes."""
    wanted = _between(page.task, r"How many (.*?) are there")
    count = sum(matches_shape(node, wanted) for node in page.of(*SHAPES))
    return page.click(page.named(str(count), ("button",)))


def name_the_shape(page: PageReader) -> str:
    """Press the button that says what the figure is."""
    figure = page.of(*SHAPES)[0]
    names = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle", "label": "Letter"}
    name = "Number" if figure.name.isdigit() else names[figure.role]
    return page.click(page.named(name, ("button",)))


def grid_point(page: PageReader) -> str:
    """Click on a point of a grid, by its coordinates."""
    across, up = map(int, re.findall(r"-?\d+", page.task))
    circles = sorted(page.of("circle"), key=lambda node: (_at(node)[0], -_at(node)[1]))
    return page.click(circles[(across + 2) * 5 + (up + 2)])


def _at(node: Node) -> tuple[int, int]:
    x, y = node.get("at").split(",")
    return int(x), int(y)


def centre_of_circle(page: PageReader) -> str:
    """Click on the circle (a click is in its middle), then submit."""
    circles = page.of("circle")
    return page.click(circles[0]) if len(circles) == 1 else page.submit()


def mark_odd_or_even(page: PageReader) -> str:
    """One press per number, then submit; a pressed button shows it."""
    rows = [
        (n, page.nodes[i - 1], page.nodes[i + 1]) for i, n in enumerate(page.nodes) if re.fullmatch(r"-?\d+", n.name)
    ]
    for number, odd, even in rows:
        right = odd if int(number.name) % 2 else even
        if not right.get("selected"):
            return page.click(right)
    return page.submit()


def _between(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(1).rstrip(".") if found else ""


def _for_all(script: Script, *names: str) -> dict[str, Script]:
    return dict.fromkeys(names, script)


SCRIPTS: dict[str, Script] = {
    **_for_all(click_the_only_button, "click-test"),
    **_for_all(click_what_is_quoted, "click-button", "click-link", "unicode-test"),
    **_for_all(click_button_by_word, "click-test-2", "click-test-transfer", "click-button-sequence"),
    **_for_all(click_in_dialog, "click-dialog", "click-dialog-2"),
    **_for_all(
        choose_and_submit, "click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option"
    ),
    **_for_all(select_from_list, "choose-list", "click-scroll-list"),
    **_for_all(fill_what_is_quoted, "enter-text", "enter-text-dynamic", "enter-password", "login-user"),
    **_for_all(fill_changed_case, "enter-text-2"),
    **_for_all(focus_a_field, "focus-text", "focus-text-2"),
    **_for_all(enter_date, "enter-date"),
    **_for_all(enter_time, "enter-time"),
    **_for_all(click_tab, "click-tab"),
    **_for_all(
        find_link_in_sections, "click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard",
        "click-collapsible-2", "click-collapsible-2-nodelay",
    ),
    **_for_all(expand_and_submit, "click-collapsible", "click-collapsible-nodelay"),
    **_for_all(widget_of_a_kind, "click-widget"),
    **_for_all(shape_like, "click-shape"),
    **_for_all(count_shapes, "count-shape"),
    **_for_all(name_the_shape, "identify-shape"),
    **_for_all(grid_point, "grid-coordinate"),
    **_for_all(centre_of_circle, "circle-center"),
    **_for_all(mark_odd_or_even, "odd-or-even"),
    **READING,
    **SITES,
}  # fmt: skip


def best_action(family: str, task: str, nodes: Sequence[Node]) -> str:
    """What the family's script does on this page; a page it cannot read ends the attempt."""
    if family not in SCRIPTS:
        raise WorldError("miniwob", f"no script for {family}", f"families with one: {', '.join(sorted(SCRIPTS))}")
    try:
        return SCRIPTS[family](PageReader(task, nodes))
    except (LookupError, ValueError):  # another policy has left the page where the script finds nothing to do
        return "stop"


__all__ = ["SCRIPTS", "best_action", "matches_shape"]
