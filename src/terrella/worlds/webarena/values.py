"""Values in answers to WebArena-Verified tasks, compared as the benchmark's own evaluator does.

Numbers, money, durations, distances, dates and so on are read from common notations, with the
tolerances of the package `webarena-verified`. The whole text must be one value: "not 12" and "12 or
13" are no numbers. `tests/unit/worlds/verified_values.json` compares both evaluators pair by pair;
docs/web.md says where this one is stricter.
    same_scalar("1h 30min", "90 min", {"type": "string", "format": "duration"})  # True
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple

from terrella.verify.text import common_lines
from terrella.worlds.webarena.patterns import fits

MAX_LENGTH = 2_000
"""A longer text is not a value of any kind but `string`."""
_HYPHENS = "[-\u2010-\u2015\u2212\u00ad]"
_NEXT_TO_LETTER = re.compile(rf"(?<=[a-zA-Z]){_HYPHENS}|{_HYPHENS}(?=[a-zA-Z])")
_MARKS = dict.fromkeys(map(ord, "\u2122\u00ae\u2120\u00a9"))
_ENDS = "'\"`.,;:!?"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?")


def plain(text: str) -> str:
    """Lower case ASCII without accents, marks and repeated blanks; hyphens of words are blanks."""
    text = unicodedata.normalize("NFKC", text.translate(_MARKS))
    text = _NEXT_TO_LETTER.sub(" ", text)
    text = "".join(character for character in text if _is_shown(character))
    decomposed = unicodedata.normalize("NFKD", text)
    letters = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(letters.split()).casefold()


def _is_shown(character: str) -> bool:
    return character in "\t\n\r" or not unicodedata.category(character).startswith("C")


# --- one reader per kind; ValueError for what is not such a value ---------------------------------


def read_number(value: Any) -> float:
    if isinstance(value, bool | int | float):
        return _finite(float(value))
    text = plain(_text(value))
    compact = text.replace(",", "").replace(" ", "")
    return _finite(float(compact)) if _NUMBER.fullmatch(compact) else float(_number_word(text))


_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {word: number for number, word in enumerate(_SMALL)}
_WORDS |= {word: 10 * number for number, word in enumerate(_TENS, 2)}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}


def _number_word(text: str) -> int:
    """A number in words, such as `twenty-three` or `two hundred and five`."""
    total = group = 0
    words = [word for word in text.split() if word != "and"]
    if not words or len(words) > 20:
        raise ValueError("not a number")
    for word in words:
        if word in _WORDS:
            group += _WORDS[word]
        elif word == "hundred":
            group = max(group, 1) * _SCALES[word]
        elif word in _SCALES:
            total += max(group, 1) * _SCALES[word]
            group = 0
        else:
            raise ValueError(f"not a number: {text[:40]!r}")
    return total + group


_MONEY = re.compile(
    r"(?P<minus>-?)\s*(?:[$€£¥₹₽¢]|usd|eur|gbp|us\$)?\s*(?P<amount>\d[\d.,\s]*)"
    r"\s*(?:[$€£¥₹₽¢]|usd|eur|gbp|dollars?|euros?)?"
)


def read_money(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("not an amount")
    if isinstance(value, int | float):
        return _finite(float(value))
    text = plain(_text(value))
    if text == "free":
        return 0.0
    match = _MONEY.fullmatch(text)
    if match is None:
        raise ValueError("not an amount")
    amount = "".join(match["amount"].split()).rstrip(".,")
    # The separator that comes last is that of the decimals, as upstream reads it.
    point, other = (".", ",") if amount.rfind(".") > amount.rfind(",") else (",", ".")
    whole, _, decimals = amount.replace(other, "").rpartition(point)
    number = float(f"{whole.replace(point, '')}.{decimals}" if whole else decimals)
    return -number if match["minus"] else number


def read_boolean(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return bool(value)
    text = plain(_text(value))
    if text in ("true", "yes", "y", "1", "t", "on"):
        return True
    if text in ("false", "no", "n", "0", "f", "off"):
        return False
    raise ValueError("neither true nor false")


_N = r"\d+(?:\.\d+)?"
_UNITS = {
    r"ys?|yrs?|years?": 31_536_000.0,
    r"mos?|mths?|months?": 2_592_000.0,
    r"w|wks?|weeks?": 604_800.0,
    r"d|dys?|days?": 86_400.0,
    r"h|hrs?|hours?": 3600.0,
    r"m|mins?|minutes?": 60.0,
    r"s|secs?|seconds?": 1.0,
}
_DURATION = re.compile(
    r"\s*".join(rf"(?:({_N})\s*(?:{names})\s*[,/]?\s*)?" for names in _UNITS), re.ASCII
)
_CLOCK = re.compile(rf"(?:(?:(\d+):)?(\d+):)?(\d{{1,6}}):({_N})")


def read_duration(value: Any) -> float:
    """Seconds. Each unit may be named once, from the longest to the shortest."""
    text = plain(_text(value))
    text = re.sub(r"(\d+):(\d+)\s*hours?", r"\1h\2m", text)
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return _finite(86_400 * days + 3600 * hours + 60 * minutes + seconds)
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError("not a duration with units")
    pairs = zip(match.groups(), _UNITS.values(), strict=True)
    return _finite(sum(float(number) * scale for number, scale in pairs if number))


_METRES = {
    r"m|meters?|metres?": 1.0,
    r"k|km|kilometers?|kilometres?": 1000.0,
    r"mi|miles?": 1609.344,
    r"ft|foot|feet": 0.3048,
    r"yd|yards?": 0.9144,
    r"cm|centimeters?|centimetres?": 0.01,
    r"in|inch|inches": 0.0254,
}


def read_distance(value: Any) -> float:
    """Metres: one number and one unit."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain(_text(value)))
    for names, scale in _METRES.items():
        match = re.fullmatch(rf"({_N})\s*(?:{names})", text)
        if match:
            return _finite(float(match[1]) * scale)
    raise ValueError("not a distance with a unit")


_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_DATES = (
    re.compile(r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})"),
    re.compile(r"(?P<m>\d{1,2})[-/.](?P<d>\d{1,2})[-/.](?P<y>\d{4}|\d{2})"),
    re.compile(r"(?P<m>[a-z]{3,9})\.? ?(?P<d>\d{1,2})(?:st|nd|rd|th)?,? (?P<y>\d{4})"),
    re.compile(r"(?P<d>\d{1,2})(?:st|nd|rd|th)? ?(?:of )?(?P<m>[a-z]{3,9})\.?,? (?P<y>\d{4})"),
)
_TIME = r"(?:[ t,]+\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]m)?)?"
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,? )?"


def read_date(value: Any) -> date:
    text = plain(_text(value).replace(",", ", "))
    text = re.sub(rf"^{_WEEKDAY}", "", text)
    text = re.sub(rf"{_TIME}$", "", text)
    for form in _DATES:
        match = form.fullmatch(text.replace(" ,", ","))
        if match:
            year = int(match["y"])
            year += (2000 if year < 70 else 1900) if year < 100 else 0
            month = int(match["m"]) if match["m"].isdigit() else _month_of(match["m"])
            return date(year, month, int(match["d"]))
    raise ValueError("not a date")


def _month_of(name: str) -> int:
    known = [n for n, month in enumerate(_MONTHS, 1) if name in (month, month[:3])]
    if name == "sept":
        known = [9]
    if not known:
        raise ValueError(f"not a month: {name[:20]!r}")
    return known[0]


def read_month(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("not a month")
    text = plain(_text(value) if isinstance(value, str) else str(value))
    match = re.fullmatch(r"(?P<name>[a-z]+)\.?(?:,? \d{4})?|(?P<number>\d{1,2})(?:\.0)?", text)
    if match is None:
        raise ValueError("not a month")
    month = int(match["number"]) if match["number"] else _month_of(match["name"])
    if not 1 <= month <= 12:
        raise ValueError(f"no month {month}")
    return month


class Place(NamedTuple):
    """A point on the map, in degrees."""

    latitude: float
    longitude: float


def read_place(value: Any) -> Place:
    if isinstance(value, Mapping):
        parts = [_by_prefix(value, "latitude"), _by_prefix(value, "longitude", "lng")]
    elif isinstance(value, list | tuple) and len(value) == 2:
        parts = list(value)
    else:
        match = re.fullmatch(rf"([-+]?{_N})\s*[,; ]\s*([-+]?{_N})", plain(_text(value)))
        if match is None:
            raise ValueError("not a pair of coordinates")
        parts = [match[1], match[2]]
    latitude, longitude = map(read_number, parts)
    if not -90 <= latitude <= 90:
        raise ValueError(f"no latitude: {latitude}")
    return Place(latitude, longitude)


def _by_prefix(value: Mapping[str, Any], word: str, also: str = "") -> Any:
    for key, item in value.items():
        name = str(key).lower()
        if (len(name) >= 2 and word.startswith(name)) or name == also:
            return item
    raise ValueError(f"no {word}")


def read_null(value: Any) -> None:
    is_empty = value in (None, "", [], {}) and not isinstance(value, bool | int | float)
    if not is_empty and plain(_text(value)) not in ("n/a", "na", "nan", "null", "none", ""):
        raise ValueError("not empty")


def read_string(value: Any) -> str:
    return plain(_text(value, most=None))


def _text(value: Any, most: int | None = MAX_LENGTH) -> str:
    if isinstance(value, list | dict) or value is None:
        raise ValueError("not a single value")
    text = value if isinstance(value, str) else str(value)
    if most is not None and len(text) > most:
        raise ValueError(f"longer than {most} characters")
    return text


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


# --- comparing ------------------------------------------------------------------------------------


def _near(absolute: float, relative: float = 0.0) -> Callable[[float, float], bool]:
    # The last term is for rounding: 12.6 - 12.5 is a little more than 0.1.
    return lambda a, b: abs(a - b) <= max(absolute, relative * max(a, b)) + 1e-9


def _same_string(wanted: str, given: str) -> bool:
    return wanted == given or wanted.strip(_ENDS) == given.strip(_ENDS)


def _alike(wanted: str, given: str) -> bool:
    """At least 80% of the letters in common, with the words sorted."""
    first, second = (" ".join(sorted(re.findall(r"\w+", text))) for text in (wanted, given))
    if len(second) > MAX_LENGTH or not (first and second):
        return first == second
    ratio = 200 * common_lines(list(first), list(second)) / (len(first) + len(second))
    return round(ratio) >= 80


def _same_place(wanted: Place, given: Place) -> bool:
    return all(abs(a - b) <= 1e-5 for a, b in zip(wanted, given, strict=True))


def _equal(wanted: Any, given: Any) -> bool:
    return bool(wanted == given)


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "number": (read_number, _equal),
    "integer": (read_number, _equal),
    "currency": (read_money, _near(0.1)),
    "boolean": (read_boolean, _equal),
    "duration": (read_duration, _near(180.0, 0.10)),
    "distance": (read_distance, _near(10.0, 0.02)),
    "date": (read_date, _equal),
    "month": (read_month, _equal),
    "coordinates": (read_place, _same_place),
    "location-name": (read_string, _alike),
    "null": (read_null, _equal),
    "string": (read_string, _same_string),
}
"""Kind -> how a value is read, and when two of them are the same."""


def kind_of(schema: Mapping[str, Any]) -> str:
    """The kind that a schema names; kinds that are not read here are compared as strings."""
    named = str(schema.get("format") or schema.get("type") or "string")
    return named if named in KINDS else "string"


def is_pattern(value: Any) -> bool:
    """Whether a task's reference is a pattern. An answer never is one."""
    return isinstance(value, str) and len(value) > 1 and value[0] == "^" and value[-1] == "$"


def same_scalar(wanted: Any, given: Any, schema: Mapping[str, Any]) -> bool:
    """Whether an answer's value is the task's. ValueError if the task's cannot be read."""
    kind = kind_of(schema)
    read, same = KINDS[kind]
    if is_pattern(wanted):
        shown = _string_or_none(given)
        return shown is not None and fits(wanted, shown, whole=True, any_case=True)
    reference = read(wanted)
    try:
        answer = read(given)
    except (ValueError, OverflowError, TypeError):
        return False  # the answer is not a value of this kind
    return same(reference, answer)


def _string_or_none(value: Any) -> str | None:
    try:
        return plain(_text(value))
    except ValueError:
        return None
