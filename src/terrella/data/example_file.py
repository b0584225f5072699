"""Training examples in a folder, read one at a time: a data set may be larger than memory.

Flat files: the token ids, the mask, where each prompt and each example ends, and the group of each
example. The folder is whole or absent, and has a listing with hashes.
    with ExampleWriter(folder) as writer: writer.add(example)
    examples = ExampleFile(folder); examples[7]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, overload

import numpy as np

from terrella.core.errors import StoreError
from terrella.core.files import SCRATCH, remove_folder, replace_folder
from terrella.core.integrity import MAKE_AGAIN, check_folder, write_listing
from terrella.core.tokens import TrainExample

IDS, MASK, ENDS, GROUPS = "ids.bin", "mask.bin", "ends.bin", "groups.bin"


class ExampleWriter:
    """Writes examples as they come; the folder appears when all are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fresh = folder.with_name(folder.name + SCRATCH)
        self.tokens = 0
        self.targets = 0
        self.count = 0
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> Self:
        remove_folder(self.fresh)
        self.fresh.mkdir(parents=True)
        self._files = {name: (self.fresh / name).open("wb") for name in (IDS, MASK, ENDS, GROUPS)}
        return self

    def add(self, example: TrainExample, group: int = 0) -> None:
        """Write an example. Those of one group are not independent, as the steps of an episode."""
        ids = (*example.prompt_ids, *example.completion_ids)
        prompt_end = self.tokens + len(example.prompt_ids)
        mask = [False] * len(example.prompt_ids) + list(example.mask)
        self.tokens += len(ids)
        self.targets += sum(mask)
        self.count += 1
        self._files[IDS].write(np.array(ids, "<i4").tobytes())
        self._files[MASK].write(np.array(mask, np.uint8).tobytes())
        self._files[ENDS].write(np.array([prompt_end, self.tokens], "<i8").tobytes())
        self._files[GROUPS].write(np.array(group, "<i8").tobytes())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
        if kind is None:
            write_listing(self.fresh)
            replace_folder(self.fresh, self.folder)


class ExampleFile(Sequence[TrainExample]):
    """The examples of a folder; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        self.ends = np.fromfile(folder / ENDS, "<i8").reshape(-1, 2)
        self.groups: list[int] = np.fromfile(folder / GROUPS, "<i8").tolist()
        self._ids, self._mask = (_mapped(folder / name, kind) for name, kind in _TYPES.items())
        last = int(self.ends[-1, 1]) if len(self.ends) else 0
        whole = len(self._ids) == len(self._mask) == last
        if not whole or len(self.groups) != len(self.ends):
            raise StoreError(str(folder), "has files of different lengths", MAKE_AGAIN)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> TrainExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrainExample]: ...

    def __getitem__(self, index: int | slice) -> TrainExample | list[TrainExample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start = int(self.ends[number - 1, 1]) if number else 0
        prompt_end, end = map(int, self.ends[number])
        return TrainExample(
            prompt_ids=tuple(self._ids[start:prompt_end].tolist()),
            completion_ids=tuple(self._ids[prompt_end:end].tolist()),
            mask=tuple(self._mask[prompt_end:end].astype(bool).tolist()),
        )


_TYPES = {IDS: "<i4", MASK: "u1"}


def _mapped(path: Path, kind: str) -> np.ndarray:
    """The file as an array that the system reads page by page; an empty file cannot be mapped."""
    if not path.stat().st_size:
        return np.empty(0, kind)
    return np.memmap(path, kind, mode="r")
