"""How good a model of text games is: every test row asked once, greedily; a mark per row, and figures made of them.

A mark is `1` (right), `0` (wrong) or `?` (cannot be read). Marks travel in the manifest, so that any two arms can be
compared row by row. Figures: unchanged, changed, overall; without rows that occur in train; per game; what is created.
    marks = ask_all(world, rows, model, codec, turn_tokens=48); figures(world, rows, marks)["changed"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from terrella.core.protocols import Codec, Task
from terrella.core.types import Split, Status
from terrella.engines.episodes.driver import Driver
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.stages.game_rows import situation_of
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.things import Things

ROUND = 512
"""Questions asked at once."""


def ask_all(world: ByteSized32, rows: Sequence[Record], model: Any, codec: Codec, *, turn_tokens: int) -> list[str]:
    """A mark per row: one greedy answer each."""
    marks: list[str] = []
    driver = Driver(Driver.Config(world=world.config, max_turns=1, turn_tokens=turn_tokens, temperature=0.0), codec)
    for start in range(0, len(rows), ROUND):
        tasks = [_task(world, row, start + place) for place, row in enumerate(rows[start : start + ROUND])]
        episodes = driver.run(LocalSampler(model), tasks, group_size=1, seed=0)
        marks += ["?" if episode.outcome.status is Status.UNPARSABLE else str(int(episode.outcome.value == 1.0))
                  for episode in episodes]  # fmt: skip
    driver.seats.close()
    return marks


def _task(world: ByteSized32, row: Record, place: int) -> Task:
    return Task(seed=place, split=Split.TEST, situation=situation_of(world, row), transition=world.transition(row))


def baseline_marks(world: ByteSized32, rows: Sequence[Record], name: str) -> list[str]:
    """The marks of what needs no model."""
    asked = world.config.asked
    learnt = [*world.pools[Split.TRAIN], *world.pools[Split.VALIDATION]]
    predict: Callable[[Record], Things] = lambda row: no_change(row, asked)  # noqa: E731
    if name != "no_change":
        predict = NearestNeighbour(learnt, asked, inside_tables=name.endswith("tables")).predict
    return [str(int(predict(row) == row.question(asked)[1])) for row in rows]


def figures(world: ByteSized32, rows: Sequence[Record], marks: Sequence[str]) -> dict[str, Any]:
    """Shares of right answers. The claim's instances (`successes`) are the rows in which something changes."""
    right = [mark == "1" for mark in marks]
    known = {row.key for split in (Split.TRAIN, Split.VALIDATION) for row in world.pools[split]}
    groups = {name: [ok for ok, row in zip(right, rows, strict=True) if wanted(row, known)]
              for name, wanted in GROUPS.items()}  # fmt: skip
    shares = {name: sum(group) / len(group) for name, group in groups.items() if group}
    passed = {"1": {"mean": shares["changed"]}}
    return {"successes": [int(ok) for ok in groups["changed"]], "samples": 1, "pass": passed,
            "invalid": marks.count("?") / len(marks), **shares}  # fmt: skip


def _created(row: Record) -> bool:
    before, _, after = row.stages()
    return bool(after.keys() - before.keys())


def _removed(row: Record) -> bool:
    before, _, after = row.stages()
    return bool(before.keys() - after.keys())


GROUPS: Mapping[str, Callable[[Record, set[tuple[str, str, str]]], bool]] = {
    "unchanged": lambda row, known: not row.changed,
    "changed": lambda row, known: row.changed,
    "overall": lambda row, known: True,
    "dedup_unchanged": lambda row, known: row.key not in known and not row.changed,
    "dedup_changed": lambda row, known: row.key not in known and row.changed,
    "dedup_overall": lambda row, known: row.key not in known,
    "created": lambda row, known: _created(row),
    "removed": lambda row, known: _removed(row),
}
