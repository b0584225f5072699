"""Rows of conversations from JSONL and Parquet files: chats, prompts with answers, thoughts.

A row is a list of messages (`messages`, or ShareGPT's `conversations`), or a prompt and an answer
(`prompt` and `completion` or `response`; `question` and `answer`, as in the published
chain-of-thought sets). Other columns are named in `Columns`. Files come from elsewhere: they are
read a line or a few rows at a time, within bounds, and a row that is no conversation is refused by
its place.
    for row in read_chat_rows(Path("train.parquet"), Columns(prompt="q", answer="a")): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from terrella.core.chat import ChatMessage, Role, with_thought
from terrella.core.config import Configurable, Recorded
from terrella.core.errors import StoreError
from terrella.core.integrity import LISTING, check_folder
from terrella.core.untrusted import count_lines, reading, stream_json_lines

SUFFIXES = (".jsonl", ".parquet")
MAX_MESSAGES = 1000
"""Messages of one conversation."""
MAX_BATCH_BYTES = 2**29
MAX_GROUP_BYTES = 2**33
"""Of a Parquet file: what a few rows may take in memory, and what a row group says it takes."""
BATCH_ROWS = 16
ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
MEND = "mend this line, or get the file again from where it came"
REMEDY = "a row has `messages`, or a prompt and an answer; name other columns: --set columns.A=B"


@dataclass(frozen=True, kw_only=True)
class Columns(Configurable.Config):
    """Which columns of a file are read; a dot leads into a nested one (`extra_info.answer`).

    Empty names are found by `KNOWN`, in its order.
    """

    messages: Recorded[str] = ""
    """A list of messages, each with a role and a content."""
    prompt: Recorded[str] = ""
    """A text, or a list of messages that ends before the answer."""
    answer: Recorded[str] = ""
    reasoning: Recorded[str] = ""
    """A thought that belongs before the answer, where it has a column of its own."""
    system: Recorded[str] = ""
    """A system message for the whole conversation."""
    answer_mark: Recorded[str] = ""
    """Text that begins the answer, where thought and answer are written into one column.

    What is before the last mark becomes the thought.
    """

    def __str__(self) -> str:
        """`question -> answer`: what is read, and what is learnt."""
        if self.messages:
            return " + ".join(filter(None, (self.system, self.messages)))
        asked = " + ".join(filter(None, (self.system, self.prompt)))
        return f"{asked} -> {' + '.join(filter(None, (self.reasoning, self.answer)))}"


KNOWN = (
    Columns(messages="messages"),
    Columns(messages="conversations"),
    Columns(prompt="prompt", answer="completion"),
    Columns(prompt="prompt", answer="response"),
    Columns(prompt="question", answer="answer"),
    Columns(prompt="extra_info.question", answer="extra_info.answer"),
)
"""Columns by their usual names. `question` and `answer` are those of the published sets of chains
of thought (`bytesized32-world-model-cot`, `webarena-world-model-cot`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """A conversation, and where it was read."""

    where: str
    messages: tuple[ChatMessage, ...]

    @property
    def prompt(self) -> tuple[ChatMessage, ...]:
        """What comes before the first message that is learnt."""
        learnt = (n for n, message in enumerate(self.messages) if message.train)
        return self.messages[: next(learnt, len(self.messages))]


def chat_files(source: Path) -> list[Path]:
    """The files to read: the source, or those in a folder; a listed folder is checked first."""
    if source.is_file():
        if source.suffix not in SUFFIXES:
            what = f"ends with {source.suffix!r}, not with {' or '.join(SUFFIXES)}"
            raise StoreError(str(source), what, "convert it, or rename it")
        return [source]
    if not source.is_dir():
        raise StoreError(str(source), "is neither a file nor a folder", "check the path")
    if (source / LISTING).exists():
        check_folder(source)
    found = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise StoreError(str(source), f"has no file that ends with {' or '.join(SUFFIXES)}", REMEDY)
    return found


def read_chat_rows(source: Path, columns: Columns | None = None) -> Iterator[ChatRow]:
    """Yield the rows of a file, or of all files in a folder, in order."""
    for path in chat_files(source):
        yield from _rows(path, columns or Columns())


def columns_read(source: Path, columns: Columns | None = None) -> str:
    """The columns that are read of the first file, as a person names them."""
    path = chat_files(source)[0]
    return str(_resolved(columns or Columns(), _names(path), str(path)))


def count_rows(source: Path) -> int:
    """How many rows there are, for a display: empty lines are counted, nothing is parsed."""
    return sum(map(_count, chat_files(source)))


def _count(path: Path) -> int:
    if path.suffix == ".parquet":
        with reading(str(path)), pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    return count_lines(path)


def _rows(path: Path, columns: Columns) -> Iterator[ChatRow]:
    resolved = _resolved(columns, _names(path), str(path))
    values = _parquet_rows(path, resolved) if path.suffix == ".parquet" else _json_rows(path)
    for where, value in values:
        yield ChatRow(where=where, messages=_messages(value, resolved, where))


# --- files ----------------------------------------------------------------------------------------


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, value in stream_json_lines(path, MEND):
        where = f"{path}, line {number}"
        if not isinstance(value, dict):
            raise StoreError(where, f"is a {type(value).__name__}, not an object", REMEDY)
        yield where, value


def _parquet_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    names = (columns.messages, columns.prompt, columns.answer, columns.reasoning, columns.system)
    number = 0
    with reading(str(path)), pq.ParquetFile(path) as file:
        _check_groups(file)
        known = set(file.schema_arrow.names)
        roots = sorted({root for name in names if (root := _root(name, known))})
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=roots):
            if batch.nbytes > MAX_BATCH_BYTES:
                raise StoreError(str(path), f"has rows of more than {MAX_BATCH_BYTES:,} bytes")
            for value in batch.to_pylist():
                yield f"{path}, row {number}", value
                number += 1


def _check_groups(file: pq.ParquetFile) -> None:
    about = file.metadata
    sizes = (about.row_group(n).total_byte_size for n in range(about.num_row_groups))
    largest = max(sizes, default=0)
    if largest > MAX_GROUP_BYTES:
        raise ValueError(f"a row group has {largest:,} bytes, more than {MAX_GROUP_BYTES:,}")


def _names(path: Path) -> set[str]:
    """All columns of a file, nested ones with dots; of JSONL, those of its first row."""
    if path.suffix == ".parquet":
        with reading(str(path)), pq.ParquetFile(path) as file:
            inner = (file.schema.column(n).path for n in range(len(file.schema)))
            return {*file.schema_arrow.names, *inner}
    for _, row in _json_rows(path):
        return {
            *row,
            *(f"{a}.{b}" for a, value in row.items() if isinstance(value, dict) for b in value),
        }
    raise StoreError(str(path), "is empty", "check the path")


def _resolved(columns: Columns, names: set[str], where: str) -> Columns:
    """The columns with the names that were left out, found among those of the file."""
    given = bool(columns.messages or columns.prompt or columns.answer)
    options = [columns] if given else [_filled(columns, option) for option in KNOWN]
    for option in options:
        needed = [option.messages] if option.messages else [option.prompt, option.answer]
        needed += [option.reasoning, option.system]
        if all(name in names for name in needed if name):
            if not (option.messages or (option.prompt and option.answer)):
                break
            has_system = option.messages == "conversations" and "system" in names
            return replace(option, system=option.system or ("system" if has_system else ""))
    shown = ", ".join(sorted(names)[:20])
    wanted = f" for {columns}" if given else ""
    raise StoreError(where, f"has the columns {shown}, and none are known{wanted}", REMEDY)


def _filled(columns: Columns, option: Columns) -> Columns:
    return replace(columns, messages=option.messages, prompt=option.prompt, answer=option.answer)


def _root(name: str, known: set[str]) -> str:
    return name if name in known else name.partition(".")[0]


def _value(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column; a dot leads into a nested one."""
    if not name or name in row:
        return row.get(name) if name else None
    root, _, rest = name.partition(".")
    inner = row.get(root)
    return _value(inner, rest) if isinstance(inner, dict) and rest else None


# --- messages -------------------------------------------------------------------------------------


def _messages(row: Mapping[str, Any], columns: Columns, where: str) -> tuple[ChatMessage, ...]:
    if columns.messages:
        messages = _listed(_value(row, columns.messages), where)
    else:
        messages = [*_asked(_value(row, columns.prompt), where), *_answered(row, columns, where)]
    system = _value(row, columns.system)
    if system is not None:
        messages.insert(0, ChatMessage(role="system", content=_text(system, where)))
    if columns.answer_mark:
        messages = [_marked(message, columns.answer_mark) for message in messages]
    _check(messages, where)
    return tuple(messages)


def _listed(value: Any, where: str) -> list[ChatMessage]:
    if not isinstance(value, list) or not value or len(value) > MAX_MESSAGES:
        count = f"{len(value):,} messages" if isinstance(value, list) else type(value).__name__
        raise StoreError(where, f"has {count}, not 1 to {MAX_MESSAGES:,} messages", REMEDY)
    return [_message(each, where) for each in value]


def _message(value: Any, where: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise StoreError(where, f"has a {type(value).__name__} among its messages", REMEDY)
    name = value.get("role") or value.get("from")
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        shown = str(name)[:40]
        raise StoreError(where, f"has the role {shown!r}", f"roles: {', '.join(ROLES)}")
    content = _text(_first(value, "content", "value"), where)
    thought = _first(value, "reasoning_content", "reasoning")
    if role == "assistant" and isinstance(thought, str) and thought.strip():
        content = with_thought(thought, content)
    return ChatMessage(role=role, content=content, train=_is_learnt(value, role, where))


def _first(value: Mapping[str, Any], *names: str) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _is_learnt(value: Mapping[str, Any], role: Role, where: str) -> bool:
    """What the message says by `train` or `weight`; otherwise whether the assistant wrote it."""
    said = _first(value, "train", "weight")
    if said is None:
        return role == "assistant"
    if said not in (0, 1):
        raise StoreError(where, f"has the weight {str(said)[:20]}", "a weight is 0 or 1")
    if said and role != "assistant":
        raise StoreError(
            where, f"asks to learn a message of the {role}", "only the assistant's are learnt"
        )
    return bool(said)


def _asked(value: Any, where: str) -> list[ChatMessage]:
    """A prompt: its messages are given, none of them is learnt."""
    if isinstance(value, list):
        return [replace(message, train=False) for message in _listed(value, where)]
    return [ChatMessage(role="user", content=_text(value, where))]


def _answered(row: Mapping[str, Any], columns: Columns, where: str) -> list[ChatMessage]:
    answer = _value(row, columns.answer)
    if isinstance(answer, list):
        return _listed(answer, where)
    content = _text(answer, where)
    thought = _value(row, columns.reasoning)
    if isinstance(thought, str) and thought.strip():
        content = with_thought(thought, content)
    return [ChatMessage(role="assistant", content=content, train=True)]


def _text(value: Any, where: str) -> str:
    """A text; OpenAI's list of parts is one if all parts are texts."""
    if isinstance(value, list) and all(_is_text_part(part) for part in value):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise StoreError(where, f"has a {type(value).__name__} in the place of a text", REMEDY)
    return value


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _marked(message: ChatMessage, mark: str) -> ChatMessage:
    thought, found, answer = message.content.rpartition(mark)
    if message.role != "assistant" or not found or not thought.strip():
        return message
    return replace(message, content=with_thought(thought, found + answer))


def _check(messages: Sequence[ChatMessage], where: str) -> None:
    """System messages come first only, something is asked, and every text can be encoded."""
    if any(message.role == "system" for message in messages[1:]):
        raise StoreError(where, "has a system message that is not the first", REMEDY)
    if messages[-1].role == "system" or messages[0].role == "assistant":
        raise StoreError(where, "does not begin with what is asked", REMEDY)
    with reading(where):
        "".join(message.content for message in messages).encode()
