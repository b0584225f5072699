"""Scripts for tasks that ask to read: tables, paragraphs, sums, copies, sliders.

READING["simple-arithmetic"](page) -> "type 3 42"
"""

from __future__ import annotations

import re

from terrella.worlds.miniwob.script_tools import PageReader, Script

ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")


def arithmetic(page: PageReader) -> str:
    """Solve `a op b =`."""
    found = re.search(r"(-?\d+) ([-+x/]) (-?\d+) =", " ".join(node.name for node in page.of("text")))
    if found is None:
        raise page.lost()
    left, sign, right = int(found.group(1)), found.group(2), int(found.group(3))
    value = {"+": left + right, "-": left - right, "x": left * right}[sign]
    return page.fill([(page.of("textbox")[0], str(value))])


def algebra(page: PageReader) -> str:
    """Solve an equation in x with one addition or subtraction."""
    text = " ".join(node.name for node in page.of("text"))
    found = re.search(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", text)
    if found is None:
        raise page.lost()
    left, sign, right, total = found.group(1), found.group(2), found.group(3), int(found.group(4))
    if left == "x":
        value = total - int(right) if sign == "+" else total + int(right)
    else:
        value = total - int(left) if sign == "+" else int(left) - total
    return page.fill([(page.of("textbox")[0], str(value))])


def table_value(page: PageReader) -> str:
    """Type the cell beside the label that the task, or the field's own label, names."""
    cells = page.of("cell", "gridcell", "rowheader")
    table = {cells[i].name: cells[i + 1].name for i in range(0, len(cells) - 1, 2)}
    fields = page.of("textbox")
    asked = re.findall(r"value of (.*?) into", page.task)
    labels = asked or [node.name.rstrip(":") for node in page.of("text") if node.name.rstrip(":") in table]
    return page.fill([(field, table[label]) for field, label in zip(fields, labels, strict=False)])


def nth_word(page: PageReader) -> str:
    """Type the n-th word of the paragraph, without punctuation."""
    found = ORDINAL.search(page.task)
    if found is None:
        raise page.lost()
    word = page.of("text")[0].name.split()[int(found.group(1)) - 1].strip(".,")
    return page.fill([(page.of("textbox")[0], word)])


def last_word(page: PageReader) -> str:
    """Type the last word of the long text."""
    long, field = page.of("textbox")[:2]
    return page.fill([(field, re.sub(r"[^\w]+$", "", long.get("value").split()[-1]))])


def copy_text(page: PageReader) -> str:
    """Copy the text of one field into the empty one."""
    fields = page.of("textbox")
    found = ORDINAL.search(page.task)
    if found:
        return page.fill([(fields[-1], fields[int(found.group(1)) - 1].get("value"))])
    filled = [field for field in fields if field.get("value")]
    empty = [field for field in fields if not field.get("value")]
    return page.fill([(empty[0], filled[0].get("value"))]) if empty else page.submit()


def type_what_is_shown(page: PageReader) -> str:
    """Type the distorted text."""
    text = "".join(node.name for node in page.of("text", "label")).replace(" ", "")
    return page.fill([(page.of("textbox")[0], text)])


def search_by_fields(page: PageReader) -> str:
    """Fill genre, director and year beside their labels, wherever these stand."""
    found = re.search(r"for (.*?) movies directed by (.*?) from year (\d+)", page.task)
    if found is None:
        raise page.lost()
    wanted = dict(zip(("genre", "director", "year"), found.groups(), strict=True))
    pairs, label = [], ""
    for node in page.nodes:
        lower = (node.name or node.get("placeholder")).lower()
        label = next((key for key in wanted if key in lower), label)
        if node.role == "textbox" and label:
            pairs.append((node, wanted[label]))
    return page.fill(pairs)


def autocomplete(page: PageReader) -> str:
    """Type the beginning, choose the entry with the right ending, submit."""
    start, end = page.quoted[0], page.quoted[1] if len(page.quoted) > 1 else ""
    field = page.of("textbox", "combobox", "searchbox")[0]
    shown = field.get("value")
    if shown.startswith(start) and shown.endswith(end) and len(shown) > len(start):
        return page.submit()
    entries = [n for n in page.of("clickable", "menuitem", "option", "listitem") if n.name.startswith(start)]
    fitting = [node for node in entries if node.name.endswith(end)]
    return page.click(fitting[0]) if fitting else f"type {field.id} {start}"


def generate_until(page: PageReader) -> str:
    """Generate numbers until one fits, then submit."""
    shown = page.of("text")[0].name
    if not re.fullmatch(r"-?\d+", shown) or not _fits(int(shown), page.task):
        return page.click(page.named("Generate", ("button",)))
    return page.submit()


def _fits(number: int, task: str) -> bool:
    found = re.search(r"(less|greater) than (-?\d+)", task)
    if found:
        bound = int(found.group(2))
        return number < bound if found.group(1) == "less" else number > bound
    return bool(number % 2) == ("odd" in task)


def guess_number(page: PageReader) -> str:
    """Halve what is left, by the feedback on the last guess."""
    feedback = next((n.name for n in page.of("text", "heading", "status") if "number" in n.name.lower()), "")
    field = page.of("spinbutton", "textbox")[0]
    shown = field.get("value")
    found = re.search(r"(higher|lower|greater|less)\D*(-?\d+)", feedback)
    if found is None:
        return page.submit() if shown == "5" else f"type {field.id} 5"
    guess = int(found.group(2)) + (1 if found.group(1) in ("higher", "greater") else -1)
    return page.submit() if shown == str(guess) else f"type {field.id} {guess}"


def buy_ticket(page: PageReader) -> str:
    """Compare durations or prices, and book."""
    offers = []
    for node in page.nodes:
        found = re.search(r"(\d+)h (\d+)m", node.name)
        if found:
            minutes = 60 * int(found.group(1)) + int(found.group(2))
        if node.role == "button":
            offers.append((minutes, int(re.sub(r"\D", "", node.name)), node))
    by_time = "duration" in page.task
    choose = min if re.search("shortest|cheapest|least", page.task) else max
    return page.click(choose(offers, key=lambda offer: offer[0] if by_time else offer[1])[2])


def form_with_numbers(page: PageReader) -> str:
    """Check the n-th radio button and enter a number into the m-th field."""
    radio, field = (int(number) - 1 for number in ORDINAL.findall(page.task)[:2])
    chosen = page.of("radio")[radio]
    return page.fill([(page.of("textbox")[field], page.quoted[0])]) if chosen.get("checked") else page.click(chosen)


READING: dict[str, Script] = {
    "simple-arithmetic": arithmetic, "simple-algebra": algebra, "read-table": table_value, "read-table-2": table_value,
    "find-word": nth_word, "scroll-text": last_word, "copy-paste": copy_text, "copy-paste-2": copy_text,
    "text-transform": type_what_is_shown, "multi-layouts": search_by_fields, "multi-orderings": search_by_fields,
    "use-autocomplete": autocomplete, "use-autocomplete-nodelay": autocomplete, "generate-number": generate_until,
    "guess-number": guess_number, "buy-ticket": buy_ticket, "form-sequence-2": form_with_numbers,
}  # fmt: skip
