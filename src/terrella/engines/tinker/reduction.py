"""How an endpoint reduces a loss: a sum over tokens and rows, or means. Measured, because they lie.

Tinker's interface has a sum. SkyRL 0.3 on JAX takes a mean over each row and over all rows. On rows
of one shape this is a constant, which Adam hardly notices, but clipping and the reported gradient
norm do. The probe compares gradient norms on an adapter that nobody trains, with learning rate 0.
    reduction = measure(adapter, pad_tokens=64, batch_rows=32)
    advantages = -gradient * reduction.scale(rows=32, length=64)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from terrella.core.errors import ConfigError, EngineError
from terrella.core.tokens import TrainExample
from terrella.engines.tinker.rows import PaddedRows

TOLERANCE = 0.05
"""Norms of bf16 servers differ a little between shapes."""
GRAD_NORM = "grad_norm"


class Reduction(NamedTuple):
    """Whether an endpoint takes the mean over rows, and over the tokens of a row."""

    rows_mean: bool
    tokens_mean: bool

    def scale(self, *, rows: int, length: int) -> int:
        """What a gradient must be multiplied by to arrive as it is."""
        return (rows if self.rows_mean else 1) * (length if self.tokens_mean else 1)


SUM, MEAN = Reduction(False, False), Reduction(True, True)


def measure(adapter: Any, *, pad_tokens: int, batch_rows: int) -> Reduction:
    """Compare one call with two of them, and with rows that are twice as long."""
    once = _norm(adapter, length=pad_tokens, batch_rows=batch_rows, calls=1)
    twice = _norm(adapter, length=pad_tokens, batch_rows=batch_rows, calls=2)
    longer = _norm(adapter, length=2 * pad_tokens, batch_rows=batch_rows, calls=1)
    return Reduction(_is_mean("rows", once, twice), _is_mean("tokens", once, longer))


def grad_norm(metrics: dict[str, float]) -> float | None:
    """The gradient norm in an optimizer step's metrics; endpoints prefix its name."""
    found = [value for name, value in metrics.items() if name.split("/")[-1] == GRAD_NORM]
    return found[0] if found else None


def _norm(adapter: Any, *, length: int, batch_rows: int, calls: int) -> float:
    """The gradient norm of one token's log-probability among rows without any gradient."""
    example = TrainExample(prompt_ids=(0, 1), completion_ids=(0,), mask=(True,))
    rows = PaddedRows([example], pad_tokens=length, batch_rows=batch_rows)
    now = rows.at_targets(adapter.forward(next(rows.calls())))
    logprobs = rows.everywhere(now)
    first = next(rows.calls(logprobs, rows.everywhere(torch.ones(1))))
    others = [next(rows.calls(logprobs, rows.everywhere(torch.zeros(1))))] * (calls - 1)
    norm = grad_norm(adapter.train([first, *others], learning_rate=0.0))
    if norm is None:
        raise ConfigError(
            "tinker.reduction",
            "this endpoint reports no gradient norm, so its reduction cannot be measured",
            "set tinker.reduction=sum or mean, as its documentation says",
        )
    return norm


def _is_mean(what: str, once: float, doubled: float) -> bool:
    ratio = once / doubled if doubled else float("nan")
    for is_mean, expected in ((False, 1.0), (True, 2.0)):
        if abs(ratio - expected) < TOLERANCE * expected:
            return is_mean
    raise EngineError(
        "tinker",
        f"twice the {what} divide the gradient norm by {ratio:.3g}: neither a sum nor a mean",
        "set tinker.reduction=sum or mean",
    )
