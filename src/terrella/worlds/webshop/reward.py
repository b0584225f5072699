"""WebShop's reward: does what was bought have the wanted type, attributes, options and price?

The formula is the original's. Two helpers differ, because their libraries are not needed for anything else: likeness of
short texts is our own token-set ratio (not thefuzz), and the words of a title stand in for its nouns (not spaCy).
    reward(bought, goal, wanted_product, chosen_options) -> 0 .. 1
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from terrella.worlds.webshop.catalogue import Goal, Product, words

SAME = 0.85
STOP_WORDS = frozenset(words("a an the and or of for with in on to by from at is are as it its this that pack set new"))


def reward(bought: Product, goal: Goal, wanted: Product, options: Sequence[str]) -> float:
    """Share of the wishes that are fulfilled, times how far it is the right kind of thing."""
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    chosen = sum(any(alike(one, option) for option in options) for one in goal.options)
    cheap = float(bought.price <= goal.price)
    share = (attributes + chosen + cheap) / (len(goal.attributes) + len(goal.options) + 1)
    return share * type_reward(bought, wanted)


def alike(first: str, second: str) -> bool:
    """Whether two short texts say the same, in whatever order."""
    one, two = set(words(first)), set(words(second))
    common = " ".join(sorted(one & two))
    texts = [common, " ".join([common, *sorted(one - two)]).strip(), " ".join([common, *sorted(two - one)]).strip()]
    pairs = ((texts[0], texts[1]), (texts[0], texts[2]), (texts[1], texts[2]))
    return max(SequenceMatcher(None, a, b).ratio() for a, b in pairs if a or b or not common) > SAME


def has_attribute(product: Product, attribute: str) -> bool:
    """Named among its attributes, or somewhere in its texts."""
    if any(alike(attribute, one) for one in product.attributes):
        return True
    text = " ".join((product.title, product.description, *product.bullets)).lower()
    return attribute.lower() in text


def type_reward(bought: Product, wanted: Product) -> float:
    """1 for the same kind of thing, less the less the titles share."""
    ours, theirs = (set(words(one.title)) - STOP_WORDS for one in (bought, wanted))
    likeness = len(ours & theirs) / len(theirs) if theirs else 0.2
    same_category = len(set(bought.category) & set(wanted.category)) >= 2
    if likeness == 0.0:
        return 0.0
    if likeness < 0.1:
        return 0.1
    return 1.0 if bought.query == wanted.query or same_category or likeness > 0.2 else 0.5
