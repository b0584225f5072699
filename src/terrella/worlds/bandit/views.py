"""The state of a bandit, and its view as a JSON object that reads back.

view = OfferView(low=0.1, high=1.0)
view.read(view.show(offer)) == offer
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.types import Observation
from terrella.core.views import RecordView
from terrella.worlds.bandit.names import BOLD, STEADY


@dataclass(frozen=True, slots=True)
class Offer:
    """Two arms in display order; after the pull also the chosen arm and its payout."""

    arms: tuple[str, str]
    pulled: str | None = None
    paid: float | None = None


class OfferView(RecordView):
    """An offer as JSON. `read` accepts only offers that this bandit can make."""

    legend = (
        'The state is a JSON object: "arms" are the two names on offer, '
        '"pulled" is the one that was pulled and '
        '"paid" what it paid (both null before).'
    )

    def __init__(self, low: float, high: float) -> None:
        """`low` and `high` are the possible payouts besides 0."""
        super().__init__(Offer)
        self.low = float(low)
        self.high = float(high)

    def read(self, observation: Observation) -> Offer | None:
        offer = super().read(observation)
        if not isinstance(offer, Offer) or not self._is_possible(offer):
            return None
        return offer if self.show(offer) == observation else None

    def _is_possible(self, offer: Offer) -> bool:
        known = set(offer.arms) <= {*STEADY, *BOLD}
        if not known or sorted(arm in BOLD for arm in offer.arms) != [False, True]:
            return False
        if offer.pulled is None:
            return offer.paid is None
        payouts = (0.0, self.high) if offer.pulled in BOLD else (self.low,)
        return offer.pulled in offer.arms and offer.paid in payouts
