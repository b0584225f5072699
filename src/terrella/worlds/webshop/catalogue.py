"""The shop's products, goals and search, read from the files of WebShop's small setting.

The data is not part of the package: `products_1000.json.xz` and `instructions_1000.json.xz` must be
in a folder of yours. Search is BM25 over the texts of the products. A goal is a product with an
instruction that a person wrote for it.
    shop = load_catalogue(Path("data/webshop"))
    shop.search("console table")[:10]
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import WorldError
from terrella.core.untrusted import parse_json, read_xz, reading

K1, B = 0.9, 0.4
"""The BM25 parameters of WebShop's Lucene index."""
MAX_PRICE = 1_000_000.0


@dataclass(frozen=True)
class Product:
    """A product, as its page shows it."""

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
    """A customer's wish."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float
    """The highest acceptable price."""


class Catalogue:
    """Products by ASIN, goals, and a search over the products' texts."""

    def __init__(self, products: list[Product], goals: list[Goal], texts: list[str]) -> None:
        self.products = {product.asin: product for product in products}
        self.asins = [product.asin for product in products]
        self.goals = goals
        self.counts = [Counter(tokenize(text)) for text in texts]
        self.lengths = [counts.total() for counts in self.counts]
        self.mean_length = sum(self.lengths) / max(1, len(self.lengths))
        self.document_counts = Counter(token for counts in self.counts for token in counts)

    # One catalogue per folder lives as long as the process, so the cache keeps nothing else alive.
    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def search(self, query: str) -> tuple[str, ...]:
        """The ASINs of at most fifty products, best first."""
        wanted = set(tokenize(query))
        scores = []
        for index, counts in enumerate(self.counts):
            matched = wanted & counts.keys()
            if not matched:
                continue
            norm = K1 * (1 - B + B * self.lengths[index] / self.mean_length)
            score = 0.0
            for token in sorted(matched):  # sums of floats depend on their order
                score += self._weight(token) * counts[token] * (K1 + 1) / (counts[token] + norm)
            scores.append((-score, index))
        return tuple(self.asins[index] for _, index in sorted(scores)[:50])

    def _weight(self, token: str) -> float:
        """Inverse document frequency."""
        holders = self.document_counts[token]
        return math.log(1 + (len(self.asins) - holders + 0.5) / (holders + 0.5))


def tokenize(text: str) -> list[str]:
    """Split a text into lower-case words without a plural s."""
    return [re.sub(r"(?<=\w\w)s$", "", word) for word in re.findall(r"[a-z0-9]+", text.lower())]


@functools.lru_cache(maxsize=2)
def load_catalogue(folder: Path) -> Catalogue:
    """Read the catalogue of a folder, once per process."""
    products_file = folder / "products_1000.json.xz"
    goals_file = folder / "instructions_1000.json.xz"
    missing = [file.name for file in (products_file, goals_file) if not file.is_file()]
    if missing:
        raise WorldError(
            "webshop",
            f"{folder} holds no {' and no '.join(missing)}",
            "--set world.data=FOLDER (check and play: --set data=FOLDER), or set TERRELLA_WEBSHOP",
        )
    rows = parse_json(read_xz(products_file), str(products_file))
    instructions: Mapping[str, Any] = parse_json(read_xz(goals_file), str(goals_file))
    with reading(str(products_file)):
        products = [_product(row["product"]) for row in rows]
        texts = [str(row["contents"]) for row in rows]
    by_asin = {product.asin: product for product in products}
    goals = []
    with reading(str(goals_file)):
        for asin, instruction in instructions.items():
            if asin in by_asin and instruction.get("instruction"):
                goals.append(_goal(by_asin[asin], instruction))
    return Catalogue(products, goals, texts)


def _product(row: Mapping[str, Any]) -> Product:
    prices = [float(price) for price in row.get("pricing") or ()]
    if not all(0 <= price <= MAX_PRICE for price in prices):
        raise ValueError(f"a product has the price {min(prices)} to {max(prices)}")
    options = row.get("options") or {}
    category = str(row.get("product_category", "")).split("\u203a")
    return Product(
        asin=row["asin"],
        title=row.get("Title") or row["name"],
        query=str(row.get("query", "")).lower(),
        category=tuple(part.strip() for part in category),
        price=min(prices, default=100.0),
        options=tuple((str(name), tuple(map(str, values))) for name, values in options.items()),
        attributes=tuple(row.get("Attributes") or ()),
        description=str(row.get("Description") or ""),
        bullets=tuple(map(str, row.get("BulletPoints") or ())),
    )


def _goal(product: Product, row: Mapping[str, Any]) -> Goal:
    """A goal with a written instruction.

    The price limit is the next multiple of ten above the product's price.
    """
    limits = (float(step) for step in range(10, 10_000, 10) if step > product.price)
    limit = next(limits, MAX_PRICE)
    text = str(row["instruction"]).strip().rstrip(".")
    options = row.get("instruction_options") or ()
    if isinstance(options, Mapping):
        options = options.values()
    return Goal(
        asin=product.asin,
        instruction=f"{text}, and price lower than {limit:.2f} dollars",
        options=tuple(map(str, options)),
        attributes=tuple(row.get("instruction_attributes") or row.get("attributes") or ()),
        price=limit,
    )
