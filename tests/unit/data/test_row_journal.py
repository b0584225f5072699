"""Rows of an evaluation survive a kill, and the finished file does not show that there was one."""

import pytest

from terrella.core.errors import StoreError
from terrella.data.row_journal import RowJournal, read_rows, row_files

KEY = ("seed", "member")


def row(seed, member, value=1.0):
    return {"seed": seed, "member": member, "value": value}


def journal(folder):
    return RowJournal(folder, "frozen_lake:4x4", key=KEY)


def finished(folder, rows):
    with journal(folder) as kept:
        for each in rows:
            kept.append(each)
        return kept.finish()


def test_rows_are_sorted_so_the_order_of_playing_does_not_show(tmp_path):
    rows = [row(seed, member) for seed in range(3) for member in range(2)]
    first = finished(tmp_path / "a", rows)
    second = finished(tmp_path / "b", rows[::-1])
    assert first.read_bytes() == second.read_bytes() and read_rows(first) == rows
    assert row_files(tmp_path / "a") == [first] and first.name == "frozen_lake-4x4.jsonl.gz"


def test_a_line_that_a_kill_cut_off_is_dropped_and_the_rest_is_kept(tmp_path):
    with journal(tmp_path) as kept:
        kept.append(row(0, 0))
        kept.append(row(0, 1))
    path = tmp_path / "frozen_lake-4x4.rows"
    path.write_bytes(path.read_bytes()[:-7])
    with journal(tmp_path) as kept:
        assert list(kept.rows) == [(0, 0)]
        kept.append(row(0, 1))
    with journal(tmp_path) as kept:
        assert list(kept.rows) == [(0, 0), (0, 1)]


def test_a_damaged_line_is_refused_by_number(tmp_path):
    with journal(tmp_path) as kept:
        kept.append(row(0, 0))
        kept.append(row(0, 1))
    path = tmp_path / "frozen_lake-4x4.rows"
    path.write_bytes(path.read_bytes().replace(b'"value": 1.0', b'"value": 0.0', 1))
    with pytest.raises(StoreError, match="line 1"):
        journal(tmp_path)


def test_a_row_that_is_played_again_replaces_the_older_one(tmp_path):
    path = finished(tmp_path, [row(0, 0, None), row(0, 0, 1.0)])
    assert read_rows(path) == [row(0, 0, 1.0)]


def test_a_finished_file_is_known_again(tmp_path):
    finished(tmp_path, [row(0, 0)])
    with journal(tmp_path) as kept:
        assert kept.rows == {(0, 0): row(0, 0)}


def test_a_damaged_finished_file_is_refused(tmp_path):
    path = finished(tmp_path, [row(0, 0)])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        read_rows(path)


@pytest.mark.parametrize("text", [None, "a line without an end"])
def test_rows_are_not_written_through_a_link(tmp_path, text):
    profile = tmp_path / "profile"
    if text is not None:
        profile.write_text(text)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/frozen_lake-4x4.rows").symlink_to(profile)
    with pytest.raises(StoreError, match="is a link to"):
        journal(tmp_path / "rows")
    assert (profile.read_text() if profile.exists() else None) == text
