"""Which numbers of a record a function reads.

numbers_read(PARTS["web_pages"], record)  ->  [("pages --seed 0", "sft", "changed", "n"), ...]
"""

from collections.abc import Mapping


class Watched(Mapping):
    """A record that notes the path of each number, and of each list, that is read from it."""

    def __init__(self, values, path, read):
        self._values, self._path, self._read = values, path, read

    def __getitem__(self, key):
        return watched(self._values[key], (*self._path, key), self._read)

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)


def watched(value, path, read):
    """The value, which notes what is read from it. Rows of a list share the path of the list."""
    if isinstance(value, dict):
        return Watched(value, path, read)
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        read[path] = None
        return [watched(each, path, {}) for each in value]
    if isinstance(value, int | float) or (isinstance(value, list) and value):
        read[path] = None
    return value


def numbers_read(make, record):
    """The paths of the numbers of the record that `make` reads, in this order."""
    read = {}
    make(Watched(record, (), read))
    return list(read)
