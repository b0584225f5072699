"""Expert scripts: for a family and a page, the next action that solves the task.

A script reads the task's sentence and the tree and returns one action. Scripts are pure functions
of the page and keep no memory, so they can continue from wherever another policy has left the page.
`SCRIPTS` maps each family to its script; similar families share one.
    best_action("login-user", task, nodes)  # "type 3 kai"
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from terrella.core.errors import WorldError
from terrella.verify.tree import Node
from terrella.worlds.miniwob.script_tools import PageReader, Script
from terrella.worlds.miniwob.scripts_reading import READING
from terrella.worlds.miniwob.scripts_sites import SITES

CLICKABLE_ROLES = (
    "button",
    "clickable",
    "link",
    "tab",
    "menuitem",
    "listitem",
    "text",
    "checkbox",
    "radio",
    "option",
    "label",
)


def click_the_only_button(page: PageReader) -> str:
    """Press the only button."""
    return page.click(page.of("button")[0])


def click_quoted_name(page: PageReader) -> str:
    """Click the element with the quoted name."""
    return page.click(page.named(page.quoted[0], CLICKABLE_ROLES))


def click_button_by_word(page: PageReader) -> str:
    """Click the button that the task calls ONE, or ONE and then TWO."""
    wanted = re.findall(r"button (ONE|TWO)", page.task)
    pressed = [node for node in page.of("button") if node.get("focused")]
    is_second = len(wanted) > 1 and pressed and pressed[0].name == wanted[0]
    return page.click(page.named(wanted[1 if is_second else 0], ("button",)))


def click_in_dialog(page: PageReader) -> str:
    """Press a button of a dialog; the task calls the one that closes it "x"."""
    wanted = page.quoted[0]
    return page.click(page.named("Close" if wanted == "x" else wanted, ("button",)))


def choose_and_submit(page: PageReader) -> str:
    """Tick exactly the boxes that the task lists, then submit."""
    listed = _between(page.task, r"Select (.*?) and click Submit")
    wanted = [] if listed in ("nothing", "") else _split_list(listed)
    for node in page.of("checkbox", "radio"):
        if (node.name in wanted) != bool(node.get("checked")):
            return page.click(node)
    return page.submit()


def select_from_list(page: PageReader) -> str:
    """Choose the wanted options of a list, then submit."""
    listed = _between(page.task, r"Select (.*?) from the (?:scroll )?list")
    wanted = _split_list(listed)
    box = page.of("combobox", "listbox")[0]
    for node in page.of("option"):
        if node.name in wanted and not node.get("selected"):
            return f"select {box.id} {node.name}"
    return page.submit()


def fill_quoted_texts(page: PageReader) -> str:
    """Type the quoted texts into the fields in order, then submit.

    A single text goes into every field.
    """
    fields = page.of("textbox")
    texts = page.quoted if len(page.quoted) > 1 else page.quoted * len(fields)
    return page.fill(zip(fields, texts, strict=False))


def fill_changed_case(page: PageReader) -> str:
    """Type the quoted text in upper or lower case, then submit."""
    text = page.quoted[0].upper() if "upper" in page.task else page.quoted[0].lower()
    return page.fill([(page.of("textbox")[0], text)])


def focus_a_field(page: PageReader) -> str:
    """Click into the n-th field, or into the only one."""
    ordinal = re.search(r"(\d+)(?:st|nd|rd|th)", page.task)
    return page.click(page.of("textbox")[int(ordinal.group(1)) - 1 if ordinal else 0])


def enter_date(page: PageReader) -> str:
    """Type a date as digits, in the order that the native date field expects."""
    month, day, year = re.findall(r"\d+", page.task)[:3]
    field = page.of("textbox")[0]
    return page.submit() if field.get("value") else f"type {field.id} {month}{day}{year}"


def enter_time(page: PageReader) -> str:
    """Type a time as digits and AM or PM, as the native time field expects."""
    time = re.search(r"(\d+):(\d+) (AM|PM)", page.task)
    field = page.of("textbox")[0]
    if time is None or field.get("value"):
        return page.submit()
    hour, minute, half = time.groups()
    return f"type {field.id} {int(hour):02d}{minute}{half}"


def click_tab(page: PageReader) -> str:
    """Open the tab that the task names."""
    return page.click(page.named(_between(page.task, r"Click on (Tab #\d+)"), ("tab",)))


def find_link_in_sections(page: PageReader) -> str:
    """Click the quoted link if it is visible, else open the next section."""
    wanted = page.quoted[0]
    shown = [node for node in page.of("clickable", "link") if node.name == wanted]
    if shown:
        return page.click(shown[0])
    tabs = page.of("tab")
    opened = [index for index, tab in enumerate(tabs) if _is_open(tab)]
    return page.click(tabs[(opened[-1] + 1) % len(tabs) if opened else 0])


def expand_and_submit(page: PageReader) -> str:
    """Open the section, then press its button."""
    tabs = page.of("tab")
    return page.submit() if any(map(_is_open, tabs)) else page.click(tabs[0])


def _is_open(tab: Node) -> bool:
    return bool(tab.get("expanded") or tab.get("selected"))


def widget_of_a_kind(page: PageReader) -> str:
    """Click a widget of the kind that the task names."""
    kinds = {
        "text": "textbox",
        "textarea": "textbox",
        "checkbox": "checkbox",
        "radio": "radio",
        "button": "button",
    }
    wanted = page.quoted[0]
    is_area = wanted == "textarea"
    widgets = page.of(kinds[wanted])
    return page.click(next(node for node in widgets if bool(node.get("multiline")) == is_area))


def shape_like(page: PageReader) -> str:
    """Click a shape of the wanted colour, size and kind."""
    wanted = _between(page.task, r"Click on an? (.*)")
    return page.click(next(node for node in page.of(*SHAPES) if matches_shape(node, wanted)))


SHAPES = ("label", "rect", "circle", "polygon")
COLORS = ("red", "green", "blue", "aqua", "black", "magenta", "yellow")


def matches_shape(node: Node, wanted: str) -> bool:
    """Whether a shape fits a phrase such as "small red letters"."""
    words = wanted.replace("items", "item").rstrip("s").split()
    width = max(map(int, node.get("size").split("x")))
    kinds = {
        "digit": node.name.isdigit(),
        "letter": node.name.isalpha(),
        "item": True,
        "shape": node.role != "label",
        "rectangle": node.role == "rect",
        "circle": node.role == "circle",
        "triangle": node.role == "polygon",
    }
    for word in words:
        if word in COLORS and node.get("fill") != word:
            return False
        if word in ("small", "large") and (width > 12) != (word == "large"):
            return False
        if word in kinds and not kinds[word]:
            return False
    return True


def count_shapes(page: PageReader) -> str:
    """Press the button with the number of matching shapes."""
    wanted = _between(page.task, r"How many (.*?) are there")
    count = sum(matches_shape(node, wanted) for node in page.of(*SHAPES))
    return page.click(page.named(str(count), ("button",)))


def name_the_shape(page: PageReader) -> str:
    """Press the button that names the shape."""
    shape = page.of(*SHAPES)[0]
    names = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle", "label": "Letter"}
    name = "Number" if shape.name.isdigit() else names[shape.role]
    return page.click(page.named(name, ("button",)))


def grid_point(page: PageReader) -> str:
    """Click the grid point with the given coordinates."""
    x, y = map(int, re.findall(r"-?\d+", page.task))
    by_column = sorted(page.of("circle"), key=lambda n: (_position(n)[0], -_position(n)[1]))
    return page.click(by_column[(x + 2) * 5 + (y + 2)])


def _position(node: Node) -> tuple[int, int]:
    x, y = node.get("at").split(",")
    return int(x), int(y)


def centre_of_circle(page: PageReader) -> str:
    """Click the circle, which hits its centre, then submit."""
    circles = page.of("circle")
    return page.click(circles[0]) if len(circles) == 1 else page.submit()


def mark_odd_or_even(page: PageReader) -> str:
    """Press the right button beside each number, then submit; pressed ones are selected."""
    rows = []
    for index, node in enumerate(page.nodes):
        if re.fullmatch(r"-?\d+", node.name):
            rows.append((int(node.name), page.nodes[index - 1], page.nodes[index + 1]))
    for number, odd, even in rows:
        right = odd if number % 2 else even
        if not right.get("selected"):
            return page.click(right)
    return page.submit()


def _between(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match.group(1).rstrip(".") if match else ""


def _split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def _for_all(script: Script, *names: str) -> dict[str, Script]:
    return dict.fromkeys(names, script)


SCRIPTS: dict[str, Script] = {
    **_for_all(click_the_only_button, "click-test"),
    **_for_all(click_quoted_name, "click-button", "click-link", "unicode-test"),
    **_for_all(
        click_button_by_word, "click-test-2", "click-test-transfer", "click-button-sequence"
    ),
    **_for_all(click_in_dialog, "click-dialog", "click-dialog-2"),
    **_for_all(
        choose_and_submit,
        "click-checkboxes",
        "click-checkboxes-large",
        "click-checkboxes-transfer",
        "click-option",
    ),
    **_for_all(select_from_list, "choose-list", "click-scroll-list"),
    **_for_all(
        fill_quoted_texts, "enter-text", "enter-text-dynamic", "enter-password", "login-user"
    ),
    **_for_all(fill_changed_case, "enter-text-2"),
    **_for_all(focus_a_field, "focus-text", "focus-text-2"),
    **_for_all(enter_date, "enter-date"),
    **_for_all(enter_time, "enter-time"),
    **_for_all(click_tab, "click-tab"),
    **_for_all(
        find_link_in_sections,
        "click-tab-2",
        "click-tab-2-easy",
        "click-tab-2-medium",
        "click-tab-2-hard",
        "click-collapsible-2",
        "click-collapsible-2-nodelay",
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
}


def best_action(family: str, task: str, nodes: Sequence[Node]) -> str:
    """The next action of the family's script; `stop` on a page that it cannot read."""
    if family not in SCRIPTS:
        raise WorldError(
            "miniwob",
            f"no expert script for the family {family}",
            f"families with one: {', '.join(sorted(SCRIPTS))}",
        )
    try:
        return SCRIPTS[family](PageReader(task, nodes))
    except (LookupError, ValueError):
        return "stop"  # another policy left a page on which the script finds nothing to do


__all__ = ["SCRIPTS", "best_action", "matches_shape"]
