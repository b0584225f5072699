"""Expert scripts for tasks that need reading: tables, paragraphs, sums, copies, tickets.

READING["simple-arithmetic"](page)  # "type 3 42"
"""

from __future__ import annotations

import re

from terrella.worlds.miniwob.script_tools import PageReader, Script

ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")


def arithmetic(page: PageReader) -> str:
    """Solve `a op b =`."""
    problem = re.search(r"(-?\d+) ([-+x/]) (-?\d+) =", _all_text(page))
    if problem is None:
        raise page.unexpected()
    left, sign, right = int(problem.group(1)), problem.group(2), int(problem.group(3))
    value = {"+": left + right, "-": left - right, "x": left * right}[sign]
    return page.fill([(page.of("textbox")[0], str(value))])


def algebra(page: PageReader) -> str:
    """Solve an equation in x with one addition or subtraction."""
    equation = re.search(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", _all_text(page))
    if equation is None:
        raise page.unexpected()
    left, sign, right = equation.group(1, 2, 3)
    total = int(equation.group(4))
    if left == "x":
        value = total - int(right) if sign == "+" else total + int(right)
    else:
        value = total - int(left) if sign == "+" else int(left) - total
    return page.fill([(page.of("textbox")[0], str(value))])


def _all_text(page: PageReader) -> str:
    return " ".join(node.name for node in page.of("text"))


def table_value(page: PageReader) -> str:
    """Type the cell beside the label that the task, or the field's own label, names."""
    cells = page.of("cell", "gridcell", "rowheader")
    table = {cells[i].name: cells[i + 1].name for i in range(0, len(cells) - 1, 2)}
    fields = page.of("textbox")
    labels = re.findall(r"value of (.*?) into", page.task)
    if not labels:
        texts = [node.name.rstrip(":") for node in page.of("text")]
        labels = [text for text in texts if text in table]
    return page.fill([(field, table[label]) for field, label in zip(fields, labels, strict=False)])


def nth_word(page: PageReader) -> str:
    """Type the n-th word of the paragraph, without punctuation."""
    ordinal = ORDINAL.search(page.task)
    if ordinal is None:
        raise page.unexpected()
    word = page.of("text")[0].name.split()[int(ordinal.group(1)) - 1].strip(".,")
    return page.fill([(page.of("textbox")[0], word)])


def last_word(page: PageReader) -> str:
    """Type the last word of the long text."""
    long_text, field = page.of("textbox")[:2]
    word = re.sub(r"[^\w]+$", "", long_text.get("value").split()[-1])
    return page.fill([(field, word)])


def copy_text(page: PageReader) -> str:
    """Copy the text of one field into the empty one."""
    fields = page.of("textbox")
    ordinal = ORDINAL.search(page.task)
    if ordinal:
        source = fields[int(ordinal.group(1)) - 1]
        return page.fill([(fields[-1], source.get("value"))])
    filled = [field for field in fields if field.get("value")]
    empty = [field for field in fields if not field.get("value")]
    return page.fill([(empty[0], filled[0].get("value"))]) if empty else page.submit()


def type_shown_text(page: PageReader) -> str:
    """Type the distorted text that the page shows."""
    text = "".join(node.name for node in page.of("text", "label")).replace(" ", "")
    return page.fill([(page.of("textbox")[0], text)])


def search_by_fields(page: PageReader) -> str:
    """Fill in genre, director and year by their labels, whatever the layout."""
    request = re.search(r"for (.*?) movies directed by (.*?) from year (\d+)", page.task)
    if request is None:
        raise page.unexpected()
    wanted = dict(zip(("genre", "director", "year"), request.groups(), strict=True))
    pairs = []
    label = ""
    for node in page.nodes:
        lower = (node.name or node.get("placeholder")).lower()
        label = next((key for key in wanted if key in lower), label)
        if node.role == "textbox" and label:
            pairs.append((node, wanted[label]))
    return page.fill(pairs)


def autocomplete(page: PageReader) -> str:
    """Type the beginning, choose the suggestion with the right ending, submit."""
    start = page.quoted[0]
    end = page.quoted[1] if len(page.quoted) > 1 else ""
    field = page.of("textbox", "combobox", "searchbox")[0]
    shown = field.get("value")
    if shown.startswith(start) and shown.endswith(end) and len(shown) > len(start):
        return page.submit()
    for entry in page.of("clickable", "menuitem", "option", "listitem"):
        if entry.name.startswith(start) and entry.name.endswith(end):
            return page.click(entry)
    return f"type {field.id} {start}"


def generate_until(page: PageReader) -> str:
    """Generate numbers until one fits the task, then submit."""
    shown = page.of("text")[0].name
    if not re.fullmatch(r"-?\d+", shown) or not _fits(int(shown), page.task):
        return page.click(page.named("Generate", ("button",)))
    return page.submit()


def _fits(number: int, task: str) -> bool:
    condition = re.search(r"(less|greater) than (-?\d+)", task)
    if condition:
        bound = int(condition.group(2))
        return number < bound if condition.group(1) == "less" else number > bound
    return bool(number % 2) == ("odd" in task)


def guess_number(page: PageReader) -> str:
    """Start at 5 and move by one, as the feedback on the last guess says."""
    messages = [node.name for node in page.of("text", "heading", "status")]
    feedback = next((message for message in messages if "number" in message.lower()), "")
    field = page.of("spinbutton", "textbox")[0]
    shown = field.get("value")
    comparison = re.search(r"(higher|lower|greater|less)\D*(-?\d+)", feedback)
    if comparison is None:
        return page.submit() if shown == "5" else f"type {field.id} 5"
    step = 1 if comparison.group(1) in ("higher", "greater") else -1
    guess = int(comparison.group(2)) + step
    return page.submit() if shown == str(guess) else f"type {field.id} {guess}"


def buy_ticket(page: PageReader) -> str:
    """Book the flight with the best duration or price."""
    offers = []
    for node in page.nodes:
        duration = re.search(r"(\d+)h (\d+)m", node.name)
        if duration:
            minutes = 60 * int(duration.group(1)) + int(duration.group(2))
        if node.role == "button":
            price = int(re.sub(r"\D", "", node.name))
            offers.append((minutes, price, node))
    by_time = "duration" in page.task
    choose = min if re.search("shortest|cheapest|least", page.task) else max
    return page.click(choose(offers, key=lambda offer: offer[0] if by_time else offer[1])[2])


def form_with_numbers(page: PageReader) -> str:
    """Check the n-th radio button and enter a number into the m-th field."""
    radio, field = (int(number) - 1 for number in ORDINAL.findall(page.task)[:2])
    chosen = page.of("radio")[radio]
    if not chosen.get("checked"):
        return page.click(chosen)
    return page.fill([(page.of("textbox")[field], page.quoted[0])])


READING: dict[str, Script] = {
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "read-table": table_value,
    "read-table-2": table_value,
    "find-word": nth_word,
    "scroll-text": last_word,
    "copy-paste": copy_text,
    "copy-paste-2": copy_text,
    "text-transform": type_shown_text,
    "multi-layouts": search_by_fields,
    "multi-orderings": search_by_fields,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
    "generate-number": generate_until,
    "guess-number": guess_number,
    "buy-ticket": buy_ticket,
    "form-sequence-2": form_with_numbers,
}
