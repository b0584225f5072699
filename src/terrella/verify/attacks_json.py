"""Attacks on verifiers of JSON states; None (not applicable) where an observation is not JSON.

Importing this module adds them to `attacks.ATTACKS`.
    ATTACKS["duplicate_keys_truth_last"]('{"n":1}', '{"n":2}', []) == '{"n":1,"n":2}'
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from terrella.core.types import canonical_json
from terrella.verify.attacks import FULL_WIDTH, ZERO_WIDTH_SPACE, attack, read_json


@attack
def not_numbers(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """NaN for every value: `abs(predicted - true) > margin` is then never true."""
    return _with_all_values(truth, float("nan"))


@attack
def infinite_numbers(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """A number that parses as infinity for every value."""
    reply = _with_all_values(truth, float("inf"))
    return reply and reply.replace("Infinity", "1e999")


@attack
def list_of_candidates(before: str, truth: str, candidates: Sequence[str]) -> str:
    """A JSON list of all candidates, as strings where they are not JSON themselves."""
    values = [read_json(text) for text in (before, *candidates)]
    return json.dumps([before, *candidates] if None in values else values, ensure_ascii=False)


@attack
def truth_in_extra_key(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """The input with an extra key that holds the truth."""
    old, new = read_json(before), read_json(truth)
    return json.dumps({**old, "_truth": new}, ensure_ascii=False) if isinstance(old, dict) else None


@attack
def alternatives_in_extra_key(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """The truth with an extra key that holds the input and all candidates."""
    new, values = read_json(truth), [read_json(text) for text in (before, *candidates)]
    return json.dumps({**new, "_or": values}, ensure_ascii=False) if isinstance(new, dict) else None


@attack
def duplicate_keys_truth_last(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """Every key twice, the true value last: most parsers silently keep the last one."""
    return _both_members(before, truth)


@attack
def duplicate_keys_truth_first(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """Every key twice, the true value first: some parsers keep the first one."""
    return _both_members(truth, before)


@attack
def every_version_of_each_value(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """A list of all versions where the candidates differ: its recall is perfect."""
    values = [read_json(text) for text in (before, *candidates)]
    if not all(isinstance(value, dict) for value in values):
        return None
    merged = _merge(values)
    hedged = any(len(versions) > 1 for versions in merged.values())
    reply = {
        key: versions if len(versions) > 1 else versions[0] for key, versions in merged.items()
    }
    return json.dumps(reply, ensure_ascii=False) if hedged else None


@attack
def only_common_properties(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """Only the properties that the input and all candidates agree on."""
    values = [read_json(text) for text in (before, *candidates)]
    if not all(isinstance(value, dict) for value in values):
        return None
    common = {
        key: value
        for key, value in values[0].items()
        if all(_same(other, key, value) for other in values)
    }
    return json.dumps(common, ensure_ascii=False)


@attack
def look_alike_values(before: str, truth: str, candidates: Sequence[str]) -> str | None:
    """Well-formed JSON whose values only look true: invisible characters, full-width digits."""
    value = read_json(truth)
    if not isinstance(value, dict | list):
        return None
    return json.dumps(_disguise(value), ensure_ascii=False)


def _disguise(value: Any) -> Any:
    if isinstance(value, dict) and value:
        return {key: _disguise(item) for key, item in value.items()}
    if isinstance(value, list) and value:
        return [_disguise(item) for item in value]
    if isinstance(value, str):
        return value[:1] + ZERO_WIDTH_SPACE + value[1:]
    return str(value).translate(FULL_WIDTH)


def _with_all_values(truth: str, replacement: float) -> str | None:
    """The JSON object or list with every value replaced; None for any other text."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(item) for key, item in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list) else replacement

    value = read_json(truth)
    if not isinstance(value, dict | list):
        return None
    return json.dumps(replaced(value), ensure_ascii=False)


def _both_members(first: str, second: str) -> str | None:
    """Join `{"n":1}` and `{"n":2}` into `{"n":1,"n":2}`.

    None unless they are objects that contradict each other.
    """
    first_value, second_value = read_json(first), read_json(second)
    if not (isinstance(first_value, dict) and isinstance(second_value, dict)):
        return None
    shared = first_value.keys() & second_value.keys()
    if not any(first_value[key] != second_value[key] for key in shared):
        return None
    return f"{first.strip()[:-1]},{second.strip()[1:]}"


def _merge(values: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """All distinct values of each key, over all objects."""
    merged: dict[str, list[Any]] = {}
    for key, item in ((key, item) for value in values for key, item in value.items()):
        versions = merged.setdefault(key, [])
        if canonical_json(item) not in map(canonical_json, versions):
            versions.append(item)
    return merged


def _same(other: dict[str, Any], key: str, value: Any) -> bool:
    return key in other and canonical_json(other[key]) == canonical_json(value)
