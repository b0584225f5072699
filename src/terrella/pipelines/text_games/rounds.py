"""SFT in rounds, until a model's replies can be read.

RL can only choose among replies that the verifier reads. So SFT goes on with further examples while
too many cannot be read. Each round is kept: a killed run goes on with the round that it was in.
    invalid = fit_in_rounds(fit, measure, folder, limit=0.05, most=3)
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path

from terrella.core.files import read_json, write_json
from terrella.core.integrity import copy_folder
from terrella.core.run_folder import make_once, rank, wait_for
from terrella.engines.interface import Model

logger = logging.getLogger("terrella")
Fit = Callable[[int, Model | None, Path], object]
"""Fits one round: its number, the model to start from (None in the first), where it goes."""


def fit_in_rounds(
    fit: Fit, measure: Callable[[Path], float], folder: Path, *, limit: float, most: int
) -> list[float]:
    """Fit until at most `limit` of the replies cannot be read, or `most` rounds are done.

    The model is written to `folder`, its rounds beside it. Returns the fraction of unreadable
    replies after each round. All ranks fit; rank 0 measures.
    """
    invalid: list[float] = []
    start: Path | None = None
    for number in range(most):
        place = folder.with_name(f"round-{number}")
        start = make_once(place, functools.partial(fit, number, start))
        invalid.append(_measured(measure, place))
        if invalid[-1] <= limit:
            break
    else:
        logger.warning(
            "after %d rounds of SFT %.0f%% of the replies cannot be read", most, 100 * invalid[-1]
        )
    assert start is not None
    if rank() == 0:
        copy_folder(start, folder)
    wait_for(folder / "config.json")
    return invalid


def _measured(measure: Callable[[Path], float], model: Path) -> float:
    path = model.with_suffix(".json")
    if rank() == 0 and not path.exists():
        write_json(path, {"invalid": measure(model)})
    wait_for(path)
    return float(read_json(path)["invalid"])
