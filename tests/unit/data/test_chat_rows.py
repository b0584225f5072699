"""Rows of conversations: usual columns are found, others are named, foreign ones are refused."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from terrella.core.errors import StoreError
from terrella.core.untrusted import stream_json_lines
from terrella.data.chat_rows import Columns, columns_read, read_chat_rows

USER, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def in_parts(message):
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def jsonl(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def parquet(folder, **columns):
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def pairs(path, columns=None):
    """Rows as (what is asked, what is learnt)."""
    return [
        (
            "|".join(each.content for each in row.messages if not each.train),
            "|".join(each.content for each in row.messages if each.train),
        )
        for row in read_chat_rows(path, columns)
    ]


@pytest.mark.parametrize(
    ("row", "read"),
    [
        ({"messages": [USER, REPLY]}, "messages"),
        (
            {
                "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
                "other": 1,
            },
            "conversations",
        ),
        ({"prompt": "q", "completion": "a"}, "prompt -> completion"),
        ({"prompt": [USER], "completion": [REPLY]}, "prompt -> completion"),
        ({"prompt": "q", "response": "a"}, "prompt -> response"),
        ({"question": "q", "answer": "a"}, "question -> answer"),
        (
            {"extra_info": {"question": "q", "answer": "a"}},
            "extra_info.question -> extra_info.answer",
        ),
        (
            {"messages": [in_parts(USER), in_parts(REPLY)]},
            "messages",
        ),
    ],
)
def test_the_usual_columns_are_found_in_both_kinds_of_file(tmp_path, row, read):
    for path in (jsonl(tmp_path, row), parquet(tmp_path, **{k: [v] for k, v in row.items()})):
        assert columns_read(path) == read
        assert pairs(path) == [("q", "a")]


def test_other_columns_are_named_and_thoughts_come_before_the_answer(tmp_path):
    path = parquet(tmp_path, q=["2+2?"], cot=["Two and two."], a=["4"], rules=["Count."])
    named = Columns(prompt="q", answer="a", reasoning="cot", system="rules")
    assert pairs(path, named) == [("Count.|2+2?", "<think>\nTwo and two.\n</think>\n\n4")]
    assert str(named) == "rules + q -> cot + a"
    path = jsonl(tmp_path, {"question": "q", "answer": "So. The answer: x? The answer: 4"})
    marked = Columns(answer_mark="The answer:")
    assert pairs(path, marked) == [("q", "<think>\nSo. The answer: x?\n</think>\n\nThe answer: 4")]
    thinking = {**REPLY, "reasoning_content": "Hm."}
    path = jsonl(tmp_path, {"messages": [USER, thinking]})
    assert pairs(path) == [("q", "<think>\nHm.\n</think>\n\na")]


def test_a_message_says_whether_it_is_learnt(tmp_path):
    first, second = {**REPLY, "content": "b", "weight": 0}, {**REPLY, "train": True}
    path = jsonl(tmp_path, {"messages": [USER, first, USER, second]})
    assert pairs(path) == [("q|b|q", "a")]
    (row,) = read_chat_rows(path)
    assert [each.content for each in row.prompt] == ["q", "b", "q"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([1], "is a list"),
        ({"text": "q"}, "has the columns text"),
        ({"messages": "q"}, "has str"),
        ({"messages": []}, "0 messages"),
        ({"messages": [USER] * 1001}, "1,001 messages"),
        ({"messages": [{"role": "tool", "content": "q"}]}, "has the role 'tool'"),
        ({"messages": [{"role": "user"}, REPLY]}, "NoneType in the place of a text"),
        ({"messages": [{**USER, "train": True}, REPLY]}, "learn a message of the user"),
        ({"messages": [USER, {**REPLY, "weight": 0.5}]}, "has the weight 0.5"),
        ({"messages": [REPLY]}, "does not begin with what is asked"),
        ({"messages": [USER, {"role": "system", "content": "x"}]}, "not the first"),
        ({"prompt": "q", "completion": 4}, "int in the place of a text"),
        ({"messages": [{"role": "user", "content": "\ud800"}, REPLY]}, "cannot be read"),
    ],
)
def test_a_row_that_is_no_conversation_is_refused_by_its_place(tmp_path, row, what):
    path = jsonl(tmp_path, row)
    with pytest.raises(StoreError, match=what) as caught:
        list(read_chat_rows(path))
    assert "rows.jsonl" in caught.value.where and len(str(caught.value)) < 1000


def test_a_file_of_another_kind_or_with_missing_columns_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(StoreError, match=r"ends with '\.csv'"):
        list(read_chat_rows(tmp_path / "rows.csv"))
    with pytest.raises(StoreError, match="neither a file nor a folder"):
        list(read_chat_rows(tmp_path / "nowhere.jsonl"))
    path = parquet(tmp_path, q=["a"], b=["c"])
    with pytest.raises(StoreError, match="none are known for q -> answer"):
        list(read_chat_rows(path, Columns(prompt="q", answer="answer")))
    path.write_bytes(b"PAR1 no Parquet PAR1")
    with pytest.raises(StoreError, match="cannot be read"):
        list(read_chat_rows(path))


def test_the_files_of_a_folder_are_read_in_order(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "completion": "x"}))
    assert [asked for asked, _ in pairs(tmp_path)] == ["a", "b"]


def test_lines_are_read_one_at_a_time_and_an_overlong_one_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":"' + b"x" * 100 + b'"}\n')
    lines = stream_json_lines(path, max_line_bytes=50)
    assert next(lines) == (1, {"a": 1})
    with pytest.raises(StoreError, match=r"line 2.*longer than 50 bytes"):
        next(lines)


def test_a_line_of_a_users_own_file_is_to_be_mended(tmp_path):
    """Nobody published it, so that nobody has a better copy."""
    path = jsonl(tmp_path, {"messages": [USER, REPLY]})
    path.write_text(path.read_text() + "{bad\n")
    with pytest.raises(StoreError, match="line 3: cannot be read") as error:
        pairs(path)
    assert error.value.remedy.startswith("mend this line")


def test_damaged_files_end_in_rows_or_in_one_error(tmp_path):
    rng = random.Random(0)
    rows = [{"messages": [USER, REPLY]}, {"messages": [USER, {**REPLY, "weight": 1}]}] * 3
    whole = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "a.parquet": parquet(tmp_path, question=["q"] * 9, answer=["a"] * 9).read_bytes(),
    }
    refused = 0
    for number in range(400):
        name = ("a.jsonl", "a.parquet")[number % 2]
        data = bytearray(whole[name])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path = tmp_path / name
        path.write_bytes(data[: rng.randint(1, len(data))] if number % 5 == 0 else data)
        try:
            list(read_chat_rows(path))
        except StoreError as error:
            refused += 1
            assert len(str(error)) < 5000
    assert refused > 100
