"""The official files of ByteSized32-State-Prediction, packed: a small file for each game.

`train.jsonl` repeats whole states, over a gigabyte of them; packed, each state is written once and
the world loads in seconds. Lines are read one at a time; what stays in memory is the packed form. A
packed game is read back and compared before it is written.
    ImportGames(ImportGames.Config(source=Path("data"), out=Path("bytesized32"))).run(progress)
"""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from terrella.core.errors import StoreError
from terrella.core.files import locked, write_atomic
from terrella.core.integrity import LISTING, write_listing
from terrella.core.protocols import Progress
from terrella.core.run_folder import check_spec
from terrella.core.untrusted import count_lines, reading, stream_json_lines
from terrella.pipelines.import_data.base import Importer, Summary, size_text
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.sources import (
    load_records,
    pack_game,
    read_official,
    read_packed,
    split_of_file,
)

SUFFIX = ".json.xz"
SHOW_EVERY = 200
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class ImportGames(Importer):
    """Official `train.jsonl` and `test.jsonl` into packed games, which the world's `path` takes."""

    def run(self, progress: Progress) -> Summary:
        out = self.config.out
        files = self._files()
        with locked(out):
            check_spec(out, self.spec(files))
            if not (out / LISTING).exists():
                self._pack(self._records(files, progress))
                write_listing(out)
        return _summary(out)

    def _files(self) -> list[Path]:
        source = self.config.source
        found = [source] if source.is_file() else sorted(source.glob("*.jsonl"))
        if not found:
            raise StoreError(
                str(source), "has no *.jsonl", "unpack train.zip and test.zip of GPT-simulator"
            )
        return found

    def _records(self, files: Sequence[Path], progress: Progress) -> dict[str, list[Record]]:
        """All records by game; a row that is not a record is named."""
        games: dict[str, list[Record]] = {}
        progress.phase("read records", sum(map(count_lines, files)))
        progress.advance(0)
        everything = itertools.chain.from_iterable(map(_read, files))
        number = 0
        for number, record in enumerate(everything, start=1):
            games.setdefault(record.game, []).append(record)
            if number % SHOW_EVERY == 0:
                progress.advance(number, games=len(games))
        progress.advance(number, games=len(games))
        return games

    def _pack(self, games: dict[str, list[Record]]) -> None:
        for game, records in games.items():
            if not game or not set(game) <= NAME_CHARACTERS:
                raise StoreError(
                    str(self.config.source),
                    f"has a game with the name {game[:80]!r}",
                    "leave it out",
                )
            records.sort(key=lambda record: record.number)
            data = json.dumps(pack_game(records), separators=(",", ":")).encode()
            packed: Any = json.loads(data)
            if list(read_packed(packed)) != records:
                what = f"the records of {game} do not come back as they were"
                raise StoreError(str(self.config.source), what, "please report this")
            write_atomic(self.config.out / f"{game}{SUFFIX}", lzma.compress(data, preset=6))


def _read(path: Path) -> Iterator[Record]:
    """The records of a file; an error names the last line that was read."""
    number = 0

    def rows() -> Iterator[Any]:
        nonlocal number
        for line in stream_json_lines(path):
            number, row = line
            yield row

    records = read_official(rows(), split_of_file(path))
    while True:
        with reading(f"{path}, after line {number}", "this is not a row of GPT-simulator's data"):
            record = next(records, None)
        if record is None:
            return
        yield record


def _summary(folder: Path) -> Summary:
    records = load_records(folder)
    test = sum(record.split == "test" for record in records)
    states = len({id(record.state) for record in records})
    changed = sum(record.changed for record in records)
    size = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    return [
        ("games", f"{len({record.game for record in records}):,}"),
        ("records", f"{len(records):,}: {len(records) - test:,} train, {test:,} test"),
        ("states", f"{states:,} distinct"),
        ("something changes in", f"{changed:,} records"),
        ("on disk", size_text(size)),
        ("use it", f"--set world.path={folder}"),
    ]
