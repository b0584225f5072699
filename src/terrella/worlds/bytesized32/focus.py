"""Select the part of a state that is shown: everything, or only what varies within its game.

Most properties of most objects are the same in every state of a game (a stove is never moveable).
Without them a query takes about seventy tokens instead of four hundred. Names, containers and
varying scores are always shown. `vocabulary` lists the texts that are worth their own tokens.
    focus = Focus(pools)
    before, after = focus.before_and_after(record, "full")
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from terrella.core.types import Split
from terrella.worlds.bytesized32.compact import show_difference, show_state
from terrella.worlds.bytesized32.records import GameState, QueryKind, Record
from terrella.worlds.bytesized32.things import IN, NAME, TYPE, Things, action_text

PER_GAME = 500
PropertySet = set[tuple[str, str]]
"""(object, property) pairs of one game."""
_FRAGMENTS = re.compile(
    r' "?[A-Za-z_][\w.#]*"?=?'  # a property
    r"|[-+][0-9.]+(?= |;|$)"  # an amount
    r'|"(?:[^"\\]|\\.)*"<'  # a name before its container
    r'|:?"(?:[^"\\]|\\.)*"'  # another quoted text, or a type
    r'|#[0-9]+|[\w./-]+|[^\w#"]'
)


class Focus:
    """Selects what is shown of the states of each game."""

    def __init__(
        self, pools: Mapping[Split, Sequence[Record]], *, everything: bool = False
    ) -> None:
        """`everything` turns the selection off.

        What varies is computed from the initial states of all records, but from the answers of
        train records only.
        """
        self.pools = pools
        self.everything = everything
        self._states: dict[int, Things] = {}

    @functools.cached_property
    def varying(self) -> dict[str, PropertySet]:
        """For each game, the properties that are not the same in all states."""
        states: dict[str, dict[int, GameState]] = {}
        for record in self._all_records():
            states.setdefault(record.game, {})[id(record.state)] = record.state
        varying = {
            game: set(_varying(state.things for state in distinct.values()))
            for game, distinct in states.items()
        }
        for record in self._changed_train_records():
            before, _, after = record.states()
            varying[record.game] |= set(_differing(before, after))
        return varying

    def _all_records(self) -> Iterator[Record]:
        return (record for records in self.pools.values() for record in records)

    def _changed_train_records(self) -> Iterator[Record]:
        """Train records with changes, about `PER_GAME` per game: large games repeat themselves."""
        games: dict[str, list[Record]] = {}
        for record in self.pools[Split.TRAIN]:
            if record.act.modified or record.tick.modified or record.score != record.state.score:
                games.setdefault(record.game, []).append(record)
        for records in games.values():
            yield from records[:: 1 + len(records) // PER_GAME]

    def before_and_after(self, record: Record, asked: QueryKind) -> tuple[Things, Things]:
        """Like `Record.before_and_after`, with the properties that are shown or changed."""
        before, after = record.before_and_after(asked)
        if self.everything:
            return before, after
        if asked in ("tick", "score"):
            shown = self._shown(record.game, before)
        else:
            shown = self._initial_state(record)
        varying = self.varying[record.game]
        return shown, {
            key: _select(key, thing, varying, before.get(key)) for key, thing in after.items()
        }

    def _initial_state(self, record: Record) -> Things:
        """The shown part of a recorded state, cached because many records share it."""
        cache_key = id(record.state)
        if cache_key not in self._states:
            self._states[cache_key] = self._shown(record.game, record.state.things)
        return self._states[cache_key]

    def _shown(self, game: str, things: Things) -> Things:
        varying = self.varying[game]
        return {key: _select(key, thing, varying, thing) for key, thing in things.items()}

    def vocabulary(self) -> tuple[str, ...]:
        """Fragments of states, actions and train answers, longest first."""
        distinct = {id(record.state): record for record in self._all_records()}.values()
        texts = {show_state(record.game, self._initial_state(record)) for record in distinct}
        for record in self._changed_train_records():
            texts.add(show_difference(*self.before_and_after(record, "full")))
        fragments = {part for text in texts for part in _FRAGMENTS.findall(text) if len(part) > 1}
        for action in self._train_actions():
            fragments.update(part for part in re.split("(#[0-9]+)", action) if len(part) > 1)
        return tuple(sorted(fragments, key=lambda fragment: (-len(fragment), fragment)))

    def _train_actions(self) -> set[str]:
        records = {(record.game, record.action): record for record in self.pools[Split.TRAIN]}
        return {action_text(record.action, record.state.things) for record in records.values()}


def _select(
    key: str, thing: dict[str, str], varying: PropertySet, before: dict[str, str] | None
) -> dict[str, str]:
    """The varying properties, and those that differ from before; a new object is shown whole."""
    if before is None:
        return dict(thing)
    return {
        path: value
        for path, value in thing.items()
        if path in (NAME, TYPE, IN) or (key, path) in varying or before.get(path) != value
    }


def _varying(states: Iterable[Things]) -> Iterator[tuple[str, str]]:
    first_values: dict[tuple[str, str], str] = {}
    for things in states:
        for key, thing in things.items():
            for path, value in thing.items():
                if first_values.setdefault((key, path), value) != value:
                    yield key, path


def _differing(before: Things, after: Things) -> Iterator[tuple[str, str]]:
    for key in before.keys() & after.keys():
        for path, value in after[key].items():
            if before[key].get(path) != value:
                yield key, path
