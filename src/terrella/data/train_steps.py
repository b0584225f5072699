"""Steps of judged attempts: what the actor, the critic and replay of WebRL work on.

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
    """Index of the chosen action among the offered ones; -1 if it was written freely."""
    action: str
    reply_ids: tuple[int, ...]
    """What a language model wrote; empty for other actors and for demonstrations."""
    outcome: float
    steps_to_go: int
    advantage: float = 0.0
    """Advantage within the group, for GRPO; the other losses ask the critic."""
    task: str = ""
    """Steps of one task are in one fold of a cross-fitted critic."""


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
                choice.observation,
                choice.offered,
                actions[:index],
                choice.steps_left,
                attempt.instruction,
            ),
            next_input=PolicyInput(
                attempt.observation_after(index),
                following.offered,
                actions[: index + 1],
                choice.steps_left - 1,
                attempt.instruction,
            ),
            taken=choice.taken,
            action=choice.action,
            reply_ids=choice.reply_ids,
            outcome=outcome,
            steps_to_go=count - 1 - index,
            advantage=advantage,
            task=attempt.name,
        )
        steps.append(step)
    return steps
