"""The default view of a world: the state's dataclass as JSON, read back with its types.

RecordView(Count).show(Count(value=1, goal=3)) -> State('{"goal":3,"value":1}')
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError
from terrella.core.instances import plain
from terrella.core.types import Observation, State


class RecordView:
    """A state dataclass as a JSON object."""

    legend = "The state is a JSON object."

    def __init__(self, record: type[Any]) -> None:
        """`record` is the frozen dataclass of the state."""
        self.record = record
        names = sorted(field.name for field in dataclasses.fields(record))
        openings = ("," if index else "{" for index in range(len(names)))
        self.vocabulary = tuple(
            f'{opening}"{name}":' for opening, name in zip(openings, names, strict=True)
        )
        """Strings that every rendering repeats; each gets a token in a small vocabulary."""

    def show(self, state: Any) -> Observation:
        return State.of(plain(state))

    def read(self, observation: Observation) -> Any | None:
        """The state; None if the text is not JSON of such a state."""
        if not isinstance(observation, State):
            return None
        try:
            return record_from_json(self.record, json.loads(observation.text))
        except (ValueError, ConfigError, RecursionError):
            return None  # not JSON, or JSON of another shape
