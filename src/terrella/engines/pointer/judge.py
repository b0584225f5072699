"""The network of an outcome model: two heads that read how an attempt ended. Training and logits, nothing of judging.

fit_judge(net, attempts, epochs=8, batch=64, rng=rng); logits = success_logits(net, attempts)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from terrella.algos.webrl import critic_loss
from terrella.data.attempts import Attempt
from terrella.engines.pointer.learn import Net
from terrella.models.pointer import Reader, Sight

READER = Reader()


def ending(attempt: Attempt) -> Sight:
    """What a judge reads: the last page, what was done, how many steps were left."""
    return Sight(attempt.last, (), attempt.actions, max(0, attempt.choices[-1].steps_left - 1))


def fit_judge(net: Net, attempts: Sequence[Attempt], *, epochs: int, batch: int, rng: np.random.Generator) -> None:
    """Cross-entropy of both heads with the world's verdicts."""
    wanted = torch.tensor([float(bool(attempt.success)) for attempt in attempts])
    for _ in range(epochs):
        order = rng.permutation(len(attempts))
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            heads = net.module(READER.read([ending(attempts[index]) for index in chosen]))
            loss = critic_loss(heads, None, wanted[torch.from_numpy(chosen)])
            net.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            net.optimiser.step()


def success_logits(net: Net, attempts: Sequence[Attempt]) -> NDArray[np.float64]:
    """Log-odds of success, the mean of both heads."""
    found = [np.zeros(0)]
    with torch.no_grad():
        for at in range(0, len(attempts), 256):
            first, second = net.module(READER.read([ending(attempt) for attempt in attempts[at : at + 256]]))
            odds = (first[:, 1] - first[:, 0] + second[:, 1] - second[:, 0]) / 2
            found.append(odds.double().numpy())
    return np.concatenate(found)
