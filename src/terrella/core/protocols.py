"""Every seam of Terrella: what you plug in implements one of these protocols.

A new modality needs a codec (observations to token ids and back) and a verifier (prediction against
truth). A world is a `gymnasium.Env` (`core/world.py`), and so is an imagined world.
    class Mine:  # a verifier of your own
        def verify(self, reply, truth, before): return Verdict.of(float(reply == truth))
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.tokens import (
    AdamParams,
    History,
    LearnerOutput,
    Sampled,
    TokenRequest,
    TrainExample,
)
from terrella.core.types import (
    Moment,
    Observation,
    Situation,
    Verdict,
)

S = TypeVar("S")


@runtime_checkable
class View(Protocol[S]):
    """Renders a state for a model, and reads it back: `read(show(state)) == state`."""

    legend: str
    """The meaning of the symbols; it becomes part of the instruction."""

    def show(self, state: S) -> Observation: ...

    def read(self, observation: Observation) -> S | None:
        """The rendered state; None if this is not the rendering of a state."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Compares a reply with the truth. `before` is the observation before the step.

    The reply is untrusted: one that cannot be read gets `Verdict.unparsable`. An exception is a bug
    in the verifier; callers use `core.judge.judge`, which scores 0 if the reply alone causes it and
    masks the verdict otherwise.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict: ...


@runtime_checkable
class BatchVerifier(Verifier, Protocol):
    """A verifier that is faster on many replies together."""

    def verify_many(
        self,
        replies: Sequence[Observation | None],
        truths: Sequence[Observation],
        befores: Sequence[Observation],
    ) -> list[Verdict]:
        """As `verify`, in order; None is a reply that could not be read."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. It keeps no state, so one object serves any number of episodes."""

    name: str

    def act(self, moment: Moment) -> str: ...


@runtime_checkable
class TurnPolicy(Policy, Protocol):
    """A policy that chooses several actions at once, such as a model whose reply lists them."""

    def act_turn(self, moment: Moment) -> tuple[str, ...]:
        """The actions of this turn, in order; the rest is dropped when the episode ends."""
        ...


@runtime_checkable
class WorldModel(Protocol):
    """Predicts the results of actions: a learned model, a baseline, or a world's own dynamics."""

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """One distribution over results for each query, computed as one batch."""
        ...


@runtime_checkable
class AsyncWorldModel(WorldModel, Protocol):
    """A world model whose concurrent calls share batches."""

    async def predict_async(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """As `predict`, without blocking the caller's event loop."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Shows the progress of a long command: a live display, or plain lines."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        ...

    def advance(self, done: int, **metrics: float) -> None:
        """Report how many units are done so far; the first call of a phase starts its rate."""
        ...

    def note(self, text: str) -> None:
        """Say what is being done, where it has no units to count."""
        ...


class Tokenizer(Protocol):
    """What a codec needs from a tokenizer; every Hugging Face tokenizer has it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


@runtime_checkable
class Codec(Protocol):
    """Turns observations and actions into token ids, and replies back. Nothing else does."""

    stop_ids: tuple[int, ...]
    """Ids that end the model's turn."""

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """The prompt of an agent at the start of an episode."""
        ...

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """The prompt of a world model: which observation follows this action?"""
        ...

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """The world's tokens after the model's turn, up to where the model writes again.

        If the reply was cut off, they begin with the end of the turn. That is the first stop id; a
        reply that another stop id ended counts as cut off here.
        """
        ...

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply with these actions, as a target for imitation."""
        ...

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The reply that predicts this observation, as a target for SFT."""
        ...

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions in a reply; empty if none can be read."""
        ...

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`; None if it cannot be read."""
        ...


@runtime_checkable
class TurnCodec(Codec, Protocol):
    """A codec that writes the prompt of any turn from the situation alone."""

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """The prompt of an agent in the middle of an episode; see `core.tokens.History`."""
        ...


@runtime_checkable
class ThoughtReader(Protocol):
    """A codec whose replies may hold a thought before the answer."""

    def read_thought(self, token_ids: Sequence[int]) -> tuple[int, bool] | None:
        """The thought's tokens, and whether it was not ended; None for a reply without one."""
        ...


@runtime_checkable
class TargetCodec(Protocol):
    """A codec that knows which tokens of a canonical reply should be learnt."""

    def targets(self, reply: Sequence[int]) -> tuple[bool, ...]:
        """True for the tokens that SFT trains."""
        ...


@runtime_checkable
class RolloutCodec(Codec, Protocol):
    """A codec that predicts several steps in a row, with actions forced in between."""

    allowed_ids: tuple[int, ...] | None
    """Ids that may occur in an observation; sampling masks all others. None allows all."""

    def go_on(self, action: str) -> tuple[int, ...]:
        """The forced tokens after a predicted observation: the next action."""
        ...

    def read_rollout(
        self, situation: Situation, replies: Sequence[Sequence[int]]
    ) -> list[Observation | None]:
        """The predicted observations in order; None where one cannot be read."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Token ids in, token ids and log-probabilities out, in continuous batches."""

    async def sample(self, request: TokenRequest) -> Sampled:
        """Sample one continuation."""
        ...

    def release(self, session: str) -> None:
        """Forget what was kept for a session."""
        ...


@runtime_checkable
class BoundedSampler(Protocol):
    """A sampler that knows how much its model can read."""

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its continuation together; 0 for no bound."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A model in training: a policy, a critic or an outcome model. The verbs are Tinker's.

    A loss is a sum over target tokens, each with the weight in its column `weight` (1 where there
    is none). Nothing is averaged, so micro-batches, ranks and calls add up: a caller who wants a
    mean divides the weights. Gradients accumulate until `optim_step`.

    All ranks of a launched run call each verb together and pass the same data. The learner shares
    them out, and every rank gets the whole answer.
    """

    def forward(self, data: Sequence[TrainExample]) -> list[tuple[float, ...]]:
        """Per completion token its log-probability, or with a value head the value before it.

        0.0 on tokens that are no targets. The result can be a column of the same example.
        """
        ...

    def forward_backward(
        self, data: Sequence[TrainExample], loss: str, **knobs: float | str
    ) -> LearnerOutput:
        """Add the gradient of a named loss (`algos.named_losses`) to those so far."""
        ...

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """Step with the gradients so far, then drop them; returns `grad_norm` before clipping."""
        ...

    def save_state(self, folder: Path) -> None:
        """Save what training needs to continue bit by bit; the folder is whole or absent."""
        ...

    def load_state(self, folder: Path) -> None:
        """Continue from `save_state`; gradients so far are dropped."""
        ...

    def export(self, folder: Path) -> None:
        """Write a plain Hugging Face folder, with a value head in a file beside the weights.

        A learner with a value head that starts from the folder reads it back.
        """
        ...

    def sampler(self) -> AbstractContextManager[Sampler]:
        """A sampler of the current weights. Training waits until it is closed."""
        ...
