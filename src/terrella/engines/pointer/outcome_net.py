"""The network of an outcome model: two heads that read how an attempt ended.

net = OutcomeNet(sizes, learning_rate=1e-3, seed=0)
net.fit(attempts, epochs=8, batch=64, rng=rng)
logits = net.logits(attempts)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrella.algos.webrl import critic_loss
from terrella.data.attempts import Attempt
from terrella.engines.pointer.learner import make_net
from terrella.models.pointer import PointerSizes, Reader
from terrella.models.policy_input import PolicyInput

BATCH = 256
"""Attempts in one forward pass without gradients."""


class OutcomeNet:
    """Training and logits; deciding on them is the outcome model's part."""

    def __init__(
        self, sizes: PointerSizes, *, learning_rate: float, seed: int, path: Path | None = None
    ) -> None:
        self.reader = Reader()
        self.net = make_net("critic", sizes, learning_rate=learning_rate, seed=seed, path=path)

    def save(self, path: Path) -> None:
        self.net.save(path)

    def fit(
        self, attempts: Sequence[Attempt], *, epochs: int, batch: int, rng: np.random.Generator
    ) -> None:
        """Train both heads with the world's verdicts as labels."""
        labels = torch.tensor([float(bool(attempt.success)) for attempt in attempts])
        for _ in range(epochs):
            order = rng.permutation(len(attempts))
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                reading = self.reader.read([_ending(attempts[index]) for index in chosen])
                heads = self.net.module(reading)
                loss = critic_loss(heads, None, labels[torch.from_numpy(chosen)])
                self.net.optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.net.optimiser.step()

    def logits(self, attempts: Sequence[Attempt]) -> NDArray[np.float64]:
        """Log-odds of success, the mean of both heads."""
        parts = [np.zeros(0)]
        with torch.no_grad():
            for start in range(0, len(attempts), BATCH):
                endings = [_ending(attempt) for attempt in attempts[start : start + BATCH]]
                first, second = self.net.module(self.reader.read(endings))
                odds = (first[:, 1] - first[:, 0] + second[:, 1] - second[:, 0]) / 2
                parts.append(odds.double().numpy())
        return np.concatenate(parts)


def _ending(attempt: Attempt) -> PolicyInput:
    """The last observation, the actions and how many steps were left."""
    steps_left = max(0, attempt.choices[-1].steps_left - 1)
    return PolicyInput(attempt.last, (), attempt.actions, steps_left)
