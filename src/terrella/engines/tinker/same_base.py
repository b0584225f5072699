"""Is the endpoint's base model the one in our folder? Compared by log-probabilities.

An adapter that was trained on other weights would be merged into ours without any error.
    check_same_base(adapter, reference, batch_rows=32)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from terrella.core.errors import EngineError
from terrella.core.tokens import TrainExample
from terrella.engines.tinker.adapter_folder import Reference
from terrella.engines.tinker.rows import PaddedRows

LARGEST = 2_000_000_000
"""Larger models are not loaded for this: a laptop may not hold them."""
TOKENS = 24
DIFFERENCE = 0.1
"""The mean over tokens. bf16 differs by a few hundredths, even untrained weights by 0.2."""


def check_same_base(adapter: Any, reference: Reference, *, batch_rows: int) -> None:
    """Refuse a local folder whose log-probabilities differ from the endpoint's.

    `adapter` must not have been trained. Hub names are taken at their word.
    """
    from terrella.models.presets import load_model, parameter_count

    if not Path(reference.base).is_dir() or parameter_count(reference.base) > LARGEST:
        return
    model, _ = load_model(reference.base, device="cpu")
    ids = [(7 * index + 3) % model.config.vocab_size for index in range(TOKENS)]
    example = TrainExample(prompt_ids=ids[:1], completion_ids=ids[1:], mask=(True,) * (TOKENS - 1))
    rows = PaddedRows([example], pad_tokens=64, batch_rows=batch_rows)
    there = rows.at_targets(adapter.forward(next(rows.calls())))
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].float()
    here = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    gap = float((there - here).abs().mean())
    if gap > DIFFERENCE:
        raise EngineError(
            "tinker",
            f"{reference.base_model} at the endpoint is another model than {reference.base}: "
            f"log-probabilities differ by {gap:.2f}",
            "set model and tinker.base_model to the same weights",
        )
