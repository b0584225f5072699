"""All seams of Terrella on one page. What you plug in implements one of these; nothing else is needed.

A modality changes two things: the codec (observation <-> token ids) and the verifier (prediction vs truth).
A world is a `gymnasium.Env` (`core/world.py`); a world model stands behind the same door.
    class Mine:  # a verifier of your own
        def verify(self, reply, truth, before): return Verdict.of(float(reply == truth))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from terrella.core.types import Episode, Moment, Observation, Prediction, Situation, Split, Transition, Verdict

S = TypeVar("S")


@runtime_checkable
class View(Protocol[S]):
    """What a model is shown of a state. Every view can be read back: `read(show(state)) == state`."""

    legend: str
    """What the symbols mean; part of the instruction, so that it always matches what is drawn."""

    def show(self, state: S) -> Observation:
        """Render the state."""
        ...

    def read(self, observation: Observation) -> S | None:
        """The state that was rendered, or None when this is not a rendering of any state."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Compares a reply with the truth. `before` is what was seen before the step (for changes and baselines).

    The reply is untrusted: one that cannot be read is `Verdict.unparsable`. An exception is a bug of ours:
    callers go through `core.judge.judge`, which masks it.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Judge `reply` against `truth`."""
        ...


@runtime_checkable
class BatchVerifier(Verifier, Protocol):
    """A verifier that judges many replies faster together than one by one."""

    def verify_many(self, replies: Sequence[Observation | None], truths: Sequence[Observation]) -> list[Verdict]:
        """As `verify`, in order; None is a reply that could not be read."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Chooses an action. The same object serves any number of episodes: it keeps no state between moments."""

    name: str

    def act(self, moment: Moment) -> str:
        """The action, as text."""
        ...


@runtime_checkable
class AsyncPolicy(Protocol):
    """A policy that waits for something (an engine, an endpoint) while other episodes go on."""

    name: str

    async def act(self, moment: Moment) -> str:
        """The action, as text."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Who shows how far a long command is: a live display in a terminal, plain lines elsewhere."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        ...

    def advance(self, done: int, **figures: float) -> None:
        """Say how many units are done so far; the first call of a phase is where its rate is counted from."""
        ...


# --- what an engine sees: token ids, masks, verdicts; never a world's insides --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One continuation to sample. Requests with the same `prompt_ids` share one prefill."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    """Same seed, same sample, whatever else is in the batch."""
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    session: str | None = None
    """Requests of one session extend each other: the sampler may keep the cache of the common prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What was sampled: these ids are the ones that are trained; nothing is ever re-tokenised."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """True when a stop id ended it (the id is the last token), False when the limit did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEpisode:
    """An episode as an engine trains on it: model tokens and world tokens, interleaved.

    A multi-turn agent (observations forced between replies) and a multi-step video model (actions forced
    between frames) are both this.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    model_mask: tuple[bool, ...]
    """True where the model wrote the token; world tokens carry no policy gradient."""
    logprobs: tuple[float, ...]
    """Of the sampler, per completion token; 0.0 on world tokens."""
    turn_ends: tuple[int, ...]
    """Index after the last token of each turn: where a turn's reward is paid."""
    turn_rewards: tuple[float, ...]
    """In the world's own units; a turn that earned 0 is still a turn."""
    outcome: Verdict
    group: str
    """Episodes of one group answer the same question; their verdicts are compared."""
    record: Episode | None = None
    """What happened, in the world's words; None for a question with one answer."""

    def __post_init__(self) -> None:
        """Refuse columns that are not aligned."""
        lengths = {len(self.completion_ids), len(self.model_mask), len(self.logprobs)}
        if len(lengths) != 1 or len(self.turn_ends) != len(self.turn_rewards):
            raise ValueError(f"token episode with columns of different lengths: {sorted(lengths)}")


class Tokenizer(Protocol):
    """What a codec needs of a tokenizer; every Hugging Face tokenizer has it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Ids to text."""
        ...


@runtime_checkable
class Codec(Protocol):
    """The only place where observations and actions become token ids and come back."""

    stop_ids: tuple[int, ...]
    """Ids that end a turn of the model."""

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """The prompt of an agent at the start of an episode."""
        ...

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """The prompt of a world model: what comes after this action?"""
        ...

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """What the world forces after a turn of the model, up to where the model writes again.

        A reply that was cut off did not end its turn: the world ends it first.
        """
        ...

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply that does this: what imitation trains on."""
        ...

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The reply that predicts this."""
        ...

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Actions in a reply; empty when there is none that can be read."""
        ...

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation in a reply, of the same kind as `like`; None when it cannot be read."""
        ...


@runtime_checkable
class RolloutCodec(Codec, Protocol):
    """What a codec adds to predict many steps in a row: actions are forced between the model's observations."""

    allowed_ids: tuple[int, ...] | None
    """Ids that an observation may be written with; others are masked at sampling. None allows all."""

    def go_on(self, action: str) -> tuple[int, ...]:
        """What is forced after a predicted observation: the next action, up to where the model writes again."""
        ...

    def read_rollout(self, situation: Situation, replies: Sequence[Sequence[int]]) -> list[Observation | None]:
        """The observations that were predicted one after another from a situation; None where one cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question for a model, as a value: play this instance, or say what comes after this step."""

    seed: int
    noise_seed: int = 0
    split: Split = Split.TRAIN
    situation: Situation | None = None
    """For a world model: where the episode stood."""
    transition: Transition | None = None
    """For a world model: the step whose result is asked for. None asks for actions, in the live world."""
    following: tuple[Transition, ...] = ()
    """For a world model: steps to predict after it, each upon the model's own prediction; their actions are forced."""


@runtime_checkable
class Sampler(Protocol):
    """Token ids in, token ids and log-probabilities out, in continuous batches."""

    async def sample(self, request: TokenRequest) -> Sampled:
        """Sample one continuation."""
        ...

    def release(self, session: str) -> None:
        """A session is over: whatever was kept for it can go."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by name or folder, as every engine understands it (a plain Hugging Face folder)."""

    path: str


@runtime_checkable
class Engine(Protocol):
    """Who moves the weights. Engine libraries are imported nowhere else."""

    def sampler(self, model: ModelRef) -> Sampler:
        """Something to sample from."""
        ...

    def sft(self, model: ModelRef, episodes: Iterator[TokenEpisode], out: Path) -> ModelRef:
        """Fit the model to the masked tokens of the episodes."""
        ...

    def rlvr(self, model: ModelRef, tasks: Iterator[Task], out: Path) -> ModelRef:
        """Sample, verify, push up the better ones."""
        ...


@runtime_checkable
class WorldModel(Protocol):
    """A learned world: from a history and an action, what comes next, and how far not to believe it."""

    def predict(self, history: Sequence[Transition], observation: Observation, action: str) -> Prediction:
        """Predict one step."""
        ...
