"""Bandit: two named arms, one pull. One pays a little each time, the other pays well now and then.

The smallest world with chance in it: `outcomes` gives the exact distribution, `noise_seed` draws from it.
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
    """Pull the arm that pays more on average, once."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """What the arms pay."""

        max_steps: int = 1
        low: float = 0.1
        """What a steady arm pays, each time."""
        high: float = 1.0
        """What a bold arm pays when it pays."""
        chance: float = 0.25
        """How often a bold arm pays."""

        def __post_init__(self) -> None:
            """Refuse a bold arm that is not the better one: success would be the wrong choice."""
            super().__post_init__()
            if not 0.0 < self.chance <= 1.0:
                raise ConfigError("chance", f"must lie in (0, 1], not {self.chance}")
            if not 0.0 <= self.low < self.high * self.chance < float("inf"):
                raise ConfigError("low, high, chance", "high * chance must exceed low, and low must not be negative")

    config: Config
    rules = (
        "Two arms are on offer; pull one, once, by its name. One of them pays a small amount each time. "
        "The other pays a large amount now and then, and more on average. The names tell which is which. "
        "Pull the one that pays more on average."
    )
    verifier = StateDiff.Config().build()

    def make_view(self, name: str) -> View[Offer]:
        """The JSON view."""
        return OfferView(self.config.low, self.config.high)

    def draw(self, rng: np.random.Generator) -> Offer:
        """One steady and one bold arm, in random order."""
        steady, bold = STEADY[int(rng.integers(len(STEADY)))], BOLD[int(rng.integers(len(BOLD)))]
        return Offer((steady, bold) if rng.random() < 0.5 else (bold, steady))

    def key(self, state: Offer) -> Any:
        """The same two arms in either order are one instance, or train would hold the mirror images of test."""
        return sorted(state.arms)

    def legal(self, state: Offer) -> tuple[str, ...]:
        """The two arms."""
        return state.arms

    def all_actions(self, state: Offer) -> tuple[str, ...]:
        """All arms there are."""
        return STEADY + BOLD

    def truth(self, state: Offer, action: str) -> Sequence[Outcome]:
        """As `outcomes`; naming an arm that is not on offer spends the pull and pays nothing."""
        if action not in state.arms or state.pulled is not None:
            return (Outcome(state=state, terminated=True),)
        return self.outcomes(state, action)

    def outcomes(self, state: Offer, action: str) -> list[Outcome]:
        """What the arm may pay. Choosing the bold arm is the success, whether or not it pays this time."""
        low, high, chance = float(self.config.low), float(self.config.high), self.config.chance
        bold = action in BOLD
        amounts = ((high, chance), (0.0, 1.0 - chance)) if bold else ((low, 1.0),)
        return [
            Outcome(
                state=replace(state, pulled=action, paid=paid), reward=paid,
                terminated=True, success=bold, probability=probability,
            )
            for paid, probability in amounts
            if probability > 0
        ]  # fmt: skip

    def expert(self, state: Offer, steps_left: int, rng: np.random.Generator) -> str:
        """The bold arm."""
        return next(arm for arm in state.arms if arm in BOLD)
