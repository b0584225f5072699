"""What WebRL's loop knows of its models: an actor, a critic and a judge that learn, and a player.

A model is known by its file or folder. Learners have the verbs of `core.protocols.Learner`; their
data are steps of attempts, so the same updates (`updates.py`) train a pointer network and a
language model. `engines/pointer/agent.py` and `language_agent.py` implement this.
    with agent.actor(phase.previous.actor) as actor:
        update_actor(actor, steps, columns, "webrl_paper", config, rng)
        actor.save(phase.actor)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from terrella.core.tokens import AdamParams, LearnerOutput
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal
from terrella.data.attempts import Attempt, PracticeTask
from terrella.data.train_steps import TrainStep
from terrella.models.policy_input import PolicyInput
from terrella.rollout.batch_rollout import Watch, unwatched

Columns = Mapping[str, float | Sequence[float]]
"""What a loss reads of one step: a number, or one for each token of the action."""


class Trainable(Protocol):
    """A model in training."""

    def optim_step(self, adam: AdamParams) -> Mapping[str, float]: ...

    def save(self, path: Path) -> None:
        """Write what the next phase starts from; whole or not at all."""
        ...


class Actor(Trainable, Protocol):
    """A policy in training."""

    def logprobs(self, steps: Sequence[TrainStep]) -> list[tuple[float, ...]]:
        """Log-probabilities of the tokens of each recorded action.

        An action of a pointer network is one token.
        """
        ...

    def forward_backward(
        self,
        steps: Sequence[TrainStep],
        columns: Sequence[Columns],
        loss: str,
        **knobs: float | str,
    ) -> LearnerOutput:
        """Add the gradient of a named loss. `weight` is a column: losses are sums."""
        ...

    def imitate(self, steps: Sequence[TrainStep], *, doubt: float) -> LearnerOutput:
        """Add the gradient of the mean cross-entropy with the recorded actions.

        A share `doubt` of the target is spread over the offered actions.
        """
        ...


class Critic(Trainable, Protocol):
    """Predicts success."""

    def values(self, inputs: Sequence[PolicyInput]) -> list[float]:
        """The probability of success in each situation, by the lower of two heads."""
        ...

    def forward_backward(self, steps: Sequence[TrainStep]) -> LearnerOutput:
        """Add the gradient of the cross-entropy with the outcome, a mean over steps.

        It is taken for both heads, at each state and at the one after it.
        """
        ...


class Judge(Trainable, Protocol):
    """Judges whether an attempt succeeded, from its actions and its last page."""

    def logits(self, attempts: Sequence[Attempt]) -> list[float]:
        """Log-odds of success."""
        ...

    def forward_backward(self, attempts: Sequence[Attempt]) -> LearnerOutput:
        """Add the gradient of the mean cross-entropy with the world's verdicts."""
        ...


class Player(Protocol):
    """Plays practice tasks with an actor."""

    def play(
        self,
        tasks: Sequence[PracticeTask],
        *,
        split: Split,
        max_env_steps: int = 0,
        greedy: bool = False,
        watch: Watch = unwatched,
        journal: AttemptJournal | None = None,
    ) -> list[Attempt]:
        """Attempts in the order of the tasks.

        No task is started once `max_env_steps` are used; 0 plays all tasks. What a journal has kept
        is not played again.
        """
        ...


class Writer(Protocol):
    """Writes text on request: the instructions of a curriculum."""

    def complete(self, prompt: str, seed: int) -> str: ...


class Agent(Protocol):
    """The models of a run. A path of None is a new model."""

    suffix: str
    """What follows the name of a model: `.safetensors` for files, nothing for folders."""

    writes: bool
    """Whether it can imitate an action that was not offered."""

    def in_own_words(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Demonstrations as this agent would have written their actions."""
        ...

    def writer(self, actor: Path, *, reply_tokens: int) -> AbstractContextManager[Writer]:
        """The actor as a writer; a model that writes nothing raises."""
        ...

    def player(self, actor: Path) -> AbstractContextManager[Player]: ...

    def actor(self, saved: Path | None) -> AbstractContextManager[Actor]: ...

    def critic(self, saved: Path | None, *, base: Path) -> AbstractContextManager[Critic]:
        """`base` is the first actor, from which a new critic may start."""
        ...

    def judge(self, saved: Path | None, *, base: Path) -> AbstractContextManager[Judge]: ...
