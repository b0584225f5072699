"""Where the rows come from: a folder of packed games (`GAME.json.xz`), or the official `train.jsonl` and `test.jsonl`.

Both give the same records. The folder is the world's `path`, or $TERRELLA_BYTESIZED32; without one, a made sample.
    records = load_records(Path("data/bytesized32"))
"""

from __future__ import annotations

import functools
import json
import lzma
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import WorldError
from terrella.worlds.bytesized32.records import GameState, Patch, Record, patch_between
from terrella.worlds.bytesized32.sample import sample_games

VARIABLE = "TERRELLA_BYTESIZED32"
REMEDY = (
    f"give the folder that holds train.jsonl and test.jsonl of the GPT-simulator repository (or packed GAME.json.xz): "
    f"--set world.path=FOLDER, or ${VARIABLE}"
)


def data_folder(path: Path | None) -> Path | None:
    """The folder a world reads: as configured, else from the environment, else none (the made sample)."""
    named = os.environ.get(VARIABLE)
    return path or (Path(named) if named else None)


def load_records(path: Path | None) -> tuple[Record, ...]:
    """All rows, by game and number; read once per process."""
    return _load(data_folder(path))


@functools.lru_cache(maxsize=2)
def _load(folder: Path | None) -> tuple[Record, ...]:
    if folder is None:
        return tuple(record for game in sample_games() for record in read_packed(game))
    packed, lines = sorted(folder.glob("*.json.xz")), sorted(folder.glob("*.jsonl"))
    if not packed and not lines:
        raise WorldError("bytesized32", f"{folder} holds neither *.json.xz nor *.jsonl", REMEDY)
    rows = _packed_rows(packed) if packed else _official_rows(lines)
    try:
        return tuple(sorted(rows, key=lambda record: (record.game, record.number)))
    except (OSError, ValueError, KeyError, TypeError, lzma.LZMAError) as error:
        raise WorldError("bytesized32", f"{folder} cannot be read: {type(error).__name__}: {error}", REMEDY) from error


def _packed_rows(files: list[Path]) -> Iterator[Record]:
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as text:
            yield from read_packed(json.load(text))


def _official_rows(files: list[Path]) -> Iterator[Record]:
    for file in files:
        split: Literal["train", "test"] = "test" if file.stem.startswith("test") else "train"
        with file.open(encoding="utf-8") as lines:
            yield from read_official((json.loads(line) for line in lines if line.strip()), split)


def read_packed(game: Mapping[str, Any]) -> Iterator[Record]:
    """The rows of one packed game: distinct states, and transitions that patch them."""
    states = [
        GameState(tuple(sorted(one["objects"], key=_uuid)), one["score"], one["task"], one["max_uuid"],
                  one["last_action"])
        for one in game["states"]
    ]  # fmt: skip
    for row in game["transitions"]:
        yield Record(
            game=game["game"], number=row["id"], split=row["split"], state=states[row["s"]], action=row["a"],
            act=_patch(row["act"]), tick=_patch(row["tick"]), score=row["score"],
        )  # fmt: skip


def _patch(told: Mapping[str, Any]) -> Patch:
    return Patch(tuple(sorted(told["modified"], key=_uuid)), tuple(sorted(told["removed"])))


def _uuid(one: Mapping[str, Any]) -> int:
    return int(one["uuid"])


def read_official(rows: Iterator[Mapping[str, Any]], split: Literal["train", "test"]) -> Iterator[Record]:
    """The rows of an official file: whole states before, after the action and after the tick."""
    shared: dict[tuple[str, GameState], GameState] = {}
    for row in rows:
        told = row["current_state"]
        objects = [tuple(sorted(row[name]["objects"], key=_uuid)) for name in _STAGES]
        state = GameState(objects[0], row["current_score_state"], told["taskDesc"], told["max_UUID"],
                          told["lastAction"])  # fmt: skip
        yield Record(
            game=row["game"], number=int(row["state_id"]), split=split,
            state=shared.setdefault((row["game"], state), state), action=row["action_state"]["lastAction"],
            act=patch_between(objects[0], objects[1]), tick=patch_between(objects[1], objects[2]),
            score=row["next_score_state"],
        )  # fmt: skip


_STAGES = ("current_state", "action_state", "tick_state")
