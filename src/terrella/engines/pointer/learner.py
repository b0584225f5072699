"""Updates of pointer policies: imitation, the critic, and the actor under any of the losses.

Every function is a pure function of weights, optimiser state, data and a random stream: on one
thread the same inputs give the same bits. The order of the data comes from numpy, never from a
global generator.
    learner = Learner(PointerLearnerConfig(learning_rate=1e-3), PointerSizes(), seed=0)
    metrics = learner.fit_actor(learner.net("actor"), steps, critic, "webrl_paper", rng)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from terrella.algos.advantages import group_advantages
from terrella.algos.losses import LossInputs, k3, policy_loss
from terrella.algos.webrl import ACTOR_LOSSES, ScoredSteps, critic_loss, pessimistic_value
from terrella.core.integrity import read_hashed, write_hashed
from terrella.data.attempts import Attempt
from terrella.engines.pointer.batch_rollout import ActionSampler, WorldSlot
from terrella.engines.pointer.config import PointerLearnerConfig
from terrella.engines.pointer.records import ActorMetrics, CriticMetrics, TrainStep
from terrella.models.pointer import PointerPolicy, PointerSizes, Reader, TwoHeads
from terrella.models.policy_input import PolicyInput

BATCH = 256
"""Situations in one forward pass without gradients."""
MEAN_OVER = 10
"""Last updates that a reported loss is the mean of."""


class Net:
    """A network with its optimiser: what one phase hands to the next."""

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        self.module = module
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0)

    def save(self, path: Path) -> None:
        """Write weights and optimiser state to one safetensors file, with its hash beside it."""
        tensors = {f"weight/{name}": value for name, value in self.module.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {
                f"adam/{index}/{name}": torch.as_tensor(value) for name, value in state.items()
            }
        write_hashed(path, save({name: value.contiguous() for name, value in tensors.items()}))

    def load(self, path: Path) -> None:
        """Read what `save` wrote."""
        tensors = load(read_hashed(path))
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
    kind: Literal["actor", "critic"],
    sizes: PointerSizes,
    *,
    learning_rate: float,
    seed: int,
    path: Path | None = None,
) -> Net:
    """A new network, or the one in a file. The global random generator is not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = PointerPolicy(sizes) if kind == "actor" else TwoHeads(sizes)
    net = Net(module, learning_rate)
    if path is not None:
        net.load(path)
    return net


class Learner:
    """Networks and their updates."""

    def __init__(self, config: PointerLearnerConfig, sizes: PointerSizes, *, seed: int) -> None:
        self.config = config
        self.sizes = sizes
        self.seed = seed
        self.reader = Reader()

    def net(self, kind: Literal["actor", "critic"], path: Path | None = None) -> Net:
        """A network from a file, or a new one."""
        config = self.config
        rate = config.learning_rate if kind == "actor" else config.critic_learning_rate
        return make_net(kind, self.sizes, learning_rate=rate, seed=self.seed, path=path)

    def action_sampler(self, actor: Net, *, greedy: bool = False) -> ActionSampler:
        """Sample at temperature 1 with each episode's own random numbers, or take the likeliest."""

        def sample(
            inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]
        ) -> list[tuple[int, float]]:
            with torch.no_grad():
                probs_BK = actor.module(self.reader.read(inputs)).double().exp()
            chosen = []
            for probs_K, shown, slot in zip(probs_BK, inputs, slots, strict=True):
                assert slot.run is not None
                summed = probs_K[: len(shown.offered)].cumsum(0)
                # Drawn even if not used: the episode's random stream must not depend on `greedy`.
                point = slot.run.rng.random() * float(summed[-1])
                drawn = int(torch.searchsorted(summed, point, right=True))
                taken = int(probs_K.argmax()) if greedy else min(drawn, len(shown.offered) - 1)
                chosen.append((taken, float(probs_K[taken].log())))
            return chosen

        return sample

    # --- imitation --------------------------------------------------------------------------------

    def imitate(
        self, actor: Net, steps: Sequence[TrainStep], updates: int, rng: np.random.Generator
    ) -> list[float]:
        """Train towards the recorded actions for this many updates; returns the losses."""
        losses: list[float] = []
        while len(losses) < updates:
            for batch in _batches(len(steps), self.config.batch, rng):
                chosen = [steps[index] for index in batch]
                losses.append(self._update(actor, self._imitation_loss(actor, chosen)))
                if len(losses) == updates:
                    break
        return losses

    def _imitation_loss(self, actor: Net, steps: Sequence[TrainStep]) -> Tensor:
        reading = self.reader.read([step.input for step in steps])
        scores: Tensor = actor.module(reading)
        taken = torch.tensor([step.taken for step in steps])
        recorded = scores.gather(1, taken[:, None])[:, 0]
        offered = reading.offered_BK
        uniform = torch.where(offered, scores, 0.0).sum(1) / offered.sum(1)
        return -((1 - self.config.doubt) * recorded + self.config.doubt * uniform).mean()

    # --- critic -----------------------------------------------------------------------------------

    def fit_critic(
        self, critic: Net, steps: Sequence[TrainStep], rng: np.random.Generator
    ) -> CriticMetrics:
        """Cross-entropy with the outcome, at each state and at the one after it."""
        losses: list[float] = []
        for _ in range(self.config.critic_epochs):
            for batch in _batches(len(steps), self.config.batch, rng):
                chosen = [steps[index] for index in batch]
                losses.append(self._update(critic, self._critic_loss(critic, chosen)))
        if not losses:
            return CriticMetrics()
        return CriticMetrics(first_loss=losses[0], last_loss=float(np.mean(losses[-MEAN_OVER:])))

    def _critic_loss(self, critic: Net, steps: Sequence[TrainStep]) -> Tensor:
        outcome = torch.tensor([step.outcome for step in steps])
        heads = critic.module(self.reader.read([_without_actions(step.input) for step in steps]))
        after = critic.module(
            self.reader.read([_without_actions(step.next_input) for step in steps])
        )
        return critic_loss(heads, after, outcome)

    def values(self, critic: Net, inputs: Sequence[PolicyInput]) -> list[float]:
        """The probability of success in each situation, by the lower head."""
        values: list[float] = []
        with torch.no_grad():
            for start in range(0, len(inputs), BATCH):
                shown = [_without_actions(one) for one in inputs[start : start + BATCH]]
                values += pessimistic_value(*critic.module(self.reader.read(shown))).tolist()
        return values

    # --- actor ------------------------------------------------------------------------------------

    def action_probs(self, actor: Net, steps: Sequence[TrainStep]) -> list[float]:
        """The probability of each recorded action under the actor: 1 / perplexity."""
        probs: list[float] = []
        with torch.no_grad():
            for start in range(0, len(steps), BATCH):
                probs += self._logprobs(actor, steps[start : start + BATCH]).exp().tolist()
        return probs

    def fit_actor(
        self,
        actor: Net,
        steps: Sequence[TrainStep],
        critic: Net,
        loss_name: str,
        rng: np.random.Generator,
    ) -> ActorMetrics:
        """One phase. The reference policy and the values are those at its start."""
        columns = self._columns(actor, steps, critic)
        losses, moved = [], []
        for _ in range(self.config.epochs):
            for batch in _batches(len(steps), self.config.batch, rng):
                chosen = [steps[index] for index in batch]
                batch_columns = {name: values[batch] for name, values in columns.items()}
                loss, metrics = self._actor_loss(actor, chosen, batch_columns, loss_name)
                losses.append(self._update(actor, loss))
                moved.append(float(metrics["log_ratio"].abs().mean()))
        if not losses:
            return ActorMetrics()
        return ActorMetrics(
            loss=float(np.mean(losses[-MEAN_OVER:])),
            moved=float(np.mean(moved[-MEAN_OVER:])),
            advantage=float(metrics["advantage"].float().mean()),
        )

    def _columns(self, actor: Net, steps: Sequence[TrainStep], critic: Net) -> dict[str, Tensor]:
        """What the losses read of each step, beside the actor's own log-probability."""
        return {
            "reference": torch.tensor(self.action_probs(actor, steps)).log(),
            "value": torch.tensor(self.values(critic, [step.input for step in steps])),
            "next_value": torch.tensor(self.values(critic, [step.next_input for step in steps])),
            "outcome": torch.tensor([step.outcome for step in steps]),
            "steps_to_go": torch.tensor([step.steps_to_go for step in steps]),
            "advantage": torch.tensor([step.advantage for step in steps]),
        }

    def _actor_loss(
        self, actor: Net, steps: Sequence[TrainStep], columns: dict[str, Tensor], name: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logprobs = self._logprobs(actor, steps)
        if name == "grpo":
            loss, metrics = self._grpo_loss(logprobs, columns)
        else:
            inputs = {key: value for key, value in columns.items() if key != "advantage"}
            judged = ScoredSteps(logprobs=logprobs, tokens=torch.ones_like(logprobs), **inputs)
            loss, metrics = ACTOR_LOSSES[name](judged, self.config)
        if self.config.kl:
            loss = loss + self.config.kl * k3(logprobs, columns["reference"]).mean()
        return loss, metrics

    def _grpo_loss(
        self, logprobs: Tensor, columns: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=columns["reference"],
            advantages=columns["advantage"],
            weights=torch.full_like(logprobs, 1 / len(logprobs)),
        )
        clip = self.config.clip
        loss, _ = policy_loss(inputs, clip_low=clip, clip_high=clip, kl=0.0)
        log_ratio = (logprobs - columns["reference"]).detach()
        return loss, {"advantage": columns["advantage"], "log_ratio": log_ratio}

    def _logprobs(self, actor: Net, steps: Sequence[TrainStep]) -> Tensor:
        scores: Tensor = actor.module(self.reader.read([step.input for step in steps]))
        taken = torch.tensor([step.taken for step in steps])
        return scores.gather(1, taken[:, None])[:, 0]

    def _update(self, net: Net, loss: Tensor) -> float:
        net.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.module.parameters(), self.config.max_norm)
        net.optimiser.step()
        return float(loss.detach())


def sibling_advantages(
    attempts: Sequence[Attempt], outcomes: Sequence[float | None], group_size: int
) -> list[float]:
    """GRPO's advantage of each attempt among those at the same task; 0 without an outcome."""
    groups: dict[str, list[float]] = {}
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        group = groups.setdefault(attempt.task.name, [torch.nan] * group_size)
        group[attempt.task.noise_seed] = torch.nan if outcome is None else outcome
    if not groups:
        return []
    advantages = group_advantages(torch.tensor(list(groups.values()))).tolist()
    by_task = dict(zip(groups, advantages, strict=True))
    return [float(by_task[attempt.task.name][attempt.task.noise_seed]) for attempt in attempts]


def _without_actions(shown: PolicyInput) -> PolicyInput:
    """What a critic reads: the offered actions cost time and tell it nothing."""
    return PolicyInput(shown.text, (), shown.past_actions, shown.steps_left)


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    order = rng.permutation(count).tolist()
    yield from (order[start : start + size] for start in range(0, count, size))
