"""What crosses the wire, in both directions: observations, questions and answers as JSON. All input is untrusted.

Everything that is wrong with a request is a `RequestError` with a status and a sentence; nothing else gets out.
    question = read_question(body, limits); reply = prediction_json(belief, risk, trust, horizon)
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

from terrella.core.types import Frames, Kind, Observation, Situation, State, Text, Transition, Tree
from terrella.serve.settings import ServeSettings
from terrella.trust.beliefs import Belief, Question
from terrella.verify.state import parse_state

RECORDS: dict[str, type[Text] | type[State] | type[Tree]] = {Kind.TEXT: Text, Kind.STATE: State, Kind.TREE: Tree}
LONGEST_ACTION = 4096
MOST_HISTORY = 1000


class RequestError(Exception):
    """A request that cannot be served: which status, what is wrong, and OpenEnv's word for it."""

    def __init__(self, status: int, message: str, code: str = "VALIDATION_ERROR") -> None:
        self.status, self.message, self.code = status, message, code
        super().__init__(message)

    def json(self) -> dict[str, Any]:
        """As OpenAI's and OpenEnv's clients read it."""
        return {"error": {"message": self.message, "code": self.code, "type": "invalid_request_error"}}


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object, read strictly: no NaN, no duplicate keys, bounded depth."""
    try:
        value = parse_state(data.decode("utf-8"))
    except ValueError as error:  # also UnicodeDecodeError; the message holds a position, never the text
        raise RequestError(400, f"not JSON: {type(error).__name__}", "INVALID_JSON") from error
    if not isinstance(value, dict):
        raise RequestError(422, "a JSON object is expected")
    return value


def read_text(body: Mapping[str, Any], key: str, most: int, default: str | None = None) -> str:
    """A string of bounded length that UTF-8 can hold."""
    value = body.get(key, default)
    if not isinstance(value, str):
        raise RequestError(422, f"`{key}` must be text")
    if len(value) > most:
        raise RequestError(413, f"`{key}` is longer than {most} characters")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise RequestError(422, f"`{key}` holds half a character")
    return value


def read_whole(body: Mapping[str, Any], key: str, default: int, *, low: int, high: int) -> int:
    """A whole number inside its bounds."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(422, f"`{key}` must be a whole number from {low} to {high}")
    return value


def read_number(body: Mapping[str, Any], key: str, default: float, *, low: float, high: float) -> float:
    """A number inside its bounds."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(422, f"`{key}` must be a number from {low:g} to {high:g}")
    return float(value)


# --- observations -------------------------------------------------------------------------------------------------


def observation_json(observation: Observation) -> dict[str, Any]:
    """An observation as JSON; frames as base64 with their shape."""
    if isinstance(observation, Frames):
        data = base64.b64encode(observation.data).decode()
        return {"kind": "frames", "shape": list(observation.shape), "data": data}
    return {"kind": observation.kind.value, "text": observation.text}


def read_observation(value: Any, limits: ServeSettings.Config) -> Observation:
    """The observation that `observation_json` wrote; plain text is a text."""
    if isinstance(value, str):
        value = {"kind": "text", "text": value}
    if not isinstance(value, dict) or value.get("kind") not in list(Kind):
        raise RequestError(422, f"an observation is text, or an object whose `kind` is one of {', '.join(Kind)}")
    if value["kind"] == Kind.FRAMES:
        return _read_frames(value)
    return RECORDS[Kind(value["kind"])](read_text(value, "text", limits.max_text))


def _read_frames(value: Mapping[str, Any]) -> Frames:
    shape = value.get("shape")
    whole = isinstance(shape, list) and all(type(n) is int and 0 < n < 10_000 for n in shape)
    if not isinstance(shape, list) or not whole or len(shape) != 4:
        raise RequestError(422, "`shape` must be four whole numbers: time, height, width, channels")
    try:
        data = base64.b64decode(read_text(value, "data", 2**26), validate=True)
        return Frames(data, (shape[0], shape[1], shape[2], shape[3]))
    except (binascii.Error, ValueError) as error:
        raise RequestError(422, "`data` must be base64 of bytes that fill the shape") from error


# --- questions and answers ----------------------------------------------------------------------------------------


def read_questions(
    body: Mapping[str, Any], limits: ServeSettings.Config, instruction: str
) -> list[tuple[Question, int]]:
    """The questions of a request, each with the depth that the client says it has imagined to."""
    rows = body.get("questions")
    if not isinstance(rows, list) or not rows:
        raise RequestError(422, "`questions` must be a list of objects with `observation` and `action`")
    if len(rows) > limits.max_batch:
        raise RequestError(413, f"at most {limits.max_batch} questions in a request")
    return [_read_question(row, limits, instruction) for row in rows]


def _read_question(row: Any, limits: ServeSettings.Config, instruction: str) -> tuple[Question, int]:
    if not isinstance(row, dict):
        raise RequestError(422, "a question is an object with `observation` and `action`")
    situation = Situation(
        instruction=read_text(row, "instruction", limits.max_text, instruction),
        observation=read_observation(row.get("observation"), limits), actions=(),
        history=_read_history(row.get("history", []), limits), steps_left=1,
    )  # fmt: skip
    return Question(situation, read_text(row, "action", LONGEST_ACTION)), read_whole(row, "depth", 1, low=1, high=10**6)


def _read_history(rows: Any, limits: ServeSettings.Config) -> tuple[Transition, ...]:
    if not isinstance(rows, list) or len(rows) > MOST_HISTORY or not all(isinstance(row, dict) for row in rows):
        raise RequestError(422, f"`history` must be a list of at most {MOST_HISTORY} steps")
    return tuple(
        Transition(
            observation=read_observation(row.get("observation"), limits),
            action=read_text(row, "action", LONGEST_ACTION),
            next_observation=read_observation(row.get("next_observation"), limits),
        )
        for row in rows
    )  # fmt: skip


def prediction_json(belief: Belief, *, trust: Mapping[str, Any], others: int = 3) -> dict[str, Any]:
    """The likeliest result first, with what the certificate says; `observation` is null when nothing could be read."""
    results = [
        {"observation": observation_json(said.observation), "reward": said.reward, "terminated": said.terminated,
         "success": said.success, "probability": math.exp(min(said.logprob, 0.0))}
        for said in belief.predictions[: others + 1]
    ]  # fmt: skip
    nothing: dict[str, Any] = dict.fromkeys(("observation", "reward", "terminated", "success"))
    first = results[0] if results else {**nothing, "probability": 0.0}
    return {**first, **trust, "others": results[1:], "unreadable_samples": belief.unreadable}
