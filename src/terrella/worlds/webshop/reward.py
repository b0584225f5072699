"""WebShop's reward: whether the purchase has the wanted type, attributes, options and price.

The formula is the original's. Two helpers differ, to avoid dependencies that nothing else needs:
the similarity of short texts is our own token-set ratio (not thefuzz), and the words of a title
stand in for its nouns (not spaCy).
    reward(bought, goal, wanted_product, chosen_options)  # between 0 and 1
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from terrella.worlds.webshop.catalogue import Goal, Product, tokenize

SIMILAR = 0.85
STOP_WORDS = frozenset(
    tokenize(
        "a an the and or of for with in on to by from at is are as it its this that pack set new"
    )
)


def reward(bought: Product, goal: Goal, wanted: Product, options: Sequence[str]) -> float:
    """The share of wishes that are fulfilled, times the type reward."""
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    matched = sum(any(similar(wish, option) for option in options) for wish in goal.options)
    affordable = float(bought.price <= goal.price)
    share = (attributes + matched + affordable) / (len(goal.attributes) + len(goal.options) + 1)
    return share * type_reward(bought, wanted)


def similar(first: str, second: str) -> bool:
    """Whether two short texts say the same, in any word order."""
    tokens, other = set(tokenize(first)), set(tokenize(second))
    if not tokens or not other:  # nothing to compare, as in thefuzz
        return False
    common = " ".join(sorted(tokens & other))
    whole = " ".join([common, *sorted(tokens - other)]).strip()
    other_whole = " ".join([common, *sorted(other - tokens)]).strip()
    pairs = ((common, whole), (common, other_whole), (whole, other_whole))
    ratios = [SequenceMatcher(None, a, b).ratio() for a, b in pairs if a or b or not common]
    return max(ratios) > SIMILAR


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether an attribute is listed for a product or appears in its texts."""
    if any(similar(attribute, listed) for listed in product.attributes):
        return True
    text = " ".join((product.title, product.description, *product.bullets)).lower()
    return attribute.lower() in text


def type_reward(bought: Product, wanted: Product) -> float:
    """1 for the same type of product; less when the titles share few words."""
    title = set(tokenize(bought.title)) - STOP_WORDS
    wanted_title = set(tokenize(wanted.title)) - STOP_WORDS
    overlap = len(title & wanted_title) / len(wanted_title) if wanted_title else 0.2
    same_category = len(set(bought.category) & set(wanted.category)) >= 2
    if overlap == 0.0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    return 1.0 if bought.query == wanted.query or same_category or overlap > 0.2 else 0.5
