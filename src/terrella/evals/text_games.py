"""Scores of a text-game world model: every test record is asked once, greedily.

Each answer gets a mark: `1` (correct), `0` (wrong) or `?` (unreadable). Marks are kept in the
manifest, so any two arms can be compared record by record.
    marks = greedy_marks(world, records, model, codec, turn_tokens=48)
    text_game_scores(world, records, marks).changed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from terrella.core.errors import EngineError
from terrella.core.metric import Metric
from terrella.core.protocols import Codec, Sampler
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Situation, Split, Status
from terrella.evals.results import TestScores
from terrella.rollout.rollout import Rollout
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.records import Record

ROUND = 128
"""Records that are asked at once. A model of 135M holds 13 MB of a row of 300 tokens."""


@dataclass(frozen=True, kw_only=True)
class TextGameScores(TestScores):
    """Fractions of correct answers. `successes` are the records in which something changes."""

    invalid: float
    """Fraction of the answers that could not be read."""
    unchanged: float | None = None
    changed: float | None = None
    overall: float | None = None
    dedup_unchanged: float | None = None
    """`dedup_`: without the records that also occur in train or validation."""
    dedup_changed: float | None = None
    dedup_overall: float | None = None
    created: float | None = None
    """Records in which an object appears."""
    removed: float | None = None
    """Records in which an object disappears."""


def greedy_marks(
    world: ByteSized32,
    records: Sequence[Record],
    sampler: Sampler,
    codec: Codec,
    *,
    turn_tokens: int,
) -> str:
    """One mark per record, of one greedy answer each."""
    config = Rollout.Config(
        world=world.config, max_turns=1, turn_tokens=turn_tokens, temperature=0.0
    )
    marks: list[str] = []
    with Rollout(config, codec) as rollout:
        for start in range(0, len(records), ROUND):
            chosen = records[start : start + ROUND]
            tasks = [_task(world, record, index) for index, record in enumerate(chosen, start)]
            marks += map(_mark, rollout.run(sampler, tasks, group_size=1, seed=0))
    return "".join(marks)


def _mark(episode: TokenEpisode) -> str:
    if episode.outcome.status is Status.UNPARSABLE:
        return "?"
    if episode.outcome.masked:
        raise EngineError(
            "text games",
            f"a record got no verdict: {episode.outcome.evidence}",
            "run the same command again: it goes on from the trained model",
        )
    return str(int(episode.outcome.value == 1.0))


def _task(world: ByteSized32, record: Record, index: int) -> Task:
    return Task(
        seed=index,
        split=Split.TEST,
        situation=situation_of(world, record),
        transition=world.transition(record),
    )


def situation_of(world: ByteSized32, record: Record) -> Situation:
    """The state that a record asks about."""
    observation = world.begin(record)
    return Situation(
        instruction=world.instruction,
        observation=observation,
        actions=world.actions(),
        history=(),
        steps_left=1,
    )


def baseline_marks(world: ByteSized32, records: Sequence[Record], name: str) -> str:
    """Marks of a baseline that needs no model."""
    asked = world.config.asked
    if name == "no_change":
        predictions = [no_change(record, asked) for record in records]
    else:
        known = [*world.pools[Split.TRAIN], *world.pools[Split.VALIDATION]]
        neighbour = NearestNeighbour(known, asked, inside_tables=name.endswith("tables"))
        predictions = [neighbour.predict(record) for record in records]
    return "".join(
        str(int(predicted == record.before_and_after(asked)[1]))
        for predicted, record in zip(predictions, records, strict=True)
    )


def text_game_scores(world: ByteSized32, records: Sequence[Record], marks: str) -> TextGameScores:
    """Fractions of correct answers by group of records."""
    right = [mark == "1" for mark in marks]
    known = {record.key for split in TRAIN_SPLITS for record in world.pools[split]}
    groups = {
        name: [ok for ok, record in zip(right, records, strict=True) if belongs(record, known)]
        for name, belongs in GROUPS.items()
    }
    changed = [int(ok) for ok in groups["changed"]]
    fractions: dict[str, Any] = {
        name: sum(group) / len(group) for name, group in groups.items() if group
    }
    return TextGameScores(
        successes=changed,
        samples=1,
        passes={"1": Metric.of(changed)},
        invalid=marks.count("?") / len(marks),
        **fractions,
    )


def _creates(record: Record) -> bool:
    before, _, after = record.states()
    return bool(after.keys() - before.keys())


def _removes(record: Record) -> bool:
    before, _, after = record.states()
    return bool(before.keys() - after.keys())


TRAIN_SPLITS = (Split.TRAIN, Split.VALIDATION)
GROUPS: Mapping[str, Callable[[Record, set[tuple[str, str, str]]], bool]] = {
    "unchanged": lambda record, known: not record.changed,
    "changed": lambda record, known: record.changed,
    "overall": lambda record, known: True,
    "dedup_unchanged": lambda record, known: record.key not in known and not record.changed,
    "dedup_changed": lambda record, known: record.key not in known and record.changed,
    "dedup_overall": lambda record, known: record.key not in known,
    "created": lambda record, known: _creates(record),
    "removed": lambda record, known: _removes(record),
}
"""Whether a record belongs to a group; `known` are the keys of the train records."""
