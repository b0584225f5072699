"""WebShop in text: search a real catalogue, look at products, choose options, buy.

The reward is the original one. Actions:

    search[console table] | click[B06Y3VLDFB] | click[red] | click[next >] | click[back to search]
    click[buy now]
The state is a plain value, so outcomes are exact and pages can be predicted. The catalogue is read
from a folder of yours.
    world = WebShop.Config(data=Path("data/webshop")).build()
    world.reset(seed=0)
    world.step("search[oak table]")
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from terrella.core.config import Local
from terrella.core.protocols import View
from terrella.core.types import Observation, Outcome, State, Text, Transition, Verdict, show_text
from terrella.core.views import RecordView
from terrella.core.world import StateWorld
from terrella.verify.text import LineGain
from terrella.worlds.webshop.catalogue import Goal, load_catalogue
from terrella.worlds.webshop.reward import reward

PER_PAGE = 10
_SEARCH = re.compile(r"search\[(.{1,200})\]", re.DOTALL)
_CLICK = re.compile(r"click\[(.{1,300})\]", re.DOTALL)


@dataclass(frozen=True)
class Visit:
    """A customer's position in the shop: the page, and the options chosen on it."""

    goal: int
    page: str = "search"
    """`search`, `results`, `item` or `done`."""
    query: str = ""
    number: int = 0
    """Index of the page of results."""
    item: str = ""
    chosen: tuple[str, ...] = ()
    """`option=value` texts, in the order of the product's options."""


class WebShop(StateWorld[Visit]):
    """Find and buy what the instruction asks for."""

    @dataclass(frozen=True, kw_only=True)
    class Config(StateWorld.Config):
        """The folder of the catalogue."""

        max_steps: int = 15
        view: str = "page"
        data: Local[Path] = Path(os.environ.get("TERRELLA_WEBSHOP", "data/webshop"))

    config: Config
    rules = (
        "You are in a web shop. Find what the instruction asks for, choose its options and buy it. "
        "Actions: search[words], click[product or option or button]."
    )
    state_type = Visit
    verifier = LineGain.Config().build()
    view_names = ("page",)

    def __init__(self, config: Config) -> None:
        self.shop = load_catalogue(config.data)
        super().__init__(config)

    @property
    def goal(self) -> Goal:
        """The goal of this episode."""
        return self.shop.goals[self.state.goal]

    @property
    def instruction(self) -> str:
        """The rules and the customer's instruction."""
        return f"{self.rules}\nInstruction: {self.goal.instruction}"

    def draw(self, rng: np.random.Generator) -> Visit:
        """Draw one of the written instructions."""
        return Visit(goal=int(rng.integers(len(self.shop.goals))))

    def make_view(self, name: str) -> View[Visit]:
        return PageView(self)

    def legal(self, state: Visit) -> tuple[str, ...]:
        """Empty, because actions are free text; see `clickable` for a page's links."""
        return ()

    def clickable(self, state: Visit) -> tuple[str, ...]:
        """What can be clicked on this page."""
        if state.page == "results":
            results = self.shop.search(state.query)
            start, end = state.number * PER_PAGE, (state.number + 1) * PER_PAGE
            following = ("next >",) if len(results) > end else ()
            previous = ("< prev",) if state.number else ()
            return ("back to search", *following, *previous, *results[start:end])
        if state.page == "item":
            product = self.shop.products[state.item]
            options = [value for _, values in product.options for value in values]
            return ("back to search", "< prev", *options, "buy now")
        return ()

    def proposals(self, state: Visit) -> Sequence[str]:
        """All clicks of the page, or searches for parts of the instruction."""
        if state.page == "search":
            words = self.shop.goals[state.goal].instruction.split(", and price")[0].split()
            starts = range(0, max(1, len(words) - 5), 3)
            return [f"search[{' '.join(words[start : start + 6])}]" for start in starts]
        return [f"click[{name}]" for name in self.clickable(state)] or ["click[back to search]"]

    def outcomes(self, state: Visit, action: str) -> list[Outcome]:
        """The effect of a search or click; other actions change nothing."""
        searched = _SEARCH.fullmatch(action.strip())
        if searched and state.page == "search":
            query = " ".join(searched[1].lower().split())  # pages show a single blank
            return [Outcome(state=replace(state, page="results", query=query, number=0))]
        clicked = _CLICK.fullmatch(action.strip())
        target = clicked[1].strip().lower() if clicked else ""
        for name in self.clickable(state):
            if name.lower() == target:
                return [self._click(state, name)]
        return [Outcome(state=state)]

    def _click(self, state: Visit, name: str) -> Outcome:
        if name == "back to search":
            return Outcome(state=Visit(goal=state.goal))
        if name == "buy now":
            return self._buy(state)
        if name == "< prev" and state.page == "item":
            return Outcome(state=replace(state, page="results", item="", chosen=()))
        if name in ("next >", "< prev"):
            step = 1 if name == "next >" else -1
            return Outcome(state=replace(state, number=state.number + step))
        if state.page == "results":
            return Outcome(state=replace(state, page="item", item=name, chosen=()))
        return Outcome(state=self._choose(state, name))

    def _choose(self, state: Visit, value: str) -> Visit:
        chosen = dict(choice.split("=", 1) for choice in state.chosen)
        options = self.shop.products[state.item].options
        chosen.update({key: value for key, values in options if value in values})
        ordered = tuple(f"{key}={chosen[key]}" for key, _ in options if key in chosen)
        return replace(state, chosen=ordered)

    def _buy(self, state: Visit) -> Outcome:
        goal = self.shop.goals[state.goal]
        products = self.shop.products
        options = [choice.split("=", 1)[1] for choice in state.chosen]
        earned = reward(products[state.item], goal, products[goal.asin], options)
        return Outcome(
            state=replace(state, page="done"), reward=earned, terminated=True, success=earned == 1.0
        )

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The reward of the purchase; 0 when nothing was bought."""
        earned = sum(step.reward for step in transitions)
        return Verdict.of(earned, success=float(earned == 1.0))

    def expert(self, state: Visit, steps_left: int, rng: np.random.Generator) -> str:
        """Search for the wanted product's own title, open it, choose, buy."""
        goal = self.shop.goals[state.goal]
        product = self.shop.products[goal.asin]
        if state.page == "search":
            return f"search[{product.title[:180]}]"
        clickable = self.clickable(state)
        if state.page == "results":
            ways = (goal.asin, "next >", "back to search")
            return f"click[{next(name for name in ways if name in clickable)}]"
        if state.item != goal.asin:
            return "click[back to search]"
        chosen = state.chosen
        missing = [o for o in goal.options if not any(c.endswith(f"={o}") for c in chosen)]
        return next((f"click[{name}]" for name in clickable if name in missing), "click[buy now]")


class PageView:
    """The page as text, below a line with the state, from which the page is read back."""

    legend = (
        "The first line says where you are; below it stands the page, "
        "with what can be clicked in brackets."
    )

    def __init__(self, world: WebShop) -> None:
        self.world = world
        self.record = RecordView(Visit)

    def show(self, state: Visit) -> Observation:
        """Write the state line and the page."""
        products = self.world.shop.products
        lines = [
            show_text(self.record.show(state)),
            f"Instruction: {self.world.shop.goals[state.goal].instruction}",
        ]
        if state.item:
            product = products[state.item]
            lines += [product.title, f"Price: {product.price:.2f}", *state.chosen]
        for name in self.world.clickable(state):
            title = products[name].title[:80] if name in products else ""
            lines.append(f"[{name}] {title}".rstrip())
        return Text("\n".join(" ".join(line.split()) for line in lines))

    def read(self, observation: Observation) -> Visit | None:
        """Read the state line; None unless the page below it belongs to that state."""
        state = self.record.read(State(show_text(observation).split("\n", 1)[0]))
        if not isinstance(state, Visit) or not 0 <= state.goal < len(self.world.shop.goals):
            return None
        if state.item and state.item not in self.world.shop.products:
            return None
        return state if self.show(state) == observation else None
