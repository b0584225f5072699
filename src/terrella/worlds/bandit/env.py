"""Bandit: pull one of two named arms. One pays a little every time, the other a lot sometimes.

The smallest stochastic world: `outcomes` gives the exact distribution of the payout, and
`noise_seed` samples from it.
    world = Bandit.Config(chance=0.25).build()
    world.reset(seed=0, options={"noise_seed": 3})
    world.step(world.actions()[0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.protocols import View
from terrella.core.types import Outcome
from terrella.core.world import StateWorld, World
from terrella.verify.state import StateDiff
from terrella.worlds.bandit.names import BOLD, STEADY
from terrella.worlds.bandit.views import Offer, OfferView


class Bandit(StateWorld[Offer]):
    """Pull the arm that pays more on average. There is one pull."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Payouts of the two kinds of arm."""

        max_steps: int = 1
        low: float = 0.1
        """Payout of a steady arm, every time."""
        high: float = 1.0
        """Payout of a bold arm when it pays at all."""
        chance: float = 0.25
        """Probability that a bold arm pays."""

        def __post_init__(self) -> None:
            """Require the bold arm to be better on average: pulling it counts as success."""
            super().__post_init__()
            if not 0.0 < self.chance <= 1.0:
                raise ConfigError("chance", f"must lie in (0, 1], not {self.chance}")
            if not 0.0 <= self.low < self.high * self.chance < float("inf"):
                raise ConfigError(
                    "low, high, chance",
                    "high * chance must exceed low, and low must not be negative",
                )

    config: Config
    rules = (
        "Two arms are on offer; pull one, once, by its name. "
        "One of them pays a small amount each time. "
        "The other pays a large amount now and then, and more on average. "
        "The names tell which is which. "
        "Pull the one that pays more on average."
    )
    verifier = StateDiff.Config().build()

    def make_view(self, name: str) -> View[Offer]:
        return OfferView(self.config.low, self.config.high)

    def draw(self, rng: np.random.Generator) -> Offer:
        """Draw one steady and one bold arm, in random order."""
        steady = STEADY[int(rng.integers(len(STEADY)))]
        bold = BOLD[int(rng.integers(len(BOLD)))]
        return Offer((steady, bold) if rng.random() < 0.5 else (bold, steady))

    def key(self, state: Offer) -> Any:
        """Treat both orders of the same two arms as one instance.

        Otherwise train would contain the mirror images of test.
        """
        return sorted(state.arms)

    def legal(self, state: Offer) -> tuple[str, ...]:
        return state.arms

    def all_actions(self, state: Offer) -> tuple[str, ...]:
        """All arms, on offer or not."""
        return STEADY + BOLD

    def truth(self, state: Offer, action: str) -> Sequence[Outcome]:
        """Like `outcomes`, but an arm that is not on offer uses up the pull and pays nothing."""
        if action not in state.arms or state.pulled is not None:
            return (Outcome(state=state, terminated=True),)
        return self.outcomes(state, action)

    def outcomes(self, state: Offer, action: str) -> list[Outcome]:
        """Possible payouts of the arm.

        Choosing the bold arm is a success, whether or not it pays this time.
        """
        low = float(self.config.low)
        high = float(self.config.high)
        chance = self.config.chance
        bold = action in BOLD
        payouts = ((high, chance), (0.0, 1.0 - chance)) if bold else ((low, 1.0),)
        return [
            Outcome(
                state=replace(state, pulled=action, paid=paid),
                reward=paid,
                terminated=True,
                success=bold,
                probability=probability,
            )
            for paid, probability in payouts
            if probability > 0
        ]

    def expert(self, state: Offer, steps_left: int, rng: np.random.Generator) -> str:
        return next(arm for arm in state.arms if arm in BOLD)
