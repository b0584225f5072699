"""Examples on disk: read back one by one, whole or refused."""

import pytest

from terrella.core.errors import StoreError
from terrella.core.tokens import TrainExample
from terrella.data.example_file import ExampleFile, ExampleWriter

EXAMPLES = [
    TrainExample(prompt_ids=(1, 2), completion_ids=(3, 4, 5), mask=(True, False, True)),
    TrainExample(prompt_ids=(), completion_ids=(70_000,), mask=(True,)),
    TrainExample(prompt_ids=(9,), completion_ids=(8, 7), mask=(False, True)),
]


def written(folder):
    with ExampleWriter(folder) as writer:
        for example in EXAMPLES:
            writer.add(example, group=7)
    assert (writer.count, writer.tokens, writer.targets) == (3, 9, 4)
    return folder


def test_examples_come_back_by_number_and_by_slice(tmp_path):
    read = ExampleFile(written(tmp_path / "rows"))
    assert list(read) == EXAMPLES and read[-1] == EXAMPLES[2] and read[1:] == EXAMPLES[1:]
    assert read.groups == [7, 7, 7]
    with pytest.raises(IndexError):
        read[3]


def test_none_is_a_data_set_too(tmp_path):
    with ExampleWriter(tmp_path / "rows"):
        pass
    assert list(ExampleFile(tmp_path / "rows")) == []


def test_a_killed_writer_leaves_nothing_and_damage_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt), ExampleWriter(tmp_path / "rows") as writer:
        writer.add(EXAMPLES[0])
        raise KeyboardInterrupt
    assert not (tmp_path / "rows").exists()
    folder = written(tmp_path / "rows")
    (folder / "ids.bin").write_bytes(b"\0" * (folder / "ids.bin").stat().st_size)
    with pytest.raises(StoreError, match=r"ids\.bin differs"):
        ExampleFile(folder)
