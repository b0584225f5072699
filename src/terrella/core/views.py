"""The view that every world gets for free: a frozen dataclass shown as JSON, and read back with its types.

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
        self.words = tuple(f'{"," if place else "{"}"{name}":' for place, name in enumerate(names))
        """What every rendering repeats: worth a token each in a small vocabulary."""

    def show(self, state: Any) -> Observation:
        """The state as canonical JSON."""
        return State.of(plain(state))

    def read(self, observation: Observation) -> Any | None:
        """The state again, or None for JSON that is not such a state."""
        if not isinstance(observation, State):
            return None
        try:
            return record_from_json(self.record, json.loads(observation.text))
        except (ValueError, ConfigError, RecursionError):  # not JSON, or JSON of another shape: not a state
            return None
