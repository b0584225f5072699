"""How episodes become rows and come back: one row per transition, the episode's own columns repeated on each.

An episode without a transition is one row with step -1. Rows can be read alone (each holds what was seen before and
after), so any Parquet reader can use a store. Frames go to binary columns beside the text ones.
    table = episodes_to_table(episodes, first=0); assert table_to_episodes(table) == list(episodes)
Text may hold lone surrogates (a model wrote it), which UTF-8 cannot: see `escape`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

VERSION = 1
"""Raised whenever a column changes its name, type or meaning."""

EPISODE_FIELDS = (
    pa.field("world", pa.string()), pa.field("policy", pa.string()), pa.field("instance", pa.string()),
    pa.field("split", pa.string()), pa.field("seed", pa.int64()), pa.field("noise_seed", pa.int64()),
    pa.field("stop", pa.string()),
    pa.field("outcome", pa.float64()),  # null when masked, so that no mean can swallow it
    pa.field("outcome_status", pa.string()), pa.field("outcome_evidence", pa.string()),
    pa.field("outcome_parts", pa.string()),  # JSON
    pa.field("error", pa.string()),
)  # fmt: skip
SEEN_FIELDS = (
    pa.field("kind", pa.string()), pa.field("observation", pa.string()),
    pa.field("frames", pa.large_binary()), pa.field("shape", pa.list_(pa.int32())),
)  # fmt: skip
NEXT_FIELDS = tuple(field.with_name(f"next_{field.name}") for field in SEEN_FIELDS)
STEP_FIELDS = (
    pa.field("action", pa.string()), pa.field("reward", pa.float64()), pa.field("terminated", pa.bool_()),
    pa.field("truncated", pa.bool_()), pa.field("info", pa.string()),  # JSON
)  # fmt: skip
PLACE_FIELDS = (pa.field("episode", pa.int64()), pa.field("step", pa.int32()))
SCHEMA = pa.schema([*PLACE_FIELDS, *SEEN_FIELDS, *STEP_FIELDS, *NEXT_FIELDS, *EPISODE_FIELDS])

_RECORDS: dict[str, type[Text] | type[State] | type[Tree]] = {
    Kind.TEXT: Text, Kind.STATE: State, Kind.TREE: Tree,
}  # fmt: skip

ESCAPE = "\x1a"
"""The control character named 'substitute'. It stands before the four hex digits of a lone surrogate, or doubled."""
_TO_ESCAPE = re.compile("[\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a(\x1a|d[89a-f][0-9a-f]{2})")


def escape(text: str) -> str:
    """Text that UTF-8 can hold, without loss: a lone surrogate becomes SUB + its hex, a SUB becomes two."""
    return _TO_ESCAPE.sub(lambda m: ESCAPE + (ESCAPE if m[0] == ESCAPE else f"{ord(m[0]):04x}"), text)


def unescape(text: str) -> str:
    """The text that was escaped."""
    return _ESCAPED.sub(lambda m: ESCAPE if m[1] == ESCAPE else chr(int(m[1], 16)), text)


# --- episodes -> rows -------------------------------------------------------------------------------------------


def episodes_to_table(episodes: Sequence[Episode], first: int) -> pa.Table:
    """The rows of consecutive episodes, the first of which has the index `first`."""
    for episode in episodes:
        if episode.transitions and episode.transitions[0].observation != episode.first:
            raise StoreError(f"{episode.world} seed {episode.seed}", "the first transition does not begin at `first`")
    lengths = [len(episode.transitions) or 1 for episode in episodes]
    owner = np.repeat(np.arange(len(episodes)), lengths)
    steps = [step for episode in episodes for step in (episode.transitions or (None,))]
    columns = {"episode": pa.array(owner + first, pa.int64()), "step": _step_numbers(episodes)}
    columns |= _observation_columns(SEEN_FIELDS, _seen(episodes))
    columns |= _step_columns(steps)
    columns |= _observation_columns(NEXT_FIELDS, [None if step is None else step.next_observation for step in steps])
    columns |= {name: column.take(pa.array(owner)) for name, column in _episode_columns(episodes).items()}
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _step_numbers(episodes: Sequence[Episode]) -> pa.Array:
    numbers = (range(len(episode.transitions)) if episode.transitions else (-1,) for episode in episodes)
    return pa.array([number for few in numbers for number in few], pa.int32())


def _seen(episodes: Sequence[Episode]) -> list[Observation]:
    seen: list[Observation] = []
    for episode in episodes:
        seen += [step.observation for step in episode.transitions] or [episode.first]
    return seen


def _observation_columns(fields: Sequence[pa.Field], seen: Sequence[Observation | None]) -> dict[str, pa.Array]:
    frames = [one if isinstance(one, Frames) else None for one in seen]
    values: tuple[list[Any], ...] = (
        [None if one is None else one.kind for one in seen],
        [None if one is None or isinstance(one, Frames) else one.text for one in seen],
        [None if one is None else one.data for one in frames],
        [None if one is None else one.shape for one in frames],
    )
    return {field.name: _column(field, column) for field, column in zip(fields, values, strict=True)}


def _step_columns(steps: Sequence[Transition | None]) -> dict[str, pa.Array]:
    values: tuple[list[Any], ...] = (
        [None if step is None else step.action for step in steps],
        [None if step is None else step.reward for step in steps],
        [None if step is None else step.terminated for step in steps],
        [None if step is None else step.truncated for step in steps],
        [None if step is None else _json("info", step.info) for step in steps],
    )
    return {field.name: _column(field, column) for field, column in zip(STEP_FIELDS, values, strict=True)}


def _episode_columns(episodes: Sequence[Episode]) -> dict[str, pa.Array]:
    def of(read: Callable[[Episode], Any]) -> list[Any]:
        return [read(episode) for episode in episodes]

    values = (
        of(lambda e: e.world), of(lambda e: e.policy), of(lambda e: e.instance), of(lambda e: e.split),
        of(lambda e: e.seed), of(lambda e: e.noise_seed), of(lambda e: e.stop), of(lambda e: e.outcome.value),
        of(lambda e: e.outcome.status), of(lambda e: e.outcome.evidence),
        of(lambda e: _json("outcome.parts", dict(e.outcome.parts))), of(lambda e: e.error),
    )  # fmt: skip
    return {field.name: _column(field, column) for field, column in zip(EPISODE_FIELDS, values, strict=True)}


def _json(where: str, value: Any) -> str:
    try:
        return canonical_json(value)
    except (TypeError, ValueError) as error:
        raise StoreError(where, f"cannot be written as JSON: {error}", "use plain, finite values") from error


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
    return bool(pa.types.is_string(column.type) and pc.any(pc.match_substring(column, ESCAPE)).as_py())


# --- rows -> episodes -------------------------------------------------------------------------------------------


def table_to_episodes(table: pa.Table) -> list[Episode]:
    """The episodes of whole-episode rows, in order."""
    step_numbers = table["step"].to_numpy()
    starts = np.flatnonzero(step_numbers <= 0)
    ends = [*starts[1:].tolist(), table.num_rows]
    shared: dict[Any, Observation] = {}  # equal observations become one object: a chain holds each of them twice
    before = _observations(table, SEEN_FIELDS, shared)
    after = _observations(table, NEXT_FIELDS, shared)
    steps = _transitions(table, before, after)
    owners = table.select([field.name for field in EPISODE_FIELDS]).take(pa.array(starts))
    columns = [_values(owners[field.name]) for field in EPISODE_FIELDS]
    return [
        _episode(row, before[start], tuple(steps[start:end]) if step_numbers[start] == 0 else ())
        for row, start, end in zip(zip(*columns, strict=True), starts.tolist(), ends, strict=True)
    ]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    return [None if value is None else unescape(value) for value in values] if _has_escapes(column) else values


def _observations(table: pa.Table, fields: Sequence[pa.Field], shared: dict[Any, Observation]) -> list[Any]:
    columns = [_values(table[field.name]) for field in fields]
    return [_observation(shared, *row) for row in zip(*columns, strict=True)]


def _observation(
    shared: dict[Any, Observation], kind: str | None, text: str | None, frames: bytes | None, shape: list[int] | None
) -> Observation | None:
    if kind is None:
        return None
    key = (kind, text, frames)
    found = shared.get(key)
    if found is None or (shape and isinstance(found, Frames) and list(found.shape) != shape):
        found = shared[key] = _new_observation(kind, text, frames, shape)
    return found


def _new_observation(kind: str, text: str | None, frames: bytes | None, shape: list[int] | None) -> Observation:
    if kind != Kind.FRAMES and text is not None:
        return _RECORDS[kind](text)
    if frames is None or shape is None:
        raise ValueError(f"a {kind} observation without content")
    t, h, w, c = shape
    return Frames(frames, (t, h, w, c))


def _transitions(table: pa.Table, before: Iterable[Any], after: Iterable[Any]) -> list[Transition | None]:
    actions, rewards, ended, cut, infos = (_values(table[field.name]) for field in STEP_FIELDS)
    rows = zip(before, actions, after, rewards, ended, cut, infos, strict=True)
    return [
        None if action is None else Transition(
            observation=seen, action=action, next_observation=then, reward=reward,
            terminated=terminated, truncated=truncated, info=json.loads(info),
        )
        for seen, action, then, reward, terminated, truncated, info in rows
    ]  # fmt: skip


def _episode(row: Sequence[Any], first: Observation, transitions: tuple[Any, ...]) -> Episode:
    world, policy, instance, split, seed, noise_seed, stop, value, status, evidence, parts, error = row
    outcome = Verdict(value=value, parts=json.loads(parts), status=Status(status), evidence=evidence)
    return Episode(
        world=world, policy=policy, instance=instance, split=Split(split), seed=seed, noise_seed=noise_seed,
        first=first, transitions=transitions, stop=Stop(stop), outcome=outcome, error=error,
    )  # fmt: skip
