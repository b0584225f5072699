"""What needs no training: nothing happens, or what the same action did in the most similar state of the train rows.

    copy = NearestNeighbour(train_rows); copy.predict(record) -> things after
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Iterable

from terrella.verify.properties import flat
from terrella.verify.state import compare
from terrella.worlds.bytesized32.compact import add, subtract
from terrella.worlds.bytesized32.records import Asked, Record
from terrella.worlds.bytesized32.things import Things


def no_change(record: Record, asked: Asked = "full") -> Things:
    """Nothing happens."""
    return record.question(asked)[0]


class NearestNeighbour:
    """Copies the changes that the same action, in the same game, made in the nearest train state."""

    def __init__(self, rows: Iterable[Record], asked: Asked = "full", *, inside_tables: bool = False) -> None:
        """Rows are kept by game and action; nothing is fitted. Numbers change by the amount they changed there.

        The published figure copies a table (`objects.#4`) whole; `inside_tables` takes its numbers by amount, too.
        """
        self.asked, self.inside_tables = asked, inside_tables
        self.known: dict[tuple[str, str], list[Record]] = {}
        for row in rows:
            self.known.setdefault((row.game, row.action), []).append(row)

    def predict(self, record: Record) -> Things:
        """The state after; without a row of this action, nothing happens."""
        before = record.question(self.asked)[0]
        rows = self.known.get((record.game, record.action))
        if not rows:
            return before
        distances = {row.state.key: _distance(row.state.things, record.state.things) for row in rows}
        nearest = min(rows, key=lambda row: (distances[row.state.key], row.number))
        return self._copied(*nearest.question(self.asked), before)

    def _copied(self, old: Things, new: Things, before: Things) -> Things:
        """The changes from `old` to `new`, made in `before` where they can be."""
        after = {key: dict(thing) for key, thing in before.items() if key in new or key not in old}
        for key, thing in new.items():
            if key not in old:
                after[key] = dict(thing)
            elif key in after:
                changes = {path: value for path, value in thing.items() if old[key].get(path) != value}
                after[key] |= {path: self._value(path, old[key].get(path, ""), value, after[key].get(path, ""))
                               for path, value in changes.items()}  # fmt: skip
        return after

    def _value(self, path: str, old: str, new: str, now: str) -> str:
        if "." in path and not self.inside_tables:
            return new
        amount = subtract(new, old)
        moved = add(now, amount) if amount is not None else None
        return new if moved is None else moved


def _distance(first: Things, second: Things) -> int:
    """In how many properties two states differ."""
    return len(compare(flat(first), flat(second)))
