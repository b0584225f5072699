"""The thought and the answer in a reply. Verifiers and worlds get the answer only.

A reply may begin with a thought, `<think> ... </think>`, whose opening tag may be part of the
prompt. The answer is the last complete one after the last thought. Forms of an answer, in the order
in which they are looked for:
    <answer> Up || Left </answer>          our own
    The final answer is: {"removed": []}   RLVR-World's
    {"answer": "Up"}                       JSON, bare or fenced
Replies are untrusted: plain search on bounded text, and JSON of bounded depth.
    split_reply("<think>a</think> b") == Reply(thought="a", rest=" b", truncated=False)
    read_answer("<think> <answer>? </think><answer>Up || Left</answer>") == ("Up", "Left")
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from terrella.core.chat import END_THINK, THINK
from terrella.core.errors import StoreError
from terrella.core.untrusted import parse_json

SEPARATOR = "||"
OPEN, CLOSE = "<answer>", "</answer>"
MAX_REPLY_CHARS = 100_000
"""Characters of an answer, counted from the end of the reply; what stands before is not read."""
_TAG = re.compile(r"<(\\*+/?+(?:answer|think)>)")
_ESCAPED_TAG = re.compile(r"<\\(\\*+/?+(?:answer|think)>)")
_BAR, _ESCAPED_BAR = re.compile(r"\|(\\*+)(?=\|)"), re.compile(r"\|\\(\\*+)(?=\|)")
_SENTENCE = re.compile(r"\bfinal (?:answer|state|game state)\s{0,8}(?:is)?\s{0,8}:", re.I)
"""`The final answer is:` and its published variants; bold marks may follow."""
_FENCE = re.compile(r"```[a-zA-Z]{0,16}[ \t]{0,8}\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, taken apart."""

    thought: str | None
    """What stands in thoughts; None for a reply without one."""
    rest: str
    """What stands after the last thought: the only place of an answer."""
    truncated: bool
    """Whether a thought was begun and not ended. Such a reply has no answer."""


def split_reply(text: str, *, opened: bool = False) -> Reply:
    """The thought, and what follows it. `opened` says that the prompt ended inside a thought.

    A thought ends with the last closing tag, because it may quote earlier ones. A closing tag
    without an opening one ends a thought, too: some servers keep the tag that the template wrote.
    """
    end, start = text.rfind(END_THINK), text.rfind(THINK)
    if start > end:
        return Reply(_without_tags(text), "", True)
    if end < 0:
        return Reply(text, "", True) if opened else Reply(None, text, False)
    return Reply(_without_tags(text[:end]), text[end + len(END_THINK) :], False)


def _without_tags(text: str) -> str:
    return text.replace(THINK, "").replace(END_THINK, "").strip()


# --- writing --------------------------------------------------------------------------------------


def answer_text(content: str, blank: str = " ") -> str:
    """A reply with this content and nothing else.

    For drawings, `blank` is a line end: they need lines of their own. A tag inside the content is
    written with a backslash (`<\\answer>`), so that every content is read back as it is.
    """
    return f"{OPEN}{blank}{_TAG.sub(_with_backslash, content)}{blank}{CLOSE}"


def join_actions(actions: Sequence[str], blank: str = " ") -> str:
    """Several actions in one answer; a separator inside an action is written as `|\\|`."""
    return f"{blank}{SEPARATOR}{blank}".join(_BAR.sub(r"|\\\1", each) for each in actions)


def _with_backslash(match: re.Match[str]) -> str:
    return f"<\\{match[1]}"


# --- reading --------------------------------------------------------------------------------------


def read_answer(reply: str, *, opened: bool = False) -> tuple[str, ...]:
    """The actions of an agent's reply; empty if none can be read."""
    rest = split_reply(reply, opened=opened).rest[-MAX_REPLY_CHARS:]
    tagged = _tagged(rest)
    if tagged is not None:
        return split_actions(tagged)
    sentence = _after_sentence(rest)
    if sentence is not None:
        lines = [line.strip() for line in _unfenced(sentence).splitlines()]
        first = next((line for line in lines if line), "")
        return split_actions(first.strip("*` ").removesuffix(".").strip("*` "))
    return _json_actions(_json_text(rest))


def read_prediction(reply: str, *, opened: bool = False, as_json: bool = False) -> str | None:
    """The text of a world model's prediction; None without an answer.

    One space or line end on either side of it belongs to the format; more may be the edge of a
    drawing. With `as_json` the prediction is a JSON value, which is also read in a code block or
    without any mark around it.
    """
    rest = split_reply(reply, opened=opened).rest[-MAX_REPLY_CHARS:]
    tagged = _tagged(rest)
    if tagged is not None:
        return _without_edges(_unfenced(tagged) if as_json else tagged)
    sentence = _after_sentence(rest)
    if sentence is not None:
        inside = _json_text(sentence) if as_json else None
        return inside if inside is not None else _without_edges(_unfenced(sentence))
    found = _json_text(rest)
    if found is None:
        return None
    answer = _answer_key(found)
    if answer is None:
        return found if as_json else None
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def split_actions(text: str) -> tuple[str, ...]:
    """The actions that `join_actions` wrote, without white space around them."""
    parts = (part.strip() for part in text.split(SEPARATOR))
    return tuple(_ESCAPED_BAR.sub(r"|\1", part) for part in parts if part)


def _tagged(text: str) -> str | None:
    """The content of the last complete tag."""
    start = text.rfind(OPEN, 0, max(0, text.rfind(CLOSE)))
    if start < 0:
        return None
    start += len(OPEN)
    return _ESCAPED_TAG.sub(r"<\1", text[start : text.find(CLOSE, start)])


def _after_sentence(text: str) -> str | None:
    """What follows the last "The final answer is:"."""
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return text[ends[-1] :].removeprefix("**") if ends else None


def _unfenced(text: str) -> str:
    """The content of the last code block, or the text if it has none."""
    blocks = _FENCE.findall(text)
    return str(blocks[-1]) if blocks else text


def _without_edges(text: str) -> str:
    text = text[1:] if text[:1] in (" ", "\n") else text
    return text[:-1] if text[-1:] in (" ", "\n") else text


# --- JSON -----------------------------------------------------------------------------------------


def _json_text(text: str) -> str | None:
    """The JSON object in a text: in the last code block, or from the first to the last brace."""
    text = _unfenced(text)
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    found = text[start : end + 1]
    return found if _parsed(found) is not None else None


def _parsed(text: str) -> Any:
    """The value of a JSON object; None for any other text."""
    try:
        value = parse_json(text, "reply")
        # An escape may be half a character: nothing could store such an answer.
        json.dumps(value, ensure_ascii=False).encode()
    except (StoreError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _answer_key(text: str) -> Any:
    """The value of `{"answer": value}`; None for another object."""
    value = _parsed(text)
    return value["answer"] if list(value) == ["answer"] else None


def _json_actions(text: str | None) -> tuple[str, ...]:
    answer = _answer_key(text) if text is not None else None
    parts = answer if isinstance(answer, list) else [answer]
    return tuple(
        action for part in parts if isinstance(part, str) for action in split_actions(part)
    )
