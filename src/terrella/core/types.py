"""The words everything else is written in: observations, verdicts, transitions, episodes.

All records are frozen and know nothing about how they were made. Behaviour lives in `protocols.py`.
    Verdict.of(0.5, precision=1.0, recall=0.33); Episode(...).success
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN. Equal strings, equal values.

    Numbers keep their kind: 1, 1.0 and true are equal in Python and three different values here.
    """
    return _CANONICAL.encode(value)


class Kind(enum.StrEnum):
    """What an observation is made of; a codec and a verifier exist per kind."""

    TEXT = "text"
    STATE = "state"
    TREE = "tree"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class Text:
    """An observation in words or characters: a rendered grid, a room description."""

    text: str
    kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class State:
    """A structured observation. Held as canonical JSON, so that it is frozen, hashable and comparable."""

    text: str
    kind = Kind.STATE

    @classmethod
    def of(cls, value: Any) -> State:
        """Make a state from plain JSON values."""
        return cls(canonical_json(value))

    @property
    def value(self) -> Any:
        """The JSON value, fresh at each call: changing it does not change the observation."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Tree:
    """An accessibility tree in its indented text form (one node a line)."""

    text: str
    kind = Kind.TREE


@dataclass(frozen=True, slots=True)
class Frames:
    """Images as bytes: `shape` is (time, height, width, channels), values are uint8."""

    data: bytes
    shape: tuple[int, int, int, int]
    kind = Kind.FRAMES

    def __post_init__(self) -> None:
        """Refuse bytes that do not fill the shape."""
        if len(self.data) != math.prod(self.shape):
            raise ValueError(f"{len(self.data)} bytes do not fill frames of shape {self.shape}")

    @classmethod
    def of(cls, array: NDArray[np.uint8]) -> Frames:
        """Copy a uint8 array of shape (time, height, width, channels)."""
        if array.dtype != np.uint8 or array.ndim != 4:
            raise ValueError(f"frames want uint8 (T, H, W, C), not {array.dtype} {array.shape}")
        t, h, w, c = array.shape
        return cls(array.tobytes(), (t, h, w, c))

    @property
    def array(self) -> NDArray[np.uint8]:
        """A read-only view of the pixels."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape)


Observation: TypeAlias = Text | State | Tree | Frames


def show_text(observation: Observation) -> str:
    """The characters of an observation; frames have none, and saying so beats an empty string."""
    if isinstance(observation, Frames):
        raise TypeError("frames have no text: choose a verifier and a codec for frames")
    return observation.text


class Status(enum.StrEnum):
    """How a verdict came about. Only `ok` and `unparsable` are about the reply."""

    OK = "ok"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says of a reply: a value in [0, 1], the parts it was made of, and the evidence.

    A reply that cannot be parsed is a wrong answer (0). A time-out or an exception is *our* fault: its value
    is None, so that no mean can swallow it as a zero. `masked` says so; `Tally` counts them.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    status: Status = Status.OK
    evidence: str = ""

    def __post_init__(self) -> None:
        """Refuse a value outside [0, 1], a part that is not finite, a masked value that is a number."""
        if self.masked != (self.value is None):
            raise ValueError(f"a {self.status} verdict cannot have the value {self.value}")
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"verdict out of [0, 1]: {self.value}")
        if not all(math.isfinite(part) for part in self.parts.values()):
            raise ValueError(f"verdict with a part that is not finite: {dict(self.parts)}")

    @property
    def masked(self) -> bool:
        """True when the verdict says nothing about the reply and must be left out of every mean."""
        return self.status in (Status.TIMEOUT, Status.ERROR)

    @classmethod
    def of(cls, value: float, evidence: str = "", **parts: float) -> Verdict:
        """A verdict on a reply that could be read."""
        return cls(value=value, parts=parts, evidence=evidence)

    @classmethod
    def unparsable(cls, evidence: str) -> Verdict:
        """A verdict on a reply that could not be read: wrong, with the reason."""
        return cls(value=0.0, status=Status.UNPARSABLE, evidence=evidence)

    @classmethod
    def failed(cls, status: Status, evidence: str) -> Verdict:
        """No verdict: our code timed out or raised."""
        return cls(value=None, status=status, evidence=evidence)


class Stop(enum.StrEnum):
    """Why an episode ended. `terminated` by the world is not `truncated` by us, and errors are neither."""

    TERMINATED = "terminated"
    OUT_OF_STEPS = "out_of_steps"
    OUT_OF_TOKENS = "out_of_tokens"
    UNPARSABLE = "unparsable"
    WORLD_TIMEOUT = "world_timeout"
    WORLD_ERROR = "world_error"
    POLICY_ERROR = "policy_error"

    @property
    def is_truncated(self) -> bool:
        """We ended it: time, tokens or budget ran out."""
        return self in (Stop.OUT_OF_STEPS, Stop.OUT_OF_TOKENS)

    @property
    def is_broken(self) -> bool:
        """Something of ours failed: the episode says nothing about the policy and is masked."""
        return self in (Stop.WORLD_TIMEOUT, Stop.WORLD_ERROR, Stop.POLICY_ERROR)


class Split(enum.StrEnum):
    """Which part of a world's instances: validation chooses, test is read once."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One observed step: what was seen, what was done, what came next."""

    observation: Observation
    action: str
    next_observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def changed(self) -> bool:
        """False when predicting 'nothing happens' would have been right."""
        return self.observation != self.next_observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One play of a world from reset to stop, with everything needed to play it again."""

    world: str
    instance: str
    """Hash of the canonical initial state: two episodes of one instance share it."""
    split: Split
    seed: int
    noise_seed: int
    """Seed of the dynamics noise: members of a group share `seed` and differ here."""
    policy: str
    first: Observation
    """What `reset` showed; kept apart because an episode may have no transition."""
    transitions: tuple[Transition, ...]
    stop: Stop
    outcome: Verdict
    """The world's verdict on the whole episode (success, for most worlds)."""
    error: str = ""

    @property
    def total_reward(self) -> float:
        """Undiscounted return, in the world's own units."""
        return sum(step.reward for step in self.transitions)

    @property
    def success(self) -> bool:
        """True when the outcome is a full 1; a masked outcome raises, for it is neither."""
        if self.outcome.value is None:
            raise ValueError(f"episode was masked ({self.outcome.status}): it neither won nor lost")
        return self.outcome.value == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One possible result of an action in a state, with its probability: a world's exact truth."""

    state: Any
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    probability: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where an episode stands, as a model may know it: plain values that can cross a process boundary."""

    instruction: str
    observation: Observation
    actions: tuple[str, ...]
    """Legal action names; empty when the world takes free text."""
    history: Sequence[Transition]
    steps_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Situation):
    """What a policy is asked at a step: the situation, its random numbers, and what only teachers may ask."""

    rng: np.random.Generator
    proposals: Callable[[], Sequence[str]]
    """What a uniform random policy chooses from."""
    expert: Callable[[], str]
    """Privileged: the world's own best action. Teachers ask it; learned policies must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a world model says comes next, how likely it found it, and how far not to believe it."""

    observation: Observation
    reward: float
    terminated: bool
    logprob: float
    risk: float
    success: bool = False
    """Whether the step that ended the episode won it."""


@dataclass(slots=True)
class Tally:
    """Counts verdicts so that masked ones are seen, and averages only what may be averaged."""

    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    total: float = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self.counts[verdict.status] += 1
        self.total += verdict.value or 0.0

    @property
    def masked(self) -> int:
        """How many verdicts say nothing about a reply."""
        return self.counts[Status.TIMEOUT] + self.counts[Status.ERROR]

    @property
    def mean(self) -> float | None:
        """Mean over the verdicts that count; None when there are none."""
        counted = sum(self.counts.values()) - self.masked
        return self.total / counted if counted else None
