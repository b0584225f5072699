"""What of a state is shown: everything, or only what varies in its game; and which texts deserve a token of their own.

Most properties of most objects are the same in every state of a game (a stove is never moveable). Left out, a question
takes about seventy tokens in place of four hundred. Names, places and the score that varies always stay.
    focus = Focus(rows); before, after = focus.question(record, "full"); focus.words()
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from terrella.core.types import Split
from terrella.worlds.bytesized32.compact import show_difference, show_state
from terrella.worlds.bytesized32.records import Asked, GameState, Record
from terrella.worlds.bytesized32.things import IN, NAME, TYPE, Things, action_text

PER_GAME = 500
Shown = set[tuple[str, str]]
_FRAGMENTS = re.compile(
    r' "?[A-Za-z_][\w.#]*"?=?|[-+][0-9.]+(?= |;|$)|"(?:[^"\\]|\\.)*"<|:?"(?:[^"\\]|\\.)*"|#[0-9]+|[\w./-]+|[^\w#"]'
)


class Focus:
    """What is shown of each game's states."""

    def __init__(self, pools: Mapping[Split, Sequence[Record]], *, everything: bool = False) -> None:
        """What varies is read off the states of all rows (the questions) and off the answers of train rows only."""
        self.pools, self.everything = pools, everything
        self._states: dict[int, Things] = {}

    @functools.cached_property
    def varying(self) -> dict[str, Shown]:
        """Per game: (object, property) pairs that are not the same in all states."""
        states: dict[str, dict[int, GameState]] = {}
        for row in (row for rows in self.pools.values() for row in rows):
            states.setdefault(row.game, {})[id(row.state)] = row.state
        found = {game: set(_varying(one.things for one in known.values())) for game, known in states.items()}
        for row in self._changed_train_rows():
            before, _, after = row.stages()
            found[row.game] |= set(_differing(before, after))
        return found

    def _changed_train_rows(self) -> Iterator[Record]:
        """Of each game, an even choice of the rows in which something changes: a large game's repeat each other."""
        games: dict[str, list[Record]] = {}
        for row in self.pools[Split.TRAIN]:
            if row.act.modified or row.tick.modified or row.score != row.state.score:
                games.setdefault(row.game, []).append(row)
        return (row for rows in games.values() for row in rows[:: 1 + len(rows) // PER_GAME])

    def _actions(self) -> Iterator[Record]:
        """One train row per action of a game."""
        return iter({(row.game, row.action): row for row in self.pools[Split.TRAIN]}.values())

    def question(self, record: Record, asked: Asked) -> tuple[Things, Things]:
        """The state a question starts from, as shown, and the state after it: shown, or changed."""
        before, after = record.question(asked)
        if self.everything:
            return before, after
        shown = self._shown(record.game, before) if asked in ("tick", "score") else self._state(record)
        kept = self.varying[record.game]
        return shown, {key: _kept(key, thing, kept, before.get(key)) for key, thing in after.items()}

    def _state(self, record: Record) -> Things:
        """A recorded state is shown the same way to every row that starts there."""
        place = id(record.state)
        if place not in self._states:
            self._states[place] = self._shown(record.game, record.state.things)
        return self._states[place]

    def _shown(self, game: str, things: Things) -> Things:
        return {key: _kept(key, thing, self.varying[game], thing) for key, thing in things.items()}

    def words(self) -> tuple[str, ...]:
        """Fragments that states, actions and train answers are made of, longest first."""
        states = {id(row.state): row for rows in self.pools.values() for row in rows}.values()
        texts = {show_state(row.game, self._state(row)) for row in states}
        texts |= {show_difference(*self.question(row, "full")) for row in self._changed_train_rows()}
        pieces = {found for text in texts for found in _FRAGMENTS.findall(text) if len(found) > 1}
        for action in {action_text(row.action, row.state.things) for row in self._actions()}:
            pieces.update(part for part in re.split("(#[0-9]+)", action) if len(part) > 1)
        return tuple(sorted(pieces, key=lambda piece: (-len(piece), piece)))


def _kept(key: str, thing: dict[str, str], kept: Shown, was: dict[str, str] | None) -> dict[str, str]:
    """Shown properties, and those that differ from what was; an object that is new is shown whole."""
    if was is None:
        return dict(thing)
    return {path: value for path, value in thing.items()
            if path in (NAME, TYPE, IN) or (key, path) in kept or was.get(path) != value}  # fmt: skip


def _varying(states: Iterable[Things]) -> Iterator[tuple[str, str]]:
    seen: dict[tuple[str, str], str] = {}
    for things in states:
        for key, thing in things.items():
            for path, value in thing.items():
                if seen.setdefault((key, path), value) != value:
                    yield key, path


def _differing(before: Things, after: Things) -> Iterator[tuple[str, str]]:
    for key in before.keys() & after.keys():
        yield from ((key, path) for path, value in after[key].items() if before[key].get(path) != value)
