"""Foreign files: ordinary ones are read, errors name the place. tests/attack has hostile ones."""

import gzip
import re
from pathlib import Path

import pytest

import terrella
from terrella.core.errors import StoreError
from terrella.core.files import read_json_lines as read_own_lines
from terrella.core.files import write_json_lines
from terrella.core.untrusted import parse_json, read_gzip, read_json, read_json_lines, reading
from terrella.data.attempts import Attempt, Choice, PracticeTask, read_attempts, write_attempts

SOURCES = Path(terrella.__file__).parent
OWN_FORMATS = {"engines/trl/checkpoint_files.py"}
"""Checkpoints are checked by their hashes first."""


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(StoreError, match=r"rows\.jsonl, line 3"):
        list(read_json_lines(path))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(StoreError, match="is not a file"):
            read_json(path)


def test_separators_inside_texts_do_not_end_a_line(tmp_path):
    """Web pages contain U+2028 and U+0085, which `str.splitlines` takes for ends of lines."""
    page = "a\u2028b\x85c"
    choice = Choice(observation=page, offered=("x",), taken=0, logprob=0.0, steps_left=1)
    task = PracticeTask(family="f", seed=1)
    attempt = Attempt(
        task=task, instruction="i", choices=(choice,), last=page, success=None, stop="error"
    )
    write_attempts(tmp_path / "a.jsonl", [attempt])
    assert read_attempts(tmp_path / "a.jsonl") == [attempt]


def test_our_own_metrics_may_be_nan_but_foreign_numbers_may_not(tmp_path):
    write_json_lines(tmp_path / "curve.jsonl", [{"loss": float("nan")}])
    assert read_own_lines(tmp_path / "curve.jsonl")[0]["loss"] != 0
    with pytest.raises(StoreError, match="NaN"):
        list(read_json_lines(tmp_path / "curve.jsonl"))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400 + ".0"])
def test_a_number_that_becomes_infinite_is_refused(number):
    with pytest.raises(StoreError, match="is too large"):
        parse_json(f'{{"reward": {number}}}', "here")
    assert parse_json("[1e300, -0.5, 3]", "here") == [1e300, -0.5, 3]


def test_an_error_of_a_part_gets_the_place_of_the_whole():
    with (
        pytest.raises(StoreError, match="shard, record 3: image: is not one"),
        reading("shard, record 3"),
    ):
        raise StoreError("image", "is not one")
    with pytest.raises(StoreError, match="KeyError") as caught, reading("table", "get it again"):
        {}["x"]
    assert caught.value.remedy == "get it again"
    with pytest.raises(StoreError, match="ZeroDivisionError"), reading("table"):
        int("9") // 0


def test_texts_with_brackets_and_escapes_do_not_count_as_depth():
    text = '{"a": "' + "[" * 500 + '\\"' + "{" * 500 + '"}'
    assert parse_json(text, "here")["a"].count("[") == 500


def test_a_gzip_bomb_and_a_damaged_file_are_refused(tmp_path):
    path = tmp_path / "rows.gz"
    content = gzip.compress(b"[1, 2]" + b" " * 10_000)
    path.write_bytes(content)
    assert read_gzip(path).startswith(b"[1, 2]")
    with pytest.raises(StoreError, match="unpacks to more than 1,000"):
        read_gzip(path, max_bytes=1_000)
    for damaged in (content[:-9], content[:12] + b"\xff" + content[13:], b"not gzip"):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="cannot be read"):
            read_gzip(path)


def test_every_file_is_read_by_the_bounded_reader():
    """`json.load` has no bounds; it is for texts that this process made."""
    pattern = re.compile(r"json\.load\(|json\.loads\([^\n]*read_(?:text|bytes)\(")
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    }
    assert found - OWN_FORMATS == set()
