"""What crosses the wire as JSON, in both directions: observations, queries and predictions.

All input is untrusted. Everything that is wrong with a request is a `RequestError` with a status
and a message; no other exception leaves this module.
    (query, depth), *rest = read_queries(body, limits, instruction)
    reply = prediction_json(distribution, trust=inference.trust(risk, depth))
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import (
    Frames,
    Kind,
    Observation,
    Prediction,
    Situation,
    State,
    Text,
    Transition,
    Tree,
)
from terrella.serve.settings import ServeSettings
from terrella.verify.state import parse_state

RECORDS: dict[str, type[Text] | type[State] | type[Tree]] = {
    Kind.TEXT: Text,
    Kind.STATE: State,
    Kind.TREE: Tree,
}
MAX_ACTION = 4096
"""Characters."""
MAX_HISTORY = 1000
"""Steps."""
MAX_FRAME_DATA = 2**26
"""Characters of base64."""
MAX_SIDE = 10_000
ALTERNATIVES = 3
"""Most results of a step that are sent beside the most likely one."""
MAX_DEPTH = 10**6


class RequestError(Exception):
    """A request that cannot be served: the HTTP status, the message, and OpenEnv's error code."""

    def __init__(self, status: int, message: str, code: str = "VALIDATION_ERROR") -> None:
        self.status = status
        self.message = message
        self.code = code
        super().__init__(message)

    def json(self) -> dict[str, Any]:
        """Return the body that OpenAI's and OpenEnv's clients expect."""
        return {
            "error": {"message": self.message, "code": self.code, "type": "invalid_request_error"}
        }


def read_json(data: bytes) -> dict[str, Any]:
    """Read a JSON object strictly: no NaN, no duplicate keys, bounded depth."""
    try:
        value = parse_state(data.decode("utf-8"))
    except ValueError as error:  # also UnicodeDecodeError; the reply never repeats the input
        raise RequestError(400, f"not JSON: {type(error).__name__}", "INVALID_JSON") from error
    if not isinstance(value, dict):
        raise RequestError(422, "a JSON object is expected")
    return value


def read_text(
    body: Mapping[str, Any], key: str, max_length: int, default: str | None = None
) -> str:
    """Read a string of bounded length that can be encoded as UTF-8."""
    value = body.get(key, default)
    if not isinstance(value, str):
        raise RequestError(422, f"`{key}` must be text")
    if len(value) > max_length:
        raise RequestError(413, f"`{key}` is longer than {max_length} characters")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise RequestError(422, f"`{key}` contains a lone surrogate")
    return value


def read_int(body: Mapping[str, Any], key: str, default: int, *, low: int, high: int) -> int:
    """Read an integer within bounds."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(422, f"`{key}` must be an integer from {low} to {high}")
    return value


def read_float(
    body: Mapping[str, Any], key: str, default: float, *, low: float, high: float
) -> float:
    """Read a number within bounds."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(422, f"`{key}` must be a number from {low:g} to {high:g}")
    return float(value)


# --- observations ---------------------------------------------------------------------------------


def observation_json(observation: Observation) -> dict[str, Any]:
    """Write an observation as JSON; frames as base64 with their shape."""
    if isinstance(observation, Frames):
        data = base64.b64encode(observation.data).decode()
        return {"kind": "frames", "shape": list(observation.shape), "data": data}
    return {"kind": observation.kind.value, "text": observation.text}


def read_observation(value: Any, limits: ServeSettings.Config) -> Observation:
    """Read what `observation_json` wrote; a plain string is a text observation."""
    if isinstance(value, str):
        value = {"kind": "text", "text": value}
    if not isinstance(value, dict) or value.get("kind") not in list(Kind):
        raise RequestError(
            422, f"an observation is text, or an object whose `kind` is one of {', '.join(Kind)}"
        )
    if value["kind"] == Kind.FRAMES:
        return _read_frames(value)
    return RECORDS[Kind(value["kind"])](read_text(value, "text", limits.max_text))


def _read_frames(value: Mapping[str, Any]) -> Frames:
    shape = value.get("shape")
    if not isinstance(shape, list) or len(shape) != 4 or not all(map(_is_side, shape)):
        raise RequestError(422, "`shape` must be four integers: time, height, width, channels")
    try:
        data = base64.b64decode(read_text(value, "data", MAX_FRAME_DATA), validate=True)
        return Frames(data, (shape[0], shape[1], shape[2], shape[3]))
    except (binascii.Error, ValueError) as error:
        raise RequestError(422, "`data` must be base64 of bytes that fill the shape") from error


def _is_side(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_SIDE


# --- queries and predictions ----------------------------------------------------------------------


def read_queries(
    body: Mapping[str, Any], limits: ServeSettings.Config, instruction: str
) -> list[tuple[Query, int]]:
    """Read the `questions` of a request, each with the depth that the client has imagined to."""
    rows = body.get("questions")
    if not isinstance(rows, list) or not rows:
        raise RequestError(
            422, "`questions` must be a list of objects with `observation` and `action`"
        )
    if len(rows) > limits.max_batch:
        raise RequestError(413, f"at most {limits.max_batch} questions in a request")
    return [_read_query(row, limits, instruction) for row in rows]


def _read_query(row: Any, limits: ServeSettings.Config, instruction: str) -> tuple[Query, int]:
    if not isinstance(row, dict):
        raise RequestError(422, "a question is an object with `observation` and `action`")
    situation = Situation(
        instruction=read_text(row, "instruction", limits.max_text, instruction),
        observation=read_observation(row.get("observation"), limits),
        actions=(),
        history=_read_history(row.get("history", []), limits),
        steps_left=1,
    )
    action = read_text(row, "action", MAX_ACTION)
    depth = read_int(row, "depth", 1, low=1, high=MAX_DEPTH)
    return Query(situation, action), depth


def _read_history(rows: Any, limits: ServeSettings.Config) -> tuple[Transition, ...]:
    short_list = isinstance(rows, list) and len(rows) <= MAX_HISTORY
    if not short_list or not all(isinstance(row, dict) for row in rows):
        raise RequestError(422, f"`history` must be a list of at most {MAX_HISTORY} steps")
    return tuple(
        Transition(
            observation=read_observation(row.get("observation"), limits),
            action=read_text(row, "action", MAX_ACTION),
            next_observation=read_observation(row.get("next_observation"), limits),
        )
        for row in rows
    )


def prediction_json(
    distribution: PredictiveDistribution, *, trust: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the most likely result with its trust, then some alternatives.

    `observation` is null if no sample could be read.
    """
    results = [_result_json(result) for result in distribution.predictions[: 1 + ALTERNATIVES]]
    empty: dict[str, Any] = {
        "observation": None,
        "reward": None,
        "terminated": None,
        "success": None,
        "probability": 0.0,
    }
    first = results[0] if results else empty
    return {**first, **trust, "others": results[1:], "unreadable_samples": distribution.unreadable}


def _result_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "observation": observation_json(prediction.observation),
        "reward": prediction.reward,
        "terminated": prediction.terminated,
        "success": prediction.success,
        "probability": math.exp(min(prediction.logprob, 0.0)),
    }
