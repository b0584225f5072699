"""The evaluators of WebArena-Verified: the agent's structured answer, and what its browser sent.

An answer is JSON: {"task_type": ..., "status": ..., "retrieved_data": ...}; values are compared by the task's schema
(numbers, money, dates, durations, plain text). Requests are compared by address, method, parameters and status.
    judge_verified(task.evaluators, answer, url, events, place)
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from terrella.browser.events import NetworkEvent

LONGEST_ANSWER = 100_000


Place = Callable[[str], str]


def judge_verified(
    evaluators: Sequence[Mapping[str, Any]], answer: str, url: str, events: Sequence[NetworkEvent], place: Place
) -> float:
    """1 when every evaluator of the task is satisfied."""
    seen = [*events, NetworkEvent(url=url, status=200)] if not events else list(events)
    for one in evaluators:
        if one["evaluator"] == "AgentResponseEvaluator":
            right = answer_fits(one, answer)
        else:
            right = event_fits(one, seen, place)
        if not right:
            return 0.0
    return 1.0


# --- the answer ---------------------------------------------------------------------------------------------------


def answer_fits(evaluator: Mapping[str, Any], answer: str) -> bool:
    """Whether the structured answer is the expected one."""
    try:
        told = json.loads(answer) if len(answer) <= LONGEST_ANSWER else None
    except ValueError:
        return False
    if not isinstance(told, dict):
        return False
    expected = evaluator["expected"]
    if str(told.get("status", "")).upper() != expected["status"]:
        return False
    if str(told.get("task_type", "")).lower() != expected["task_type"]:
        return False
    wanted, given = expected.get("retrieved_data"), told.get("retrieved_data")
    if expected["status"] != "SUCCESS" or wanted is None:
        return given in (None, [], "")
    schema = evaluator["results_schema"].get("items", {})
    given = given if isinstance(given, list) else [given]
    return _same_list(wanted, given, schema, bool(evaluator.get("ordered", False)))


def _same_list(wanted: Sequence[Any], given: Sequence[Any], schema: Mapping[str, Any], ordered: bool) -> bool:
    if len(wanted) != len(given):
        return False
    if ordered:
        return all(same_value(w, g, schema) for w, g in zip(wanted, given, strict=True))
    left = list(given)
    for value in wanted:
        place = next((i for i, other in enumerate(left) if same_value(value, other, schema)), None)
        if place is None:
            return False
        del left[place]
    return True


def same_value(wanted: Any, given: Any, schema: Mapping[str, Any]) -> bool:
    """Equality in the sense of the schema; a list where one value is expected holds alternatives."""
    if isinstance(wanted, Mapping):
        kinds = schema.get("properties", {})
        return isinstance(given, Mapping) and all(
            same_value(v, given.get(k), kinds.get(k, {})) for k, v in wanted.items()
        )
    if isinstance(wanted, list):
        if schema.get("type") == "array":
            return isinstance(given, list) and _same_list(wanted, given, schema.get("items", {}), False)
        return any(same_value(one, given, schema) for one in wanted)
    return bool(normal(wanted, schema) == normal(given, schema))


def normal(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value in the form in which it is compared."""
    if schema.get("type") == "number" or schema.get("format") == "currency":
        found = re.search(r"-?\d+(?:\.\d+)?", str(value).replace(",", ""))
        return float(found.group()) if found else str(value)
    if schema.get("type") == "boolean":
        return str(value).strip().lower() in ("true", "yes", "1")
    if schema.get("format") in ("duration", "distance"):
        return _amount(str(value))
    return " ".join(re.sub(r"[^\w.%$€£/:+-]+", " ", str(value).casefold()).split())


def _amount(text: str) -> Any:
    """Minutes or metres, from the ways people write them; the text itself when there is no number."""
    clock = re.fullmatch(r"\s*(\d+):(\d{2})(?::\d{2})?\s*(h|hours?)?\s*", text)
    if clock:
        return float(60 * int(clock[1]) + int(clock[2]))
    scale = {"h": 60.0, "d": 1440.0, "s": 1 / 60, "km": 1000.0, "mi": 1609.344}
    total, found = 0.0, False
    for number, unit in re.findall(r"(-?\d+(?:\.\d+)?)\s*(km|mi(?!n)|[a-z])?", text.lower().replace(",", "")):
        total, found = total + float(number) * scale.get(unit, 1.0), True
    return round(total, 3) if found else text.strip().casefold()


# --- what the browser sent ----------------------------------------------------------------------------------------


def event_fits(evaluator: Mapping[str, Any], events: Sequence[NetworkEvent], place: Place) -> bool:
    """Whether some request (or the last one) is the expected one; or none, where none is wanted."""
    chosen = events[-1:] if evaluator.get("last_event_only") else events
    found = any(_is_expected(evaluator, event, place) for event in chosen)
    return not found if evaluator.get("should_not_exist") else found


def _is_expected(evaluator: Mapping[str, Any], event: NetworkEvent, place: Place) -> bool:
    expected = evaluator["expected"]
    urls = expected["url"] if isinstance(expected["url"], list) else [expected["url"]]
    if not any(_same_url(url, evaluator, event, place) for url in urls):
        return False
    if event.method != expected.get("http_method", event.method):
        return False
    if event.status and event.status != expected.get("response_status", event.status):
        return False
    headers = {key.lower(): value for key, value in event.headers.items()}
    checks = [
        all(_text_fits(place(v), headers.get(k.lower(), "")) for k, v in expected.get("headers", {}).items()),
        _holds_all(expected.get("post_data", {}), _fields(event.post_data)),
        _holds_all(expected.get("response_content", {}), _json(event.content)),
        all(_text_fits(v, unquote(event.cookies.get(k, ""))) for k, v in expected.get("response_cookies", {}).items()),
    ]
    return all(checks)


def _same_url(url: str, evaluator: Mapping[str, Any], event: NetworkEvent, place: Place) -> bool:
    wanted, found = place(url), event.url
    query = _query(found, evaluator)
    if wanted.startswith("^"):
        if not re.search(wanted, found) and not re.search(wanted, found.split("?")[0]):
            return False
        return _query_fits(evaluator["expected"].get("query_params", {}), query, exact=False)
    ours, theirs = urlsplit(wanted), urlsplit(found)
    if (ours.netloc, ours.path.rstrip("/")) != (theirs.netloc, theirs.path.rstrip("/")):
        return False
    params = {**_query(wanted, evaluator), **evaluator["expected"].get("query_params", {})}
    return _query_fits(params, query, exact=event.method == "GET")


def _query(url: str, evaluator: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parameters of an address, without those that the task ignores."""
    text = urlsplit(url).query
    if evaluator.get("decode_base64_query"):
        text = _decoded(url) or text
    patterns = [re.compile(one) for one in evaluator.get("ignored_query_params_patterns", ())]
    names = set(evaluator.get("ignored_query_params", ()))
    found = parse_qs(text, keep_blank_values=True)
    return {k: v for k, v in found.items() if k not in names and not any(one.search(k) for one in patterns)}


def _decoded(url: str) -> str:
    """Parameters that an address hides in base64 (the shop's back office does)."""
    for part in reversed(urlsplit(url).path.split("/")):
        try:
            text = base64.b64decode(unquote(part) + "=" * (-len(part) % 4), validate=True).decode()
        except (binascii.Error, ValueError):
            continue  # not base64: an ordinary part of the path
        if "=" in text:
            return text
    return ""


def _query_fits(wanted: Mapping[str, Any], found: Mapping[str, list[str]], *, exact: bool) -> bool:
    if exact and set(found) - set(wanted):
        return False
    return all(
        any(_text_fits(str(one), value) for value in found.get(key, []))
        for key, values in wanted.items()
        for one in values
    )


def _fields(data: str) -> Any:
    """A request's body: JSON, or the fields of a form."""
    parsed = _json(data)
    return (
        parsed
        if parsed is not None
        else {key: values[-1] for key, values in parse_qs(data, keep_blank_values=True).items()}
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _holds_all(wanted: Mapping[str, Any], found: Any) -> bool:
    return all(_holds(key, value, found) for key, value in wanted.items())


def _holds(key: str, value: Any, found: Any) -> bool:
    """Whether a body holds a value under a key, or under a path such as `$.items[0].name` (parts may be patterns)."""
    parts = re.findall(r"\^[^$]*\$|[^.\[\]]+", key[2:]) if key.startswith("$.") else [key]
    here = found
    for part in parts:
        if isinstance(here, list) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, Mapping):
            here = next(
                (v for k, v in here.items() if k == part or (part.startswith("^") and re.search(part, k))), None
            )
        else:
            return value is None
    if isinstance(value, str) and isinstance(here, str | int | float):
        return _text_fits(value, str(here))
    if isinstance(value, int | float) and isinstance(here, str):
        return bool(normal(here, {"type": "number"}) == float(value))
    return bool(here == value)


def _text_fits(wanted: str, found: str) -> bool:
    return re.search(wanted, found) is not None if wanted.startswith("^") else wanted == found
