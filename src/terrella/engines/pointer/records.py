"""What the pointer learner is given and what it returns. Nothing here imports torch.

steps = train_steps(attempt, outcome=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.data.attempts import Attempt
from terrella.models.policy_input import PolicyInput


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One step of a judged attempt."""

    input: PolicyInput
    next_input: PolicyInput
    taken: int
    outcome: float
    steps_to_go: int
    advantage: float = 0.0
    """Advantage within the group, for GRPO; the other losses ask the critic."""


@dataclass(frozen=True, kw_only=True)
class CriticMetrics:
    """Losses of the critic in one phase; None if it was not trained."""

    first_loss: float | None = None
    last_loss: float | None = None
    """Mean of the last ten updates."""


@dataclass(frozen=True, kw_only=True)
class ActorMetrics:
    """One phase of the actor: means of the last updates; None if there was nothing to train on."""

    loss: float | None = None
    moved: float | None = None
    """Mean absolute log-ratio to the actor at the start of the phase."""
    advantage: float | None = None


def train_steps(attempt: Attempt, outcome: float, advantage: float = 0.0) -> list[TrainStep]:
    """All steps of an attempt."""
    actions = attempt.actions
    count = len(attempt.choices)
    steps = []
    for index, choice in enumerate(attempt.choices):
        is_last = index + 1 == count
        following = choice if is_last else attempt.choices[index + 1]
        step = TrainStep(
            input=PolicyInput(
                choice.observation, choice.offered, actions[:index], choice.steps_left
            ),
            next_input=PolicyInput(
                attempt.observation_after(index),
                following.offered,
                actions[: index + 1],
                choice.steps_left - 1,
            ),
            taken=choice.taken,
            outcome=outcome,
            steps_to_go=count - 1 - index,
            advantage=advantage,
        )
        steps.append(step)
    return steps
