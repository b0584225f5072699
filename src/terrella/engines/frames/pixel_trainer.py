"""Fits small networks on frames: cloned policies of graded quality, and classifiers.

A policy's age is the number of updates it was trained for. Young policies are bad ones, so a single
training run yields policies of graded quality.
    policies = clone(frames, actions, ages=(30, 100, 400), seed=0)
    success = fit_classifier(frames, labels, steps=400, seed=0)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from terrella.core.seeds import TASK_STREAM, stream
from terrella.models.device import default_device
from terrella.models.pixel_nets import PixelNet, as_input

BATCH = 64
LEARNING_RATE = 1e-3


def clone(
    frames: NDArray[np.uint8], actions: NDArray[np.float64], *, ages: Sequence[int], seed: int
) -> dict[int, PixelNet]:
    """Behaviour cloning of actions from single frames, by squared error; policies by age."""
    targets = torch.tensor(actions).float()
    return _fit(
        _net(frames, actions.shape[1], seed),
        frames,
        targets,
        functional.mse_loss,
        ages,
        seed,
    )


def refine(
    net: PixelNet,
    frames: NDArray[np.uint8],
    actions: NDArray[np.float64],
    *,
    updates: int,
    seed: int,
) -> PixelNet:
    """A copy of a policy after more updates towards these actions."""
    targets = torch.tensor(actions).float()
    start = copy.deepcopy(net)
    return _fit(start, frames, targets, functional.mse_loss, (updates,), seed)[updates]


def fit_classifier(
    frames: NDArray[np.uint8], labels: NDArray[np.bool_], *, steps: int, seed: int
) -> PixelNet:
    """A classifier whose output is the logit of success; both classes are drawn equally often."""
    weights = np.where(labels, 0.5 / max(labels.sum(), 1), 0.5 / max((~labels).sum(), 1))
    targets = torch.tensor(labels[:, None]).float()
    loss = functional.binary_cross_entropy_with_logits
    return _fit(_net(frames, 1, seed), frames, targets, loss, (steps,), seed, weights)[steps]


def _net(frames: NDArray[np.uint8], outputs: int, seed: int) -> PixelNet:
    _, rows, columns, _ = frames.shape
    return PixelNet(rows, outputs, columns=columns, seed=seed)


def _fit(
    net: PixelNet,
    frames: NDArray[np.uint8],
    targets: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    ages: Sequence[int],
    seed: int,
    weights: NDArray[np.float64] | None = None,
) -> dict[int, PixelNet]:
    device = default_device()
    net = net.to(device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE)
    snapshots: dict[int, PixelNet] = {}
    rng = stream(TASK_STREAM, seed, len(frames))
    for step in range(max(ages) + 1):
        if step in ages:
            snapshots[step] = copy.deepcopy(net).cpu().eval()
        chosen = rng.choice(len(frames), BATCH, p=weights)
        wanted = targets[torch.tensor(chosen)].to(device)
        loss = loss_of(net(as_input(frames[chosen]).to(device)), wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return snapshots
