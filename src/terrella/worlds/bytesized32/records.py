"""The records of ByteSized32-State-Prediction.

A record is a state, an action, the changes made by the action, and the changes made by the game's
next tick. It stores whole objects only where something changed, and records that start from the
same state share it.
    before, after = record.before_and_after("full")
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from terrella.core.types import canonical_json
from terrella.worlds.bytesized32.things import SCORE, Object, Things, things_of

QueryKind = Literal["full", "action", "tick", "score"]
"""What to predict: the effect of the action, of the tick, the score, or all of them (full)."""


@dataclass(frozen=True, eq=False)
class GameState:
    """A recorded state, shared by all records that start from it."""

    objects: tuple[Object, ...]
    score: Mapping[str, Any]
    task: str
    max_uuid: int
    last_action: str

    @functools.cached_property
    def things(self) -> Things:
        """The state as things; callers must not modify it."""
        return things_of(self.objects, self.score)

    @functools.cached_property
    def key(self) -> str:
        """Objects and score: what identifies a state in a query."""
        return canonical_json([sorted(self.objects, key=_uuid), self.score])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GameState) and self._identity() == other._identity()

    def _identity(self) -> tuple[str, str, int, str]:
        return self.key, self.task, self.max_uuid, self.last_action

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Patch:
    """Whole objects that are new or differ (by uuid), and the uuids of removed objects."""

    modified: tuple[Object, ...] = ()
    removed: tuple[int, ...] = ()

    def apply(self, objects: Iterable[Object]) -> list[Object]:
        """Return the patched objects, ordered by uuid."""
        by_uuid = {obj["uuid"]: obj for obj in objects}
        by_uuid.update((obj["uuid"], obj) for obj in self.modified)
        return [by_uuid[uuid] for uuid in sorted(by_uuid.keys() - set(self.removed))]


def patch_between(before: Iterable[Object], after: Iterable[Object]) -> Patch:
    """The patch that leads from one list of objects to another."""
    old = {obj["uuid"]: obj for obj in before}
    new = {obj["uuid"]: obj for obj in after}
    modified = tuple(new[uuid] for uuid in sorted(new) if old.get(uuid) != new[uuid])
    return Patch(modified, tuple(sorted(old.keys() - new.keys())))


def _uuid(obj: Object) -> int:
    return int(obj["uuid"])


def _with_sorted_contents(obj: Object) -> dict[str, Any]:
    return {**obj, "contains": sorted(obj["contains"])}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One recorded step of a game."""

    game: str
    number: int
    """The id of the record within its game."""
    split: Literal["train", "test"]
    state: GameState
    action: str
    act: Patch
    """Changes made by the action."""
    tick: Patch
    """Changes made by the game's next tick."""
    score: Mapping[str, Any] = field(hash=False)
    """The score after the tick."""

    def states(self) -> tuple[Things, Things, Things]:
        """The states before, after the action, and after the tick (with the new score)."""
        before, score = self.state.things, self.state.score
        if self.act == self.tick == Patch():  # most records: only the score can differ
            return before, before, {**before, SCORE: things_of((), self.score)[SCORE]}
        acted = self.act.apply(self.state.objects)
        return before, things_of(acted, score), things_of(self.tick.apply(acted), self.score)

    def before_and_after(self, asked: QueryKind) -> tuple[Things, Things]:
        """The state that a query starts from, and the state to predict."""
        before, acted, ticked = self.states()
        if asked == "full":
            return before, ticked
        if asked == "action":
            return before, acted
        ticked_with_old_score = {**ticked, SCORE: before[SCORE]}
        if asked == "tick":
            return acted, ticked_with_old_score
        return ticked_with_old_score, ticked

    @functools.cached_property
    def changed(self) -> bool:
        """Whether an object or the score differs in the end, ignoring the order of contents."""
        if self.score != self.state.score:
            return True
        touched = {obj["uuid"] for patch in (self.act, self.tick) for obj in patch.modified}
        touched |= {*self.act.removed, *self.tick.removed}
        if not touched:
            return False
        after = self.tick.apply(self.act.apply(self.state.objects))
        return _selected(self.state.objects, touched) != _selected(after, touched)

    @property
    def key(self) -> tuple[str, str, str]:
        """Game, state and action: records with the same key ask the same."""
        return self.game, self.state.key, self.action


def _selected(objects: Iterable[Object], uuids: set[int]) -> dict[int, dict[str, Any]]:
    return {obj["uuid"]: _with_sorted_contents(obj) for obj in objects if obj["uuid"] in uuids}
