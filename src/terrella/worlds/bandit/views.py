"""An offer of two arms as a JSON object, and back.

OfferView(amounts).read(OfferView(amounts).show(offer)) == offer
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.types import Observation
from terrella.core.views import RecordView
from terrella.worlds.bandit.names import BOLD, STEADY


@dataclass(frozen=True, slots=True)
class Offer:
    """Two arms in the order they are shown; then the one that was pulled and what it paid."""

    arms: tuple[str, str]
    pulled: str | None = None
    paid: float | None = None


class OfferView(RecordView):
    """The offer as JSON; only offers that this bandit can make are read back."""

    legend = (
        'The state is a JSON object: "arms" are the two names on offer, "pulled" is the one that was pulled and '
        '"paid" what it paid (both null before).'
    )

    def __init__(self, low: float, high: float) -> None:
        """`low` and `high` are what the arms can pay, apart from nothing."""
        super().__init__(Offer)
        self.low, self.high = float(low), float(high)

    def read(self, observation: Observation) -> Offer | None:
        """The offer again, or None."""
        offer = super().read(observation)
        known = isinstance(offer, Offer) and self._is_possible(offer) and self.show(offer) == observation
        return offer if known else None

    def _is_possible(self, offer: Offer) -> bool:
        if sorted(arm in BOLD for arm in offer.arms) != [False, True] or not set(offer.arms) <= {*STEADY, *BOLD}:
            return False
        if offer.pulled is None:
            return offer.paid is None
        amounts = (0.0, self.high) if offer.pulled in BOLD else (self.low,)
        return offer.pulled in offer.arms and offer.paid in amounts
