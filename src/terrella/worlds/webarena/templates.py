"""Templates of mini-arena tasks: new instructions, and a check for an instruction that fits one.

A template has slots. A slot takes a value of a site's database, one of a list, or free text. Facts
are queries by the slots' values; they give the answer. So an instruction that fits a template and
names things that exist gets a check and a script; one that names others cannot be done.
    book = TemplateBook(query)
    book.write(10, rng, sites={"gitlab"}), book.fit("Who owns ticket 5?")
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.untrusted import read_json
from terrella.core.written_tasks import Draft

FILE = Path(__file__).parent / "mini_templates.json"
FREE_TEXT = r"[^\"\\{}\x00-\x1f]{1,80}"
"""A slot of free text: it goes into scripts and checks, where quotes and braces have a meaning."""
ANY_VALUE = '[^"]{1,80}?'
FIRST_ID = 1_000_000
"""Ids of written tasks begin here."""
MAX_INSTRUCTION = 400
_SLOT = re.compile(r"\{(\w+)\}")

Query = Callable[[str, str, Mapping[str, Any]], list[tuple[Any, ...]]]
"""(site, SELECT, its parameters) -> rows of the site as it was built."""


class TemplateBook:
    """The templates of the mini-arena over the databases of its sites."""

    def __init__(self, query: Query, file: Path = FILE) -> None:
        self.query = query
        self.templates: list[Mapping[str, Any]] = read_json(file)
        self._known: dict[tuple[str, str], list[Any]] = {}

    def write(self, count: int, rng: np.random.Generator, sites: Collection[str]) -> list[str]:
        """Instructions for these sites, from templates and values that are drawn evenly."""
        known = [each for each in self.templates if set(each["sites"]) <= set(sites)]
        written = []
        for _ in range(count if known else 0):
            template = known[int(rng.integers(len(known)))]
            values = {}
            for name, slot in template["slots"].items():
                choices = self._choices(slot)
                values[name] = choices[int(rng.integers(len(choices)))]
            written.append(_filled(template["intent"], values))
        return written

    def fit(self, instruction: str) -> Draft | None:
        """The task of an instruction that fits a template; None if it fits none."""
        for template in self.templates:
            match = _pattern(template).fullmatch(_spaced(instruction))
            if match is not None:
                return self._draft(template, match.groupdict())
        return None

    def _draft(self, template: Mapping[str, Any], found: Mapping[str, str]) -> Draft:
        values: dict[str, Any] = {}
        for name, text in found.items():
            value = self._value(template["slots"][name], text)
            if value is None:
                return Draft(reason=f"there is no {name} {text[:60]!r}")
            values[name] = value
        if any(self.query(each["site"], each["query"], values) for each in template["absent"]):
            return Draft(reason="what it should create exists already")
        for name, fact in template["facts"].items():
            rows = self.query(fact["site"], fact["query"], values)
            if len(rows) != 1 or rows[0][0] in (None, ""):
                return Draft(reason=f"its {name} is not known")
            values[name] = rows[0][0]
        return Draft(task=json.dumps(task_row(template, values)), checked=True)

    def _value(self, slot: Mapping[str, Any], text: str) -> Any:
        """What the text names; None if there is no such thing."""
        if "phrases" in slot:
            return text if re.fullmatch(slot.get("pattern", FREE_TEXT), text) else None
        named = (value for value in self._choices(slot) if str(value).lower() == text.lower())
        return next(named, None)

    def _choices(self, slot: Mapping[str, Any]) -> list[Any]:
        for key in ("phrases", "values"):
            if key in slot:
                return list(slot[key])
        place = (slot["site"], slot["query"])
        if place not in self._known:
            self._known[place] = [row[0] for row in self.query(*place, {})]
        return self._known[place]


def task_row(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A task in WebArena's format."""
    intent = _filled(template["intent"], values)
    return {
        "sites": template["sites"],
        "task_id": written_id(intent),
        "require_login": True,
        "start_url": template["start_url"],
        "intent": intent,
        "eval": _fill(template["eval"], values),
        "intent_template_id": template["template"],
        "oracle": _fill(template["oracle"], values),
    }


def unchecked_row(
    intent: str, sites: tuple[str, ...], start_url: str, login: str = ""
) -> dict[str, Any]:
    """A task without a check: only an outcome model can judge it."""
    return {
        "sites": list(sites),
        "task_id": written_id(intent),
        "require_login": True,
        "storage_state": login or None,
        "start_url": start_url,
        "intent": intent,
        "eval": {"eval_types": []},
        "intent_template_id": 0,
    }


def written_id(intent: str) -> int:
    return FIRST_ID + zlib.crc32(intent.encode())


def _fill(part: Any, values: Mapping[str, Any], *, rows: bool = False) -> Any:
    """Fill the slots of a nested value; text in a query is quoted, numbers in rows stay numbers."""
    if isinstance(part, list):
        return [_fill(item, values, rows=rows) for item in part]
    if isinstance(part, dict):
        return {
            key: _filled(item, values, quote=True)
            if key == "query"
            else _fill(item, values, rows=key == "expected")
            for key, item in part.items()
        }
    if not isinstance(part, str):
        return part
    whole = _SLOT.fullmatch(part)
    return values[whole[1]] if whole and rows else _filled(part, values)


def _filled(text: str, values: Mapping[str, Any], *, quote: bool = False) -> str:
    def value(match: re.Match[str]) -> str:
        found = str(values[match[1]])
        return found.replace("'", "''") if quote else found

    return _SLOT.sub(value, text)


def _spaced(instruction: str) -> str:
    """One space between words, no sentence mark at the end."""
    return " ".join(instruction[:MAX_INSTRUCTION].split()).rstrip(".?! ")


def _pattern(template: Mapping[str, Any]) -> re.Pattern[str]:
    """What an instruction by this template looks like."""
    slots = template["slots"]
    pattern = "".join(
        f"(?P<{part}>{slots[part].get('pattern', ANY_VALUE)})" if index % 2 else re.escape(part)
        for index, part in enumerate(_SLOT.split(_spaced(template["intent"])))
    )
    return re.compile(pattern, re.IGNORECASE)
