"""What engines exchange: token ids, masks and verdicts, never the inside of a world.

Ids that were sampled are the ids that are trained; nothing is tokenised again on the way.
    request = TokenRequest(prompt_ids=(1, 2), max_new_tokens=8, seed=0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from terrella.core.types import Episode, Situation, Split, Transition, Verdict

Head = Literal["token", "value"]
"""What a learner's model returns for a target: its log-probability, or a value before it."""
History = Literal["sampled", "rendered", "actions"]
"""What an agent sees of earlier turns.

sampled: the conversation itself, token by token, so that an episode is one sequence;
rendered: earlier observations and actions, written anew for each turn, without thoughts;
actions: earlier actions only, beside the current observation (WebRL's form).
With the last two, each turn has a prompt of its own.
"""


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
    """Requests of one session extend each other, so a sampler may keep the prefix cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A sampled continuation. Exactly these ids are trained on."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """True if a stop id (the last token) ended it, False if the limit did."""
    version: int = 0
    """The version of the weights that wrote it; a sampler whose weights change counts them."""


class ReplyFacts(NamedTuple):
    """The form of one reply; training metrics count it (`algos.diagnostics.reply_values`)."""

    readable: bool
    """Whether it holds an answer that could be read."""
    truncated: bool
    """Whether the token limit ended it."""
    thought_tokens: int | None = None
    """Tokens of its thought; None for a reply without one."""
    thought_truncated: bool = False
    """Whether the thought was not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEpisode:
    """An episode as an engine trains on it: model tokens and world tokens, interleaved.

    It holds a multi-turn agent (observations forced between replies) as well as a multi-step video
    model (actions forced between frames).
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    model_mask: tuple[bool, ...]
    """True for the model's tokens; world tokens carry no policy gradient."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each completion token; 0.0 on world tokens."""
    turn_ends: tuple[int, ...]
    """Index after the last token of each turn, where the turn's reward is given."""
    turn_rewards: tuple[float, ...]
    """Reward of each turn, in the world's own units."""
    outcome: Verdict
    group: str
    """Episodes of one group share a task; their verdicts are compared."""
    record: Episode | None = None
    """The episode in the world; None for a prediction task."""
    versions: tuple[int, ...] = ()
    """Version of the weights, per completion token; on world tokens that of the turn before.

    Empty where all tokens are of one version.
    """
    replies: tuple[ReplyFacts, ...] = ()
    """The form of each reply."""
    world: str = ""
    """The world's name in a run with several."""
    turn_prompts: tuple[tuple[int, ...], ...] = ()
    """The prompt of each turn, where each has its own; `prompt_ids` is the first of them then.

    The completion holds the replies in a row, without any token of the world.
    """

    def __post_init__(self) -> None:
        if self.turn_prompts and len(self.turn_prompts) < len(self.turn_ends):
            raise ValueError(
                f"{len(self.turn_ends)} turns with {len(self.turn_prompts)} prompts of their own"
            )
        lengths = {len(self.completion_ids), len(self.model_mask), len(self.logprobs)}
        lengths |= {len(self.versions)} if self.versions else set()
        if len(lengths) != 1 or len(self.turn_ends) != len(self.turn_rewards):
            raise ValueError(f"token episode with columns of different lengths: {sorted(lengths)}")

    @property
    def sequences(self) -> list[tuple[tuple[int, ...], slice]]:
        """What the model read and wrote: prompts, each with its part of the completion.

        One sequence, or one for each turn. The parts follow each other and make up the completion.
        """
        if not self.turn_prompts:
            return [(self.prompt_ids, slice(0, len(self.completion_ids)))]
        starts = (0, *self.turn_ends)
        return [
            (prompt, slice(start, end))
            for prompt, start, end in zip(self.turn_prompts, starts, self.turn_ends, strict=False)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task for a model: play an instance, or predict the result of a step."""

    seed: int
    noise_seed: int = 0
    split: Split = Split.TRAIN
    situation: Situation | None = None
    """For a world model: where the episode stood."""
    transition: Transition | None = None
    """For a world model: the step to predict. None asks for actions in the live world."""
    following: tuple[Transition, ...] = ()
    """For a world model: further steps, each predicted from the model's own last prediction."""
    world: str = ""
    """The world's name in a run with several."""
    instance: str = ""
    """For a world model: the instance that the step was taken in, where it is known."""
    written: str = ""
    """A task that was written for practice, in place of an instance (`core/written_tasks.py`)."""


@dataclass(frozen=True, kw_only=True)
class TrainExample:
    """A training example: a mask and named columns of numbers per completion token."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    mask: Sequence[bool]
    """True for tokens that are targets."""
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """One step of AdamW. Every step has its own, so that schedules belong to the caller."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Weight decay of matrices; biases and norms do not decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 leaves them as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOutput:
    """What a learner returns of a forward and backward pass over all data, on every rank."""

    loss: float
    """The sum over target tokens, of all ranks."""
    metrics: Mapping[str, float]
    """Means over target tokens, or over examples where the loss is one of whole examples."""
    outputs: Sequence[Sequence[float]]
    """Per example as `Learner.forward` returns them, before the optimizer's step."""
