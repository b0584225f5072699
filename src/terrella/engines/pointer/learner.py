"""Learners of pointer networks: an actor, a critic and a judge with the verbs of every learner.

They hold weights and an optimiser, and compute named losses; which data, which order and how often
is the caller's (`pipelines/webrl/updates.py`). On one thread the same calls give the same bits.
    actor = PointerActor(make_net("actor", sizes, seed=0), Reader())
    actor.forward_backward(steps, columns, "webrl_paper", beta=0.2)
    actor.optim_step(AdamParams(learning_rate=1e-3))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from terrella.algos.named_losses import EXAMPLE, WEIGHT, find_loss
from terrella.algos.webrl import critic_loss, pessimistic_value
from terrella.core.integrity import read_hashed, write_hashed
from terrella.core.tokens import AdamParams, LearnerOutput
from terrella.data.attempts import Attempt
from terrella.data.train_steps import TrainStep
from terrella.models.pointer import PointerPolicy, PointerSizes, Reader, TwoHeads
from terrella.models.policy_input import PolicyInput

BATCH = 256
"""Situations in one forward pass without gradients."""


class Net:
    """A network with its optimiser: what one phase hands to the next."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.optimiser = torch.optim.AdamW(module.parameters(), weight_decay=0.0)

    def step(self, adam: AdamParams) -> dict[str, float]:
        """Step with the gradients so far, then drop them."""
        limit = adam.max_grad_norm or float("inf")
        norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), limit))
        for group in self.optimiser.param_groups:
            group["lr"] = adam.learning_rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

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
    kind: Literal["actor", "critic"], sizes: PointerSizes, *, seed: int, path: Path | None = None
) -> Net:
    """A new network, or the one in a file. The global random generator is not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = PointerPolicy(sizes) if kind == "actor" else TwoHeads(sizes)
    net = Net(module)
    if path is not None:
        net.load(path)
    return net


class PointerLearner:
    """A network and its reader."""

    def __init__(self, net: Net, reader: Reader) -> None:
        self.net = net
        self.reader = reader

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        return self.net.step(adam)

    def save(self, path: Path) -> None:
        self.net.save(path)


class PointerActor(PointerLearner):
    """See `pipelines.webrl.agent.Actor`."""

    def scores(self, inputs: Sequence[PolicyInput]) -> Tensor:
        """Log-probabilities of the offered actions, [B, K]."""
        scores: Tensor = self.net.module(self.reader.read(inputs))
        return scores

    def logprobs(self, steps: Sequence[TrainStep]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        with torch.no_grad():
            for start in range(0, len(steps), BATCH):
                taken = self._taken(steps[start : start + BATCH])
                # Rounded as probabilities: so were the references of all published results.
                found += [(value,) for value in taken.exp().log().tolist()]
        return found

    def forward_backward(
        self,
        steps: Sequence[TrainStep],
        columns: Sequence[Mapping[str, float | Sequence[float]]],
        loss: str,
        **knobs: float | str,
    ) -> LearnerOutput:
        named = find_loss(loss, "token")
        settings = named.settings(knobs)
        present = frozenset.intersection(*(frozenset(each) for each in columns))
        read = {
            name: torch.tensor([_number(each[name]) for each in columns])
            for name in {*named.reads(present, settings), WEIGHT}
        }
        read[EXAMPLE] = torch.arange(len(steps))
        logprobs = self._taken(steps)
        total, metrics = named.compute(logprobs, read, settings)
        total.backward()  # type: ignore[no-untyped-call]
        return LearnerOutput(
            loss=float(total.detach()),
            metrics={name: float(values.float().mean()) for name, values in metrics.items()},
            outputs=[(value,) for value in logprobs.detach().tolist()],
        )

    def imitate(self, steps: Sequence[TrainStep], *, doubt: float) -> LearnerOutput:
        reading = self.reader.read([step.input for step in steps])
        scores: Tensor = self.net.module(reading)
        recorded = scores.gather(1, _indices(steps)[:, None])[:, 0]
        offered = reading.offered_BK
        uniform = torch.where(offered, scores, 0.0).sum(1) / offered.sum(1)
        total = -((1 - doubt) * recorded + doubt * uniform).mean()
        total.backward()  # type: ignore[no-untyped-call]
        return LearnerOutput(loss=float(total.detach()), metrics={}, outputs=[])

    def _taken(self, steps: Sequence[TrainStep]) -> Tensor:
        scores = self.scores([step.input for step in steps])
        return scores.gather(1, _indices(steps)[:, None])[:, 0]


class PointerCritic(PointerLearner):
    """See `pipelines.webrl.agent.Critic`."""

    def values(self, inputs: Sequence[PolicyInput]) -> list[float]:
        values: list[float] = []
        with torch.no_grad():
            for start in range(0, len(inputs), BATCH):
                heads = self._heads(inputs[start : start + BATCH])
                values += pessimistic_value(*heads).tolist()
        return values

    def forward_backward(self, steps: Sequence[TrainStep]) -> LearnerOutput:
        outcome = torch.tensor([step.outcome for step in steps])
        heads = self._heads([step.input for step in steps])
        after = self._heads([step.next_input for step in steps])
        return _backward(critic_loss(heads, after, outcome))

    def _heads(self, inputs: Sequence[PolicyInput]) -> tuple[Tensor, Tensor]:
        """The offered actions are not read: they cost time and tell a critic nothing."""
        shown = [PolicyInput(one.text, (), one.past_actions, one.steps_left) for one in inputs]
        first, second = self.net.module(self.reader.read(shown))
        return first, second


class PointerJudge(PointerLearner):
    """See `pipelines.webrl.agent.Judge`. Its log-odds are the mean of two heads."""

    def logits(self, attempts: Sequence[Attempt]) -> list[float]:
        logits: list[float] = []
        with torch.no_grad():
            for start in range(0, len(attempts), BATCH):
                first, second = self._heads(attempts[start : start + BATCH])
                odds = (first[:, 1] - first[:, 0] + second[:, 1] - second[:, 0]) / 2
                logits += odds.double().tolist()
        return logits

    def forward_backward(self, attempts: Sequence[Attempt]) -> LearnerOutput:
        labels = torch.tensor([float(bool(attempt.success)) for attempt in attempts])
        return _backward(critic_loss(self._heads(attempts), None, labels))

    def _heads(self, attempts: Sequence[Attempt]) -> tuple[Tensor, Tensor]:
        first, second = self.net.module(self.reader.read([_ending(each) for each in attempts]))
        return first, second


def _backward(total: Tensor) -> LearnerOutput:
    total.backward()  # type: ignore[no-untyped-call]
    return LearnerOutput(loss=float(total.detach()), metrics={}, outputs=[])


def _ending(attempt: Attempt) -> PolicyInput:
    """The last observation, the actions and how many steps were left."""
    steps_left = max(0, attempt.choices[-1].steps_left - 1)
    return PolicyInput(attempt.last, (), attempt.actions, steps_left)


def _indices(steps: Sequence[TrainStep]) -> Tensor:
    return torch.tensor([step.taken for step in steps])


def _number(value: float | Sequence[float]) -> float:
    """An action is one token here."""
    return value if isinstance(value, int | float) else value[0]
