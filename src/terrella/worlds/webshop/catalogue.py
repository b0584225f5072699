"""The shop's products, goals and search, read from the files of WebShop's small setting.

The data is not part of the package: `products_1000.json.xz` and `instructions_1000.json.xz` in a folder of yours.
Search is BM25 over the products' texts. A goal is a product with an instruction written for it by a person.
    shop = load_catalogue(Path("data/webshop")); shop.search("console table")[:10]
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import MissingExtraError

K1, B = 0.9, 0.4
"""BM25 as Lucene's users of WebShop set it."""
MOST_PRICE = 1_000_000.0


@dataclass(frozen=True)
class Product:
    """One product, as a page shows it."""

    asin: str
    title: str
    category: tuple[str, ...]
    query: str
    price: float
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    description: str
    bullets: tuple[str, ...]


@dataclass(frozen=True)
class Goal:
    """What a customer wants."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float
    """The most that may be paid."""


class Catalogue:
    """Products by number, goals, and a search."""

    def __init__(self, products: list[Product], goals: list[Goal], texts: list[str]) -> None:
        """Index the texts."""
        self.products = {product.asin: product for product in products}
        self.order = [product.asin for product in products]
        self.goals = goals
        self.counts = [Counter(words(text)) for text in texts]
        self.lengths = [counts.total() for counts in self.counts]
        self.mean = sum(self.lengths) / max(1, len(self.lengths))
        self.holders = Counter(word for counts in self.counts for word in counts)

    @functools.lru_cache(maxsize=4096)  # noqa: B019  one catalogue per folder lives as long as the process
    def search(self, query: str) -> tuple[str, ...]:
        """Product numbers, best first, at most fifty."""
        wanted, total = set(words(query)), len(self.order)
        scores = []
        for place, counts in enumerate(self.counts):
            score = 0.0
            for word in wanted & counts.keys():
                weight = math.log(1 + (total - self.holders[word] + 0.5) / (self.holders[word] + 0.5))
                norm = K1 * (1 - B + B * self.lengths[place] / self.mean)
                score += weight * counts[word] * (K1 + 1) / (counts[word] + norm)
            if score:
                scores.append((-score, place))
        return tuple(self.order[place] for _, place in sorted(scores)[:50])


def words(text: str) -> list[str]:
    """Lower-case words without a plural s."""
    return [re.sub(r"(?<=\w\w)s$", "", word) for word in re.findall(r"[a-z0-9]+", text.lower())]


@functools.lru_cache(maxsize=2)
def load_catalogue(folder: Path) -> Catalogue:
    """The catalogue in a folder, read once."""
    products_file, goals_file = folder / "products_1000.json.xz", folder / "instructions_1000.json.xz"
    if not products_file.is_file() or not goals_file.is_file():
        raise MissingExtraError("web", f"WebShop's data (looked in {folder}; set webshop.data to the folder)")
    rows = json.loads(lzma.decompress(products_file.read_bytes()))
    told: Mapping[str, Any] = json.loads(lzma.decompress(goals_file.read_bytes()))
    products = [_product(row["product"]) for row in rows]
    known = {product.asin: product for product in products}
    goals = [_goal(known[asin], one) for asin, one in told.items() if asin in known and one.get("instruction")]
    return Catalogue(products, goals, [row["contents"] for row in rows])


def _product(row: Mapping[str, Any]) -> Product:
    prices = [float(price) for price in row.get("pricing") or ()]
    options = tuple((str(k), tuple(map(str, v))) for k, v in (row.get("options") or {}).items())
    return Product(
        asin=row["asin"], title=row.get("Title") or row["name"], query=str(row.get("query", "")).lower(),
        category=tuple(part.strip() for part in str(row.get("product_category", "")).split("\u203a")),
        price=min(prices, default=100.0), options=options, attributes=tuple(row.get("Attributes") or ()),
        description=str(row.get("Description") or ""), bullets=tuple(map(str, row.get("BulletPoints") or ())),
    )  # fmt: skip


def _goal(product: Product, row: Mapping[str, Any]) -> Goal:
    """The written instruction; the price limit is the next step of ten above the product's price."""
    limit = next((float(step) for step in range(10, 10_000, 10) if step > product.price), MOST_PRICE)
    text = str(row["instruction"]).strip().rstrip(".")
    wanted = row.get("instruction_options") or ()
    options = tuple(str(one) for one in (wanted.values() if isinstance(wanted, Mapping) else wanted))
    return Goal(
        asin=product.asin, instruction=f"{text}, and price lower than {limit:.2f} dollars", options=options,
        attributes=tuple(row.get("instruction_attributes") or row.get("attributes") or ()), price=limit,
    )  # fmt: skip
