"""The evaluators of WebArena-Verified: the agent's structured answer and its browser's requests.

An answer is JSON: {"task_type": ..., "status": ..., "retrieved_data": ...}. Its values are compared
by the task's schema (`values.py`). Requests are compared by address, method, parameters and status.
    judge_verified(task.evaluators, answer, url, events, resolve)
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
from terrella.worlds.webarena.patterns import fits
from terrella.worlds.webarena.values import kind_of, same_scalar

MAX_ANSWER_LENGTH = 100_000
FENCE = "```"

Resolve = Callable[[str], str]
"""Fills in the placeholders of an address."""


def judge_verified(
    evaluators: Sequence[Mapping[str, Any]],
    answer: str,
    url: str,
    events: Sequence[NetworkEvent],
    resolve: Resolve,
) -> float:
    """1 when the episode satisfies every evaluator of the task."""
    requests = list(events) or [NetworkEvent(url=url, status=200)]
    for evaluator in evaluators:
        if evaluator["evaluator"] == "AgentResponseEvaluator":
            passed = answer_fits(evaluator, answer)
        else:
            passed = event_fits(evaluator, requests, resolve)
        if not passed:
            return 0.0
    return 1.0


# --- the answer -----------------------------------------------------------------------------------


def answer_fits(evaluator: Mapping[str, Any], answer: str) -> bool:
    """Whether the structured answer is the expected one."""
    reply = _read_answer(answer)
    if not isinstance(reply, dict):
        return False
    expected = evaluator["expected"]
    kind = reply.get("task_type", reply.get("performed_operation"))
    if not _is_word(reply.get("status"), expected["status"]):
        return False
    if not _is_word(kind, expected["task_type"]):
        return False
    if expected["task_type"].lower() != "retrieve":
        return True  # only tasks that retrieve something are judged by their data
    wanted, given = expected.get("retrieved_data"), reply.get("retrieved_data")
    if wanted is None:
        return given in (None, [], "", {}) and not isinstance(given, bool | int | float)
    schema = evaluator["results_schema"].get("items", {})
    given = given if isinstance(given, list) else [given]
    return _same_list(wanted, given, schema, bool(evaluator.get("ordered", False)))


def _read_answer(answer: str) -> Any:
    """The JSON of an answer, alone or in one code fence; None for any other text."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return None
    text = answer.strip()
    if len(text) >= 2 * len(FENCE) and text.startswith(FENCE) and text.endswith(FENCE):
        text = text[len(FENCE) : -len(FENCE)].removeprefix("json").strip()
    return _json(text)


def _is_word(given: Any, wanted: str) -> bool:
    return isinstance(given, str) and given.strip().casefold() == wanted.casefold()


def _same_list(
    wanted: Sequence[Any], given: Sequence[Any], schema: Mapping[str, Any], ordered: bool
) -> bool:
    if len(wanted) != len(given):
        return False
    if ordered:
        return all(same_value(w, g, schema) for w, g in zip(wanted, given, strict=True))
    unmatched = list(given)
    for value in wanted:
        match = next((i for i, g in enumerate(unmatched) if same_value(value, g, schema)), None)
        if match is None:
            return False
        del unmatched[match]
    return True


def same_value(wanted: Any, given: Any, schema: Mapping[str, Any]) -> bool:
    """Whether two values are equal under the schema.

    A list in the task, in place of a single value, lists alternatives. In an answer it does not.
    """
    if wanted is None or given is None:
        return wanted is None and given is None
    if isinstance(wanted, Mapping) and kind_of(schema) != "coordinates":
        kinds = schema.get("properties", {})
        return (
            isinstance(given, Mapping)
            and wanted.keys() == given.keys()
            and all(same_value(wanted[key], given[key], kinds.get(key, {})) for key in wanted)
        )
    if isinstance(wanted, list):
        if schema.get("type") == "array":
            items = schema.get("items", {})
            return isinstance(given, list) and _same_list(wanted, given, items, False)
        return any(same_value(alternative, given, schema) for alternative in wanted)
    return same_scalar(wanted, given, schema)


# --- the requests ---------------------------------------------------------------------------------


def event_fits(
    evaluator: Mapping[str, Any], events: Sequence[NetworkEvent], resolve: Resolve
) -> bool:
    """Whether the expected request was sent (or was not, for `should_not_exist`).

    With `last_event_only` only the last request counts.
    """
    chosen = events[-1:] if evaluator.get("last_event_only") else events
    exists = any(_is_expected(evaluator, event, resolve) for event in chosen)
    return not exists if evaluator.get("should_not_exist") else exists


def _is_expected(evaluator: Mapping[str, Any], event: NetworkEvent, resolve: Resolve) -> bool:
    expected = evaluator["expected"]
    urls = expected["url"] if isinstance(expected["url"], list) else [expected["url"]]
    if not any(_same_url(url, evaluator, event, resolve) for url in urls):
        return False
    if event.method != expected.get("http_method", event.method):
        return False
    if event.status and event.status != expected.get("response_status", event.status):
        return False
    headers = {key.lower(): value for key, value in event.headers.items()}
    wanted_headers = expected.get("headers", {})
    wanted_cookies = expected.get("response_cookies", {})
    checks = [
        all(_text_fits(resolve(v), headers.get(k.lower(), "")) for k, v in wanted_headers.items()),
        _holds_all(expected.get("post_data", {}), _fields(event.post_data)),
        _holds_all(expected.get("response_content", {}), _json(event.content)),
        all(_text_fits(v, unquote(event.cookies.get(k, ""))) for k, v in wanted_cookies.items()),
    ]
    return all(checks)


def _same_url(
    url: str, evaluator: Mapping[str, Any], event: NetworkEvent, resolve: Resolve
) -> bool:
    wanted = resolve(url)
    query = _query(event.url, evaluator)
    if wanted.startswith("^"):
        if not fits(wanted, event.url) and not fits(wanted, event.url.split("?")[0]):
            return False
        return _query_fits(evaluator["expected"].get("query_params", {}), query, exact=False)
    expected, actual = urlsplit(wanted), urlsplit(event.url)
    if expected.netloc != actual.netloc or expected.path.rstrip("/") != actual.path.rstrip("/"):
        return False
    params = {**_query(wanted, evaluator), **evaluator["expected"].get("query_params", {})}
    return _query_fits(params, query, exact=event.method == "GET")


def _query(url: str, evaluator: Mapping[str, Any]) -> dict[str, list[str]]:
    """The parameters of an address, without those that the task ignores."""
    text = urlsplit(url).query
    if evaluator.get("decode_base64_query"):
        text = _decoded(url) or text
    ignored = set(evaluator.get("ignored_query_params", ()))
    patterns = evaluator.get("ignored_query_params_patterns", ())
    query = {}
    for name, values in parse_qs(text, keep_blank_values=True).items():
        if name not in ignored and not any(fits(pattern, name) for pattern in patterns):
            query[name] = values
    return query


def _decoded(url: str) -> str:
    """Parameters that are base64-encoded in the path, as in the shop's back office."""
    for part in reversed(urlsplit(url).path.split("/")):
        try:
            text = base64.b64decode(unquote(part) + "=" * (-len(part) % 4), validate=True).decode()
        except (binascii.Error, ValueError):
            continue  # not base64: an ordinary part of the path
        if "=" in text:
            return text
    return ""


def _query_fits(wanted: Mapping[str, Any], query: Mapping[str, list[str]], *, exact: bool) -> bool:
    if exact and set(query) - set(wanted):
        return False
    for key, expected in wanted.items():
        values = query.get(key, [])
        if not all(any(_text_fits(str(text), value) for value in values) for text in expected):
            return False
    return True


def _fields(data: str) -> Any:
    """A request's body: JSON, or the fields of a form."""
    parsed = _json(data)
    if parsed is not None:
        return parsed
    return {key: values[-1] for key, values in parse_qs(data, keep_blank_values=True).items()}


def _json(text: str) -> Any:
    """The value of an untrusted JSON text; None for any other text, however deeply nested."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _holds_all(wanted: Mapping[str, Any], body: Any) -> bool:
    return all(_holds(key, value, body) for key, value in wanted.items())


def _holds(key: str, value: Any, body: Any) -> bool:
    """Whether a body holds a value under a key or a path such as `$.items[0].name`.

    A part of the path may be a pattern: `^...$`.
    """
    parts = re.findall(r"\^[^$]*\$|[^.\[\]]+", key[2:]) if key.startswith("$.") else [key]
    current = body
    for part in parts:
        if isinstance(current, list) and part.isdigit() and int(part) < len(current):
            current = current[int(part)]
        elif isinstance(current, Mapping):
            names = [name for name in current if name == part or _is_match(part, name)]
            current = current[names[0]] if names else None
        else:
            return value is None
    if isinstance(value, str) and isinstance(current, str | int | float):
        return _text_fits(value, str(current))
    if isinstance(value, int | float) and isinstance(current, str):
        return same_scalar(value, current, {"type": "number"})
    return bool(current == value)


def _is_match(pattern: str, name: str) -> bool:
    return pattern.startswith("^") and fits(pattern, name)


def _text_fits(wanted: str, text: str) -> bool:
    return fits(wanted, text) if wanted.startswith("^") else wanted == text
