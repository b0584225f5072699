"""Baselines without training: predict no change, or copy the change from the nearest train state.

baseline = NearestNeighbour(train_records)
after = baseline.predict(record)
"""

from __future__ import annotations

from collections.abc import Iterable

from terrella.verify.properties import flat
from terrella.verify.state import compare
from terrella.worlds.bytesized32.compact import add, subtract
from terrella.worlds.bytesized32.records import QueryKind, Record
from terrella.worlds.bytesized32.things import Things


def no_change(record: Record, asked: QueryKind = "full") -> Things:
    """Predict that nothing changes."""
    return record.before_and_after(asked)[0]


class NearestNeighbour:
    """Copies the changes that the same action made in the nearest train state of the game."""

    def __init__(
        self, records: Iterable[Record], asked: QueryKind = "full", *, inside_tables: bool = False
    ) -> None:
        """Index the records by game and action; nothing is fitted.

        Numbers change by the same amount as in the copied record. The published baseline copies the
        values inside a table (`objects.#4`) as they are; `inside_tables` changes the numbers there
        by amount, too.
        """
        self.asked = asked
        self.inside_tables = inside_tables
        self.records: dict[tuple[str, str], list[Record]] = {}
        for record in records:
            self.records.setdefault((record.game, record.action), []).append(record)

    def predict(self, record: Record) -> Things:
        """The predicted state; no change if the action was never seen in this game."""
        before = record.before_and_after(self.asked)[0]
        candidates = self.records.get((record.game, record.action))
        if not candidates:
            return before
        distances = {
            candidate.state.key: _distance(candidate.state.things, record.state.things)
            for candidate in candidates
        }
        nearest = min(candidates, key=lambda other: (distances[other.state.key], other.number))
        return self._copy_changes(*nearest.before_and_after(self.asked), before)

    def _copy_changes(self, old: Things, new: Things, before: Things) -> Things:
        """Apply the changes from `old` to `new` to `before`, where possible."""
        after = {key: dict(thing) for key, thing in before.items() if key in new or key not in old}
        for key, thing in new.items():
            if key not in old:
                after[key] = dict(thing)
            elif key in after:
                for path, value in thing.items():
                    old_value = old[key].get(path)
                    if old_value != value:
                        current = after[key].get(path, "")
                        after[key][path] = self._new_value(path, old_value or "", value, current)
        return after

    def _new_value(self, path: str, old: str, new: str, current: str) -> str:
        if "." in path and not self.inside_tables:
            return new
        amount = subtract(new, old)
        changed = add(current, amount) if amount is not None else None
        return new if changed is None else changed


def _distance(first: Things, second: Things) -> int:
    """The number of properties in which two states differ."""
    return len(compare(flat(first), flat(second)))
