"""The rows of ByteSized32-State-Prediction: a state, an action, what the action changed, what the next tick changed.

A row keeps whole objects only where something changed; the states before are shared by the rows that start there.
The hook that matters is `Record.stages`: the state before, after the action, and after the tick, in our words.
    record.question("full") -> (things before, things after)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from terrella.core.types import canonical_json
from terrella.worlds.bytesized32.things import SCORE, Object, Things, things_of

Asked = Literal["full", "action", "tick", "score"]
"""full: what action and tick change, and the score; action, tick, score: one of them alone."""


@dataclass(frozen=True, eq=False)
class GameState:
    """A recorded state, shared by all rows that start from it."""

    objects: tuple[Object, ...]
    score: Mapping[str, Any]
    task: str
    max_uuid: int
    last_action: str

    @functools.cached_property
    def things(self) -> Things:
        """In our words; callers must not change it."""
        return things_of(self.objects, self.score)

    @functools.cached_property
    def key(self) -> str:
        """What makes two states the same question: objects and score."""
        return canonical_json([sorted(self.objects, key=_uuid), self.score])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GameState) and self._told() == other._told()

    def _told(self) -> tuple[str, str, int, str]:
        return self.key, self.task, self.max_uuid, self.last_action

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Patch:
    """Whole objects that are new or differ (by uuid), and uuids that are gone."""

    modified: tuple[Object, ...] = ()
    removed: tuple[int, ...] = ()

    def apply(self, objects: Iterable[Object]) -> list[Object]:
        """The objects after it, by uuid."""
        kept = {one["uuid"]: one for one in objects}
        kept.update((one["uuid"], one) for one in self.modified)
        return [kept[uuid] for uuid in sorted(kept.keys() - set(self.removed))]


def patch_between(before: Iterable[Object], after: Iterable[Object]) -> Patch:
    """The patch that leads from one list of objects to another."""
    old, new = ({one["uuid"]: one for one in objects} for objects in (before, after))
    modified = tuple(new[uuid] for uuid in sorted(new) if old.get(uuid) != new[uuid])
    return Patch(modified, tuple(sorted(old.keys() - new.keys())))


def _uuid(one: Object) -> int:
    return int(one["uuid"])


def _unordered(one: Object) -> dict[str, Any]:
    return {**one, "contains": sorted(one["contains"])}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row."""

    game: str
    number: int
    """The row's id within its game."""
    split: Literal["train", "test"]
    state: GameState
    action: str
    act: Patch
    tick: Patch
    score: Mapping[str, Any] = field(hash=False)

    def stages(self) -> tuple[Things, Things, Things]:
        """Before; after the action; after the tick and with the new score."""
        before, score = self.state.things, self.state.score
        if self.act == self.tick == Patch():  # most rows: only the score can differ
            return before, before, {**before, SCORE: things_of((), self.score)[SCORE]}
        acted = self.act.apply(self.state.objects)
        return before, things_of(acted, score), things_of(self.tick.apply(acted), self.score)

    def question(self, asked: Asked) -> tuple[Things, Things]:
        """The state a question starts from, and the one it asks for."""
        before, acted, ticked = self.stages()
        if asked == "full":
            return before, ticked
        if asked == "action":
            return before, acted
        still = {**ticked, SCORE: before[SCORE]}
        return (acted, still) if asked == "tick" else (still, ticked)

    @functools.cached_property
    def changed(self) -> bool:
        """Whether an object or the score differs in the end: the order of contents does not count."""
        if self.score != self.state.score:
            return True
        touched = {one["uuid"] for patch in (self.act, self.tick) for one in patch.modified}
        touched |= {*self.act.removed, *self.tick.removed}
        if not touched:
            return False
        old = {one["uuid"]: _unordered(one) for one in self.state.objects if one["uuid"] in touched}
        after = self.tick.apply(self.act.apply(self.state.objects))
        return old != {one["uuid"]: _unordered(one) for one in after if one["uuid"] in touched}

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two rows the same question."""
        return self.game, self.state.key, self.action
