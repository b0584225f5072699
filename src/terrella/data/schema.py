"""Episodes as table rows and back: one row per transition, with the episode's columns repeated.

An episode without a transition is one row with step -1. Each row is complete (it has the
observation before and after), so any Parquet reader can use a store. Frames are in binary columns
beside the text columns. Text written by a model may contain lone surrogates, which UTF-8 cannot
encode: see `escape`.
    table = episodes_to_table(episodes, first=0)
    assert table_to_episodes(table) == list(episodes)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from terrella.core.errors import StoreError
from terrella.core.types import (
    Episode,
    Frames,
    Kind,
    Observation,
    Split,
    State,
    Status,
    Stop,
    Text,
    Transition,
    Tree,
    Verdict,
    canonical_json,
)
from terrella.core.untrusted import parse_json

VERSION = 2
"""Increased whenever a column changes its name, type or meaning, or a store its manifest."""
COLLECT_AGAIN = "collect the episodes again, or get them again from their publisher"

EPISODE_FIELDS = (
    pa.field("world", pa.string()),
    pa.field("policy", pa.string()),
    pa.field("instance", pa.string()),
    pa.field("split", pa.string()),
    pa.field("seed", pa.int64()),
    pa.field("noise_seed", pa.int64()),
    pa.field("stop", pa.string()),
    pa.field("outcome", pa.float64()),  # null when masked, so that no mean includes it
    pa.field("outcome_status", pa.string()),
    pa.field("outcome_evidence", pa.string()),
    pa.field("outcome_parts", pa.string()),  # JSON
    pa.field("error", pa.string()),
)
BEFORE_FIELDS = (
    pa.field("kind", pa.string()),
    pa.field("observation", pa.string()),
    pa.field("frames", pa.large_binary()),
    pa.field("shape", pa.list_(pa.int32())),
)
NEXT_FIELDS = tuple(field.with_name(f"next_{field.name}") for field in BEFORE_FIELDS)
STEP_FIELDS = (
    pa.field("action", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("terminated", pa.bool_()),
    pa.field("truncated", pa.bool_()),
    pa.field("info", pa.string()),  # JSON
)
INDEX_FIELDS = (pa.field("episode", pa.int64()), pa.field("step", pa.int32()))
EPISODE_COLUMNS = tuple(field.name for field in EPISODE_FIELDS)
SCHEMA = pa.schema([*INDEX_FIELDS, *BEFORE_FIELDS, *STEP_FIELDS, *NEXT_FIELDS, *EPISODE_FIELDS])

_TEXT_KINDS: dict[str, type[Text] | type[State] | type[Tree]] = {
    Kind.TEXT: Text,
    Kind.STATE: State,
    Kind.TREE: Tree,
}

ESCAPE = "\x1a"
"""The control character SUB ("substitute").

It is followed by the four hex digits of a lone surrogate, or by another SUB for a literal one.
"""
_TO_ESCAPE = re.compile("[\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a(\x1a|d[89a-f][0-9a-f]{2})")


def escape(text: str) -> str:
    """Make a text encodable as UTF-8, without loss.

    A lone surrogate becomes SUB and its hex digits, a SUB becomes two.
    """
    return _TO_ESCAPE.sub(
        lambda m: ESCAPE + (ESCAPE if m[0] == ESCAPE else f"{ord(m[0]):04x}"), text
    )


def unescape(text: str) -> str:
    """Inverse of `escape`."""
    return _ESCAPED.sub(lambda m: ESCAPE if m[1] == ESCAPE else chr(int(m[1], 16)), text)


# --- episodes -> rows -----------------------------------------------------------------------------


def episodes_to_table(episodes: Sequence[Episode], first: int) -> pa.Table:
    """Rows of consecutive episodes; `first` is the index of the first one."""
    for episode in episodes:
        if episode.transitions and episode.transitions[0].observation != episode.first:
            raise StoreError(
                f"{episode.world} seed {episode.seed}",
                "the first transition does not begin with the observation `first`",
            )
    lengths = [len(episode.transitions) or 1 for episode in episodes]
    owner = np.repeat(np.arange(len(episodes)), lengths)
    steps = [step for episode in episodes for step in (episode.transitions or (None,))]
    columns = {"episode": pa.array(owner + first, pa.int64()), "step": _step_numbers(episodes)}
    columns |= _observation_columns(BEFORE_FIELDS, _observations_before(episodes))
    columns |= _step_columns(steps)
    _check_rewards(columns["reward"], "use plain, finite values")
    after = [None if step is None else step.next_observation for step in steps]
    columns |= _observation_columns(NEXT_FIELDS, after)
    for name, column in _episode_columns(episodes).items():
        columns[name] = column.take(pa.array(owner))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _step_numbers(episodes: Sequence[Episode]) -> pa.Array:
    numbers: list[int] = []
    for episode in episodes:
        numbers += range(len(episode.transitions)) if episode.transitions else (-1,)
    return pa.array(numbers, pa.int32())


def _observations_before(episodes: Sequence[Episode]) -> list[Observation]:
    before: list[Observation] = []
    for episode in episodes:
        before += [step.observation for step in episode.transitions] or [episode.first]
    return before


def _observation_columns(
    fields: Sequence[pa.Field], observations: Sequence[Observation | None]
) -> dict[str, pa.Array]:
    frames = [item if isinstance(item, Frames) else None for item in observations]
    values: tuple[list[Any], ...] = (
        [None if item is None else item.kind for item in observations],
        [None if item is None or isinstance(item, Frames) else item.text for item in observations],
        [None if item is None else item.data for item in frames],
        [None if item is None else item.shape for item in frames],
    )
    return {
        field.name: _column(field, column) for field, column in zip(fields, values, strict=True)
    }


def _step_columns(steps: Sequence[Transition | None]) -> dict[str, pa.Array]:
    values: tuple[list[Any], ...] = (
        [None if step is None else step.action for step in steps],
        [None if step is None else step.reward for step in steps],
        [None if step is None else step.terminated for step in steps],
        [None if step is None else step.truncated for step in steps],
        [None if step is None else _json("info", step.info) for step in steps],
    )
    return {
        field.name: _column(field, column)
        for field, column in zip(STEP_FIELDS, values, strict=True)
    }


def _episode_columns(episodes: Sequence[Episode]) -> dict[str, pa.Array]:
    def of(read: Callable[[Episode], Any]) -> list[Any]:
        return [read(episode) for episode in episodes]

    values = (
        of(lambda e: e.world),
        of(lambda e: e.policy),
        of(lambda e: e.instance),
        of(lambda e: e.split),
        of(lambda e: e.seed),
        of(lambda e: e.noise_seed),
        of(lambda e: e.stop),
        of(lambda e: e.outcome.value),
        of(lambda e: e.outcome.status),
        of(lambda e: e.outcome.evidence),
        of(lambda e: _json("outcome.parts", dict(e.outcome.parts))),
        of(lambda e: e.error),
    )
    return {
        field.name: _column(field, column)
        for field, column in zip(EPISODE_FIELDS, values, strict=True)
    }


def _json(where: str, value: Any) -> str:
    try:
        return canonical_json(value)
    except (TypeError, ValueError) as error:
        raise StoreError(
            where, f"cannot be written as JSON: {error}", "use plain, finite values"
        ) from error


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        column = pa.array(values, field.type)
    except UnicodeEncodeError:
        return _escaped(values)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise StoreError(field.name, f"cannot be stored as {field.type}: {error}") from error
    return _escaped(values) if _has_escapes(column) else column


def _escaped(values: Sequence[str | None]) -> pa.Array:
    return pa.array([None if value is None else escape(value) for value in values], pa.string())


def _has_escapes(column: pa.Array | pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc  # slow to import, and read by every command

    return bool(
        pa.types.is_string(column.type) and pc.any(pc.match_substring(column, ESCAPE)).as_py()
    )


def _check_rewards(column: pa.Array | pa.ChunkedArray, remedy: str) -> None:
    """NaN and infinity would spread through returns, statistics and training texts."""
    import pyarrow.compute as pc

    if not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise StoreError("reward", "is not a finite number in some step", remedy)


# --- rows -> episodes -----------------------------------------------------------------------------


def table_to_episodes(table: pa.Table) -> list[Episode]:
    """Inverse of `episodes_to_table`; a StoreError for rows that are not whole episodes."""
    _check_rows(table)
    step_numbers = table["step"].to_numpy()
    starts = np.flatnonzero(step_numbers <= 0)
    ends = [*starts[1:].tolist(), table.num_rows]
    # Equal observations become one object: consecutive transitions share one anyway.
    shared: dict[Any, Observation] = {}
    before = _observations(table, BEFORE_FIELDS, shared)
    after = _observations(table, NEXT_FIELDS, shared)
    steps = _transitions(table, before, after)
    owners = table.select(list(EPISODE_COLUMNS)).take(pa.array(starts))
    columns = [_values(owners[name]) for name in EPISODE_COLUMNS]
    return [
        _episode(row, before[start], tuple(steps[start:end]) if step_numbers[start] == 0 else ())
        for row, start, end in zip(zip(*columns, strict=True), starts.tolist(), ends, strict=True)
    ]


def _check_rows(table: pa.Table) -> None:
    """Refuse rows that `episodes_to_table` never writes; a file may come from anybody."""
    _check_rewards(table["reward"], COLLECT_AGAIN)
    for name in ("step", "kind", *EPISODE_COLUMNS):
        if name != "outcome" and table[name].null_count:  # a masked outcome is null
            raise StoreError(name, "has no value in some row", COLLECT_AGAIN)
    steps = table["step"].to_numpy()
    follows = np.concatenate([[False], (steps[1:] == steps[:-1] + 1) & (steps[:-1] >= 0)])
    if not ((steps == 0) | (steps == -1) | follows).all():
        raise StoreError("step", "does not count the steps of whole episodes", COLLECT_AGAIN)
    changes = np.diff(table["episode"].to_numpy()) != 0
    if not np.array_equal(changes, steps[1:] <= 0):
        raise StoreError("episode", "is not one number for each episode", COLLECT_AGAIN)
    for name in (*(field.name for field in STEP_FIELDS), "next_kind"):
        if not np.array_equal(table[name].is_valid().to_numpy(), steps >= 0):
            raise StoreError(
                name, "has no value in some step, or one without a step", COLLECT_AGAIN
            )


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not _has_escapes(column):
        return values
    return [None if value is None else unescape(value) for value in values]


def _observations(
    table: pa.Table, fields: Sequence[pa.Field], shared: dict[Any, Observation]
) -> list[Any]:
    columns = [_values(table[field.name]) for field in fields]
    return [_observation(shared, *row) for row in zip(*columns, strict=True)]


def _observation(
    shared: dict[Any, Observation],
    kind: str | None,
    text: str | None,
    frames: bytes | None,
    shape: list[int] | None,
) -> Observation | None:
    if kind is None:
        return None
    key = (kind, text, frames)
    observation = shared.get(key)
    if observation is None or (
        shape and isinstance(observation, Frames) and list(observation.shape) != shape
    ):
        observation = shared[key] = _new_observation(kind, text, frames, shape)
    return observation


def _new_observation(
    kind: str, text: str | None, frames: bytes | None, shape: list[int] | None
) -> Observation:
    if kind != Kind.FRAMES and text is not None:
        return _TEXT_KINDS[kind](text)
    if frames is None or shape is None:
        raise ValueError(f"a {kind} observation without content")
    t, h, w, c = shape
    return Frames(frames, (t, h, w, c))


def _transitions(
    table: pa.Table, before: Iterable[Any], after: Iterable[Any]
) -> list[Transition | None]:
    columns = [_values(table[field.name]) for field in STEP_FIELDS]
    steps: list[Transition | None] = []
    for observation, next_observation, row in zip(
        before, after, zip(*columns, strict=True), strict=True
    ):
        action, reward, terminated, truncated, info = row
        if action is None:
            steps.append(None)
            continue
        steps.append(
            Transition(
                observation=observation,
                action=action,
                next_observation=next_observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=_record("info", info),
            )
        )
    return steps


def _record(name: str, text: str) -> dict[str, Any]:
    value = parse_json(text, name, COLLECT_AGAIN, surrogates=True)
    if not isinstance(value, dict):
        raise StoreError(name, f"holds no JSON object: {text[:200]!r}", COLLECT_AGAIN)
    return value


def _episode(row: Sequence[Any], first: Observation, transitions: tuple[Any, ...]) -> Episode:
    values = dict(zip(EPISODE_COLUMNS, row, strict=True))
    outcome = Verdict(
        value=values["outcome"],
        parts=_record("outcome_parts", values["outcome_parts"]),
        status=Status(values["outcome_status"]),
        evidence=values["outcome_evidence"],
    )
    return Episode(
        world=values["world"],
        policy=values["policy"],
        instance=values["instance"],
        split=Split(values["split"]),
        seed=values["seed"],
        noise_seed=values["noise_seed"],
        first=first,
        transitions=transitions,
        stop=Stop(values["stop"]),
        outcome=outcome,
        error=values["error"],
    )
