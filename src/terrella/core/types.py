"""The records that everything else uses: observations, verdicts, transitions, episodes.

All of them are frozen. The seams that act on them are in `protocols.py`.
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

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal strings.

    Numbers keep their type: 1, 1.0 and true are equal in Python, but differ here.
    """
    return _CANONICAL.encode(value)


class Kind(enum.StrEnum):
    """The modality of an observation; each has its own codecs and verifiers."""

    TEXT = "text"
    STATE = "state"
    TREE = "tree"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class Text:
    """A text observation: a rendered grid, the description of a room."""

    text: str
    kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class State:
    """A structured observation, kept as canonical JSON so that it is frozen and hashable."""

    text: str
    kind = Kind.STATE

    @classmethod
    def of(cls, value: Any) -> State:
        """Make a state from plain JSON values."""
        return cls(canonical_json(value))

    @property
    def value(self) -> Any:
        """A fresh copy of the JSON value: changing it does not change the observation."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Tree:
    """An accessibility tree in its indented text form (one node per line)."""

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
            raise ValueError(f"frames must be uint8 (T, H, W, C), not {array.dtype} {array.shape}")
        t, h, w, c = array.shape
        return cls(array.tobytes(), (t, h, w, c))

    @property
    def array(self) -> NDArray[np.uint8]:
        """A read-only view of the pixels."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape)


Observation: TypeAlias = Text | State | Tree | Frames


def show_text(observation: Observation) -> str:
    """The text of an observation. Frames have none, and raise."""
    if isinstance(observation, Frames):
        raise TypeError("frames have no text: choose a verifier and a codec for frames")
    return observation.text


def same_kind(like: Observation, text: str) -> Observation:
    """The text as an observation of the same kind as `like`."""
    if isinstance(like, Frames):
        raise TypeError("text cannot be read as frames: choose a codec for frames")
    return type(like)(text)


class Status(enum.StrEnum):
    """How a verdict was reached. `ok` and `unparsable` judge the reply.

    The others name the cause for which a verdict is masked; metrics count them as `masked/STATUS`.
    """

    OK = "ok"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    """The verifier takes too long, for the truth too."""
    ERROR = "error"
    """The verifier fails, for the truth too."""
    ENV_TIMEOUT = "env_timeout"
    ENV_ERROR = "env_error"
    POLICY_ERROR = "policy_error"
    NO_JUDGE = "no_judge"
    """The task needs an opinion, and no judge was given."""
    NO_OUTCOME = "no_outcome"
    """A recorded dataset does not say whether the episode succeeded."""

    @property
    def is_masked(self) -> bool:
        """Whether a verdict of this status says nothing about the reply."""
        return self not in (Status.OK, Status.UNPARSABLE)


MASKED = tuple(status for status in Status if status.is_masked)
"""The causes of masked verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verifier's judgement of a reply: a value in [0, 1], its parts, and the evidence.

    A reply that cannot be parsed is wrong (0), and so is one that makes the verifier fail. A
    failure with another cause is masked: its value is None, so that no mean can count it as a zero.
    `core.judge` tells the two apart.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    status: Status = Status.OK
    evidence: str = ""

    def __post_init__(self) -> None:
        """Check that the value is in [0, 1], that parts are finite, and that None means masked."""
        if self.masked != (self.value is None):
            raise ValueError(f"a {self.status} verdict cannot have the value {self.value}")
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"verdict out of [0, 1]: {self.value}")
        if not all(math.isfinite(part) for part in self.parts.values()):
            raise ValueError(f"verdict with a part that is not finite: {dict(self.parts)}")

    @property
    def masked(self) -> bool:
        """True if the verdict says nothing about the reply and must be left out of every mean."""
        return self.status.is_masked

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
        """No verdict: `status` names the cause, `evidence` says more."""
        return cls(value=None, status=status, evidence=evidence)


class Stop(enum.StrEnum):
    """Why an episode ended: by the world (terminated), by a limit (truncated), or by an error."""

    TERMINATED = "terminated"
    OUT_OF_STEPS = "out_of_steps"
    OUT_OF_TOKENS = "out_of_tokens"
    UNPARSABLE = "unparsable"
    WORLD_TIMEOUT = "world_timeout"
    WORLD_ERROR = "world_error"
    POLICY_ERROR = "policy_error"

    @property
    def is_broken(self) -> bool:
        """Our code failed: the episode says nothing about the policy and is masked."""
        return self in BROKEN_STATUS

    @property
    def status(self) -> Status:
        """The status of the outcome of an episode that ended so."""
        return BROKEN_STATUS.get(self, Status.OK)


BROKEN_STATUS = {
    Stop.WORLD_TIMEOUT: Status.ENV_TIMEOUT,
    Stop.WORLD_ERROR: Status.ENV_ERROR,
    Stop.POLICY_ERROR: Status.POLICY_ERROR,
}


class Split(enum.StrEnum):
    """A part of a world's instances: validation is for choices, test for the final result."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step: the observation, the action, the next observation."""

    observation: Observation
    action: str
    next_observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def changed(self) -> bool:
        """False if the prediction that nothing changes would have been right."""
        return self.observation != self.next_observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode of a world, with everything that is needed to play it again."""

    world: str
    instance: str
    """Hash of the canonical initial state."""
    split: Split
    seed: int
    noise_seed: int
    """Seed of the dynamics noise; members of a group share `seed` and differ here."""
    policy: str
    first: Observation
    """The observation of `reset`; an episode may have no transition."""
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
        """Whether the outcome is 1. A masked outcome is neither won nor lost, and raises."""
        if self.outcome.value is None:
            raise ValueError(f"episode was masked ({self.outcome.status}): it neither won nor lost")
        return self.outcome.value == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One possible result of an action in a state, with its probability."""

    state: Any
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    probability: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a model may know at a step. Plain values, which can cross a process boundary."""

    instruction: str
    observation: Observation
    actions: tuple[str, ...]
    """Legal action names; empty when the world takes free text."""
    history: Sequence[Transition]
    steps_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Situation):
    """What a policy gets at a step: the situation, a random generator, and privileged calls."""

    rng: np.random.Generator
    proposals: Callable[[], Sequence[str]]
    """What a uniform random policy chooses from."""
    expert: Callable[[], str]
    """Privileged: the world's best action. For teachers; a learned policy must not use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted result of a step, with its log-probability and its risk of being wrong."""

    observation: Observation
    reward: float
    terminated: bool
    logprob: float
    risk: float
    success: bool = False
    """Whether the step ended the episode with success."""
