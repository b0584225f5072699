"""The updates of WebRL: imitation, the critic, and the actor under any of the named losses.

They know learners and steps, nothing of networks. The order of the data comes from numpy, never
from a global generator: on one thread the same inputs give the same bits.
    columns = critic_columns(actor.logprobs(steps), critic_values(critic, steps), steps)
    metrics = update_actor(actor, steps, columns, "webrl_paper", config, rng)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields

import numpy as np

from terrella.algos.webrl_config import WebRlLossConfig, WebRlUpdateConfig
from terrella.core.protocols import Progress
from terrella.core.tokens import AdamParams, LearnerOutput
from terrella.data.attempts import Attempt
from terrella.data.train_steps import TrainStep
from terrella.pipelines.webrl.agent import Actor, Columns, Critic, Judge
from terrella.pipelines.webrl.metrics import ActorMetrics, CriticMetrics
from terrella.show.progress import SilentProgress

SILENT = SilentProgress()
MEAN_OVER = 10
"""Last updates that a reported loss is the mean of."""


def begin(progress: Progress, name: str, total: int) -> None:
    """Show a part from its start: its rate counts from here."""
    progress.phase(name, total)
    progress.advance(0)


def imitate(
    actor: Actor,
    steps: Sequence[TrainStep],
    updates: int,
    config: WebRlUpdateConfig,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> list[float]:
    """Train towards the recorded actions for this many updates; returns the losses."""
    losses: list[float] = []
    begin(progress, "imitate", updates)
    rate = config.imitation_learning_rate or config.learning_rate
    while len(losses) < updates:
        for batch in _batches(len(steps), config.batch, rng):
            chosen = [steps[index] for index in batch]
            losses.append(actor.imitate(chosen, doubt=config.doubt).loss)
            actor.optim_step(_adam(rate, config))
            progress.advance(len(losses), loss=losses[-1])
            if len(losses) == updates:
                break
    return losses


def update_critic(
    critic: Critic,
    steps: Sequence[TrainStep],
    config: WebRlUpdateConfig,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> CriticMetrics:
    """Fit the critic to the outcomes of a phase."""
    losses: list[float] = []
    begin(progress, "critic", config.critic_epochs * _batch_count(len(steps), config.batch))
    for _ in range(config.critic_epochs):
        for batch in _batches(len(steps), config.batch, rng):
            losses.append(critic.forward_backward([steps[index] for index in batch]).loss)
            critic.optim_step(_adam(config.critic_learning_rate, config))
            progress.advance(len(losses), loss=losses[-1])
    if not losses:
        return CriticMetrics()
    return CriticMetrics(first_loss=losses[0], last_loss=float(np.mean(losses[-MEAN_OVER:])))


def fit_judge(
    judge: Judge,
    attempts: Sequence[Attempt],
    *,
    learning_rate: float,
    epochs: int,
    batch: int,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> None:
    """Fit an outcome model to the world's verdicts."""
    done = 0
    begin(progress, "outcome model", epochs * _batch_count(len(attempts), batch))
    for _ in range(epochs):
        for chosen in _batches(len(attempts), batch, rng):
            output = judge.forward_backward([attempts[index] for index in chosen])
            judge.optim_step(AdamParams(learning_rate=learning_rate, max_grad_norm=0.0))
            done += 1
            progress.advance(done, loss=output.loss)


# --- the actor ------------------------------------------------------------------------------------


def action_probs(actor: Actor, steps: Sequence[TrainStep]) -> list[float]:
    """The mean probability per token of each recorded action under the actor: 1 / perplexity."""
    return [math.exp(sum(each) / max(1, len(each))) for each in actor.logprobs(steps)]


def critic_values(critic: Critic, steps: Sequence[TrainStep]) -> list[tuple[float, float]]:
    """The values of the state before each step and of the one after it."""
    before = critic.values([step.input for step in steps])
    return list(zip(before, critic.values([step.next_input for step in steps]), strict=True))


def cross_fitted_values(
    open_critic: Callable[[], AbstractContextManager[Critic]],
    steps: Sequence[TrainStep],
    config: WebRlUpdateConfig,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> list[tuple[float, float]]:
    """Values of each step by a critic that is fitted to the tasks of the other folds."""
    tasks = sorted({step.task for step in steps})
    fold_of = {task: number % config.critic_folds for number, task in enumerate(tasks)}
    folds = [fold_of[step.task] for step in steps]
    values: dict[int, tuple[float, float]] = {}
    for fold in sorted(set(folds)):
        inside = [index for index, each in enumerate(folds) if each == fold]
        others = [step for step, each in zip(steps, folds, strict=True) if each != fold]
        with open_critic() as critic:
            update_critic(critic, others, config, rng, progress)
            found = critic_values(critic, [steps[index] for index in inside])
        values.update(zip(inside, found, strict=True))
    return [values[index] for index in range(len(steps))]


def critic_columns(
    references: Sequence[tuple[float, ...]],
    values: Sequence[tuple[float, float]],
    steps: Sequence[TrainStep],
) -> list[dict[str, float | Sequence[float]]]:
    """What the losses read of each step, beside the actor's own log-probability."""
    return [
        {
            "reference": reference,
            "value": value,
            "next_value": next_value,
            "outcome": step.outcome,
            "steps_to_go": float(step.steps_to_go),
        }
        for reference, (value, next_value), step in zip(references, values, steps, strict=True)
    ]


def group_columns(
    old: Sequence[tuple[float, ...]],
    references: Sequence[tuple[float, ...]],
    steps: Sequence[TrainStep],
) -> list[dict[str, float | Sequence[float]]]:
    """What GRPO reads of each step: it needs no critic."""
    return [
        {"old": before, "reference": reference, "advantage": step.advantage}
        for before, reference, step in zip(old, references, steps, strict=True)
    ]


def update_actor(
    actor: Actor,
    steps: Sequence[TrainStep],
    columns: Sequence[Columns],
    loss: str,
    config: WebRlUpdateConfig,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> ActorMetrics:
    """One phase. The values and the reference policy in `columns` do not change in it."""
    losses, moved = [], []
    advantage = None
    begin(progress, "actor", config.epochs * _batch_count(len(steps), config.batch))
    for _ in range(config.epochs):
        for batch in _batches(len(steps), config.batch, rng):
            chosen = [steps[index] for index in batch]
            read = [{**columns[index], "weight": 1 / len(batch)} for index in batch]
            output = _backward(actor, chosen, read, loss, config)
            actor.optim_step(_adam(config.learning_rate, config))
            losses.append(output.loss)
            moved.append(_moved(output, read))
            progress.advance(len(losses), loss=output.loss, moved=moved[-1])
            advantage = output.metrics.get("advantage", _mean_of(read, "advantage"))
    if not losses:
        return ActorMetrics()
    return ActorMetrics(
        loss=float(np.mean(losses[-MEAN_OVER:])),
        moved=float(np.mean(moved[-MEAN_OVER:])),
        advantage=advantage,
    )


def _backward(
    actor: Actor,
    steps: Sequence[TrainStep],
    columns: Sequence[Columns],
    loss: str,
    config: WebRlUpdateConfig,
) -> LearnerOutput:
    """GRPO is the policy loss. Other losses get a KL penalty from the same loss, if wanted."""
    if loss == "grpo":
        clip = {"clip_low": config.clip, "clip_high": config.clip}
        return actor.forward_backward(steps, columns, "policy", kl=config.kl, **clip)
    knobs = {each.name: asdict(config)[each.name] for each in fields(WebRlLossConfig)}
    output = actor.forward_backward(steps, columns, loss, **knobs)
    if config.kl:
        unrewarded = [{**each, "old": each["reference"], "advantage": 0.0} for each in columns]
        actor.forward_backward(steps, unrewarded, "policy", kl=config.kl)
    return output


def _moved(output: LearnerOutput, columns: Sequence[Columns]) -> float:
    """Mean distance from the reference, in nats per token."""
    distances = []
    for now, read in zip(output.outputs, columns, strict=True):
        before = read["reference"]
        assert isinstance(before, Sequence)
        distances.append(abs(sum(now) - sum(before)) / max(1, len(before)))
    return float(np.mean(distances))


def _mean_of(columns: Sequence[Columns], name: str) -> float | None:
    values = [each[name] for each in columns if name in each]
    return float(np.mean(values)) if values else None


def sibling_advantages(
    attempts: Sequence[Attempt], outcomes: Sequence[float | None], group_size: int
) -> list[float]:
    """GRPO's advantage of each attempt among those at the same task; 0 without an outcome."""
    from terrella.algos.advantages import listed_group_advantages

    groups: dict[str, list[float]] = {}
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        group = groups.setdefault(attempt.task.name, [math.nan] * group_size)
        group[attempt.task.noise_seed] = math.nan if outcome is None else outcome
    if not groups:
        return []
    by_task = dict(zip(groups, listed_group_advantages(list(groups.values())), strict=True))
    return [float(by_task[attempt.task.name][attempt.task.noise_seed]) for attempt in attempts]


def _adam(learning_rate: float, config: WebRlUpdateConfig) -> AdamParams:
    return AdamParams(learning_rate=learning_rate, max_grad_norm=config.max_norm)


def _batch_count(count: int, size: int) -> int:
    return -(-count // size)


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    order = rng.permutation(count).tolist()
    yield from (order[start : start + size] for start in range(0, count, size))
