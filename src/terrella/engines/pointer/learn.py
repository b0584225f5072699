"""Moves the weights of pointing policies: imitation, the critic's update, the actor's update under any of the losses.

Every function is a pure function of weights, optimiser state, data and a random stream: on one thread the same inputs
give the same bits. The order of the data comes from numpy, never from a global generator.
    learner = Learner.Config(learning_rate=1e-3).build(); learner.actor(net, lessons, critic, "webrl_paper", rng)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from terrella.algos.advantages import group_advantages
from terrella.algos.losses import LossInputs, k3, policy_loss
from terrella.algos.webrl import ACTOR_LOSSES, JudgedSteps, Knobs, critic_loss, pessimistic_value
from terrella.core.config import Configurable
from terrella.data.attempts import Attempt
from terrella.data.store import write_atomic
from terrella.models.pointer import PointerPolicy, Reader, Sight, Sizes, TwoHeads


@dataclass(frozen=True, slots=True)
class Lesson:
    """One step to learn from."""

    sight: Sight
    after: Sight
    taken: int
    outcome: float
    steps_to_go: int
    advantage: float = 0.0
    """Of its group, for GRPO; the other losses ask the critic."""


def lessons_of(attempt: Attempt, outcome: float, advantage: float = 0.0) -> list[Lesson]:
    """All steps of an attempt."""
    done, found, count = attempt.actions, [], len(attempt.choices)
    for n, choice in enumerate(attempt.choices):
        follows = attempt.choices[n + 1] if n + 1 < count else None
        after = Sight(attempt.seen_after(n), follows.offered if follows else choice.offered, done[: n + 1],
                      choice.steps_left - 1)  # fmt: skip
        sight = Sight(choice.observation, choice.offered, done[:n], choice.steps_left)
        found.append(Lesson(sight, after, choice.taken, outcome, count - 1 - n, advantage))
    return found


class Net:
    """A network with its optimiser: what a phase hands on to the next."""

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        """Plain AdamW, as published."""
        self.module = module
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0)

    def save(self, path: Path) -> None:
        """Weights and optimiser state in one safetensors file: whole or absent, never pickled."""
        tensors = {f"weight/{name}": value for name, value in self.module.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": torch.as_tensor(value) for name, value in state.items()}
        write_atomic(path, save({name: value.contiguous() for name, value in tensors.items()}))

    def load(self, path: Path) -> None:
        """What `save` wrote."""
        tensors = load_file(path)
        weights = {name[7:]: value for name, value in tensors.items() if name.startswith("weight/")}
        self.module.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam/"):
                _, index, key = name.split("/")
                state.setdefault(int(index), {})[key] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})


def make_net(
    kind: Literal["actor", "critic"], sizes: Sizes, *, learning_rate: float, seed: int, path: Path | None = None
) -> Net:
    """A new network by its seed, or one as a file holds it. No global generator moves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = PointerPolicy(sizes) if kind == "actor" else TwoHeads(sizes)
    net = Net(module, learning_rate)
    if path is not None:
        net.load(path)
    return net


def sibling_advantages(attempts: Sequence[Attempt], outcomes: Sequence[float | None], group_size: int) -> list[float]:
    """GRPO's advantage of each attempt among those at the same task; what was not judged earns none."""
    groups: dict[str, list[float]] = {}
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        row = groups.setdefault(attempt.task.name, [torch.nan] * group_size)
        row[attempt.task.noise_seed] = torch.nan if outcome is None else outcome
    if not groups:
        return []
    found = dict(zip(groups, group_advantages(torch.tensor(list(groups.values()))).tolist(), strict=True))
    return [float(found[attempt.task.name][attempt.task.noise_seed]) for attempt in attempts]


class Learner(Configurable):
    """The updates."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Knobs, Configurable.Config):
        """How hard, how often; the numbers of the losses are their own (`Knobs`)."""

        learning_rate: float = 1e-3
        critic_learning_rate: float = 1e-3
        batch: int = 64
        epochs: int = 4
        """Passes of the actor over a phase's data."""
        critic_epochs: int = 4
        max_norm: float = 1.0
        clip: float = 0.2
        """GRPO's."""
        doubt: float = 0.2
        """Imitation: this share of a target goes to all offered actions alike: certainty explores nothing."""
        kl: float = 0.0
        """A KL penalty for losses without one of their own."""

    config: Config

    def __init__(self, config: Config) -> None:
        """With a reader of its own."""
        super().__init__(config)
        self.reader = Reader()

    # --- imitation --------------------------------------------------------------------------------------------------

    def imitate(self, actor: Net, lessons: Sequence[Lesson], updates: int, rng: np.random.Generator) -> list[float]:
        """So many updates towards what was done; returns the losses."""
        losses: list[float] = []
        while len(losses) < updates:
            for batch in _batches(len(lessons), self.config.batch, rng):
                chosen = [lessons[index] for index in batch]
                losses.append(self._step(actor, self._imitation_loss(actor, chosen)))
                if len(losses) == updates:
                    break
        return losses

    def _imitation_loss(self, actor: Net, lessons: Sequence[Lesson]) -> Tensor:
        reading = self.reader.read([lesson.sight for lesson in lessons])
        scores: Tensor = actor.module(reading)
        taken = torch.tensor([lesson.taken for lesson in lessons])
        done = scores.gather(1, taken[:, None])[:, 0]
        offered = reading.offered_BK
        anything = torch.where(offered, scores, 0.0).sum(1) / offered.sum(1)
        return -((1 - self.config.doubt) * done + self.config.doubt * anything).mean()

    # --- critic -----------------------------------------------------------------------------------------------------

    def fit_critic(self, critic: Net, lessons: Sequence[Lesson], rng: np.random.Generator) -> dict[str, float]:
        """Cross-entropy with the outcome, at each state and at the one after it."""
        losses: list[float] = []
        for _ in range(self.config.critic_epochs):
            for batch in _batches(len(lessons), self.config.batch, rng):
                chosen = [lessons[index] for index in batch]
                losses.append(self._step(critic, self._critic_loss(critic, chosen)))
        return {"critic_loss_first": losses[0], "critic_loss_last": float(np.mean(losses[-10:]))} if losses else {}

    def _critic_loss(self, critic: Net, lessons: Sequence[Lesson]) -> Tensor:
        outcome = torch.tensor([lesson.outcome for lesson in lessons])
        heads = critic.module(self.reader.read([_judged(lesson.sight) for lesson in lessons]))
        after = critic.module(self.reader.read([_judged(lesson.after) for lesson in lessons]))
        return critic_loss(heads, after, outcome)

    def values(self, critic: Net, sights: Sequence[Sight]) -> list[float]:
        """The chance of success in each situation, by the lower head."""
        found: list[float] = []
        with torch.no_grad():
            for at in range(0, len(sights), 256):
                heads = critic.module(self.reader.read([_judged(sight) for sight in sights[at : at + 256]]))
                found += pessimistic_value(*heads).tolist()
        return found

    # --- actor ------------------------------------------------------------------------------------------------------

    def chances(self, actor: Net, lessons: Sequence[Lesson]) -> list[float]:
        """How likely the actor finds what was done: 1 / perplexity."""
        found: list[float] = []
        with torch.no_grad():
            for at in range(0, len(lessons), 256):
                found += self._logprobs(actor, lessons[at : at + 256]).exp().tolist()
        return found

    def fit_actor(
        self, actor: Net, lessons: Sequence[Lesson], critic: Net, loss: str, rng: np.random.Generator
    ) -> dict[str, float]:
        """One phase: reference and values are fixed at its beginning."""
        fixed = self._fixed(actor, lessons, critic)
        losses, moved = [], []
        for _ in range(self.config.epochs):
            for batch in _batches(len(lessons), self.config.batch, rng):
                chosen, held = [lessons[index] for index in batch], {name: v[batch] for name, v in fixed.items()}
                seen: dict[str, Tensor] = {}
                losses.append(self._step(actor, self._actor_loss(actor, chosen, held, loss, seen)))
                moved.append(float(seen["log_ratio"].abs().mean()))
        if not losses:
            return {}
        return {"actor_loss": float(np.mean(losses[-10:])), "moved": float(np.mean(moved[-10:])),
                "advantage": float(seen["advantage"].float().mean())}  # fmt: skip

    def _fixed(self, actor: Net, lessons: Sequence[Lesson], critic: Net) -> dict[str, Tensor]:
        return {
            "reference": torch.tensor(self.chances(actor, lessons)).log(),
            "value": torch.tensor(self.values(critic, [lesson.sight for lesson in lessons])),
            "next_value": torch.tensor(self.values(critic, [lesson.after for lesson in lessons])),
            "outcome": torch.tensor([lesson.outcome for lesson in lessons]),
            "steps_to_go": torch.tensor([lesson.steps_to_go for lesson in lessons]),
            "advantage": torch.tensor([lesson.advantage for lesson in lessons]),
        }

    def _actor_loss(
        self, actor: Net, lessons: Sequence[Lesson], fixed: dict[str, Tensor], name: str, seen: dict[str, Tensor]
    ) -> Tensor:
        logprobs = self._logprobs(actor, lessons)
        if name == "grpo":
            weights = torch.full_like(logprobs, 1 / len(lessons))
            inputs = LossInputs(logprobs=logprobs, old_logprobs=fixed["reference"], advantages=fixed["advantage"],
                                weights=weights)  # fmt: skip
            loss, _ = policy_loss(inputs, clip_low=self.config.clip, clip_high=self.config.clip, kl=0.0)
            seen |= {"advantage": fixed["advantage"], "log_ratio": (logprobs - fixed["reference"]).detach()}
        else:
            columns = {key: value for key, value in fixed.items() if key != "advantage"}
            steps = JudgedSteps(logprobs=logprobs, tokens=torch.ones_like(logprobs), **columns)
            loss, figures = ACTOR_LOSSES[name](steps, self.config)
            seen |= figures
        return loss + self.config.kl * k3(logprobs, fixed["reference"]).mean() if self.config.kl else loss

    def _logprobs(self, actor: Net, lessons: Sequence[Lesson]) -> Tensor:
        scores: Tensor = actor.module(self.reader.read([lesson.sight for lesson in lessons]))
        taken = torch.tensor([lesson.taken for lesson in lessons])
        return scores.gather(1, taken[:, None])[:, 0]

    def _step(self, net: Net, loss: Tensor) -> float:
        net.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.module.parameters(), self.config.max_norm)
        net.optimiser.step()
        return float(loss.detach())


def _judged(sight: Sight) -> Sight:
    """What a critic reads: not what could be done, which costs time and tells it nothing."""
    return Sight(sight.text, (), sight.done, sight.steps_left)


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    order = rng.permutation(count).tolist()
    yield from (order[at : at + size] for at in range(0, count, size))
