"""Fits the small networks that read frames: policies cloned from an expert, kept at several ages, and classifiers.

An age is a number of updates: a young policy is a bad one, so one training gives a ladder of graded policies.
    nets = clone(frames, actions, ages=(30, 100, 400), seed=0); success = fit_classifier(frames, labels, seed=0)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from terrella.core.instances import TASK_STREAM, stream
from terrella.models.pixel_nets import PixelNet, as_input

BATCH = 64
LEARNING_RATE = 1e-3


def clone(
    frames: NDArray[np.uint8], actions: NDArray[np.float64], *, ages: Sequence[int], seed: int
) -> dict[int, PixelNet]:
    """Behaviour cloning: the expert's action from the frame alone, by squared error."""
    targets = torch.tensor(actions).float()
    return _fit(
        PixelNet(frames.shape[1], actions.shape[1], seed=seed), frames, targets, functional.mse_loss, ages, seed
    )


def fit_classifier(frames: NDArray[np.uint8], labels: NDArray[np.bool_], *, steps: int, seed: int) -> PixelNet:
    """The probability, as a logit, that a frame shows success; both classes are drawn as often."""
    weights = np.where(labels, 0.5 / max(labels.sum(), 1), 0.5 / max((~labels).sum(), 1))
    targets = torch.tensor(labels[:, None]).float()
    loss = functional.binary_cross_entropy_with_logits
    return _fit(PixelNet(frames.shape[1], 1, seed=seed), frames, targets, loss, (steps,), seed, weights)[steps]


def _fit(
    net: PixelNet, frames: NDArray[np.uint8], targets: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor],
    ages: Sequence[int], seed: int, weights: NDArray[np.float64] | None = None,
) -> dict[int, PixelNet]:  # fmt: skip
    optimiser = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE)
    kept: dict[int, PixelNet] = {}
    rng = stream(TASK_STREAM, seed, len(frames))
    for step in range(max(ages) + 1):
        if step in ages:
            kept[step] = copy.deepcopy(net).eval()
        chosen = rng.choice(len(frames), BATCH, p=weights)
        loss = loss_of(net(as_input(frames[chosen])), targets[torch.tensor(chosen)])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return kept
