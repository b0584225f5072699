"""Load records from packed games (`GAME.json.xz`) or the official train.jsonl and test.jsonl.

Both sources give the same records. The folder is the world's `path`, or $TERRELLA_BYTESIZED32;
without either, the records are a generated sample.
    records = load_records(Path("data/bytesized32"))
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import StoreError, WorldError
from terrella.core.untrusted import CONTENT_ERRORS, parse_json, read_xz, stream_json_lines
from terrella.worlds.bytesized32.records import GameState, Patch, Record, patch_between
from terrella.worlds.bytesized32.sample import sample_games

VARIABLE = "TERRELLA_BYTESIZED32"
REMEDY = (
    "give the folder with train.jsonl and test.jsonl of the GPT-simulator repository "
    f"(or packed GAME.json.xz): --set world.path=FOLDER (check and play: --set path=FOLDER), "
    f"or ${VARIABLE}"
)


def data_folder(path: Path | None) -> Path | None:
    """The data folder: as configured, else from the environment, else None (the sample)."""
    from_environment = os.environ.get(VARIABLE)
    return path or (Path(from_environment) if from_environment else None)


def load_records(path: Path | None) -> tuple[Record, ...]:
    """All records, by game and number; cached per process."""
    return _load(data_folder(path))


@functools.lru_cache(maxsize=2)
def _load(folder: Path | None) -> tuple[Record, ...]:
    if folder is None:
        return tuple(record for game in sample_games() for record in read_packed(game))
    packed = sorted(folder.glob("*.json.xz"))
    official = sorted(folder.glob("*.jsonl"))
    if not packed and not official:
        raise WorldError("bytesized32", f"{folder} has neither *.json.xz nor *.jsonl", REMEDY)
    records = _read_packed_files(packed) if packed else _read_official_files(official)
    try:
        return tuple(sorted(records, key=lambda record: (record.game, record.number)))
    except (StoreError, *CONTENT_ERRORS) as error:
        raise WorldError(
            "bytesized32", f"{folder} cannot be read: {type(error).__name__}: {error}", REMEDY
        ) from error


def _read_packed_files(paths: list[Path]) -> Iterator[Record]:
    for path in paths:
        yield from read_packed(parse_json(read_xz(path), str(path)))


def _read_official_files(paths: list[Path]) -> Iterator[Record]:
    for path in paths:
        rows = (row for _, row in stream_json_lines(path))
        yield from read_official(rows, split_of_file(path))


def split_of_file(path: Path) -> Literal["train", "test"]:
    """The split of an official file, by its name."""
    return "test" if path.stem.startswith("test") else "train"


def read_packed(game: Mapping[str, Any]) -> Iterator[Record]:
    """Read one packed game: distinct states, and transitions that patch them."""
    states = [_packed_state(state) for state in game["states"]]
    for row in game["transitions"]:
        yield Record(
            game=game["game"],
            number=row["id"],
            split=row["split"],
            state=states[row["s"]],
            action=row["a"],
            act=_patch(row["act"]),
            tick=_patch(row["tick"]),
            score=row["score"],
        )


def pack_game(records: Sequence[Record]) -> dict[str, Any]:
    """The packed form of one game's records, which `read_packed` reads."""
    states: dict[GameState, int] = {}
    rows = []
    for record in records:
        number = states.setdefault(record.state, len(states))
        rows.append(
            {
                "id": record.number,
                "s": number,
                "a": record.action,
                "act": _unpatch(record.act),
                "tick": _unpatch(record.tick),
                "score": record.score,
                "split": record.split,
            }
        )
    kept = [
        {
            "objects": state.objects,
            "max_uuid": state.max_uuid,
            "score": state.score,
            "task": state.task,
            "last_action": state.last_action,
        }
        for state in states
    ]
    return {"game": records[0].game, "states": kept, "transitions": rows}


def _unpatch(patch: Patch) -> dict[str, Any]:
    return {"modified": patch.modified, "removed": patch.removed}


def _packed_state(state: Mapping[str, Any]) -> GameState:
    return GameState(
        objects=_by_uuid(state["objects"]),
        score=state["score"],
        task=state["task"],
        max_uuid=state["max_uuid"],
        last_action=state["last_action"],
    )


def _patch(patch: Mapping[str, Any]) -> Patch:
    return Patch(_by_uuid(patch["modified"]), tuple(sorted(patch["removed"])))


def _by_uuid(objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple(sorted(objects, key=lambda obj: int(obj["uuid"])))


def read_official(
    rows: Iterator[Mapping[str, Any]], split: Literal["train", "test"]
) -> Iterator[Record]:
    """Read the rows of an official file: whole states before, after the action and the tick."""
    shared: dict[tuple[str, GameState], GameState] = {}
    for row in rows:
        before, acted, ticked = (_by_uuid(row[name]["objects"]) for name in _STATES)
        state = GameState(
            objects=before,
            score=row["current_score_state"],
            task=row["current_state"]["taskDesc"],
            max_uuid=row["current_state"]["max_UUID"],
            last_action=row["current_state"]["lastAction"],
        )
        yield Record(
            game=row["game"],
            number=int(row["state_id"]),
            split=split,
            state=shared.setdefault((row["game"], state), state),
            action=row["action_state"]["lastAction"],
            act=patch_between(before, acted),
            tick=patch_between(acted, ticked),
            score=row["next_score_state"],
        )


_STATES = ("current_state", "action_state", "tick_state")
