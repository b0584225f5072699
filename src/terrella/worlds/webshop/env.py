"""WebShop in text: search a real catalogue, look at products, choose options, buy; the original reward.

    search[console table] | click[B06Y3VLDFB] | click[red] | click[next >] | click[back to search] | click[buy now]
The state is plain values, so outcomes are exact and pages can be predicted; the catalogue is read from your folder.
    world = WebShop.Config(data=Path("data/webshop")).build(); world.reset(seed=0); world.step("search[oak table]")
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

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
    """Where a customer stands."""

    goal: int
    page: str = "search"
    """search, results, item or done."""
    query: str = ""
    number: int = 0
    """Page of the results."""
    item: str = ""
    chosen: tuple[str, ...] = ()
    """option=value, in the order of the product's options."""


class WebShop(StateWorld[Visit]):
    """Find and buy what the instruction asks for."""

    @dataclass(frozen=True, kw_only=True)
    class Config(StateWorld.Config):
        """Where the catalogue is."""

        max_steps: int = 15
        view: str = "page"
        data: Path = Path(os.environ.get("TERRELLA_WEBSHOP", "data/webshop"))

    config: Config
    rules = (
        "You are in a web shop. Find what the instruction asks for, choose its options and buy it. "
        "Actions: search[words], click[product or option or button]."
    )
    state_type, verifier = Visit, LineGain.Config().build()
    view_names = ("page",)

    def __init__(self, config: Config) -> None:
        """Read the catalogue."""
        self.shop = load_catalogue(config.data)
        super().__init__(config)

    @property
    def goal(self) -> Goal:
        """What is wanted in this episode."""
        return self.shop.goals[self.state.goal]

    @property
    def instruction(self) -> str:
        """The rules and the customer's wish."""
        return f"{self.rules}\nInstruction: {self.goal.instruction}"

    def draw(self, rng: np.random.Generator) -> Visit:
        """One of the written instructions."""
        return Visit(goal=int(rng.integers(len(self.shop.goals))))

    def make_view(self, name: str) -> View[Visit]:
        """What a customer reads."""
        return PageView(self)

    def legal(self, state: Visit) -> tuple[str, ...]:
        """Free text: see `clickable` for what a page offers."""
        return ()

    def clickable(self, state: Visit) -> tuple[str, ...]:
        """What can be clicked on this page."""
        if state.page == "results":
            found = self.shop.search(state.query)
            shown = found[state.number * PER_PAGE : (state.number + 1) * PER_PAGE]
            further = ("next >",) if len(found) > (state.number + 1) * PER_PAGE else ()
            return ("back to search", *further, *(("< prev",) if state.number else ()), *shown)
        if state.page == "item":
            options = [value for _, values in self.shop.products[state.item].options for value in values]
            return ("back to search", "< prev", *options, "buy now")
        return ()

    def proposals(self, state: Visit) -> Sequence[str]:
        """Clicks, or a search for words of the instruction."""
        if state.page == "search":
            text = self.shop.goals[state.goal].instruction.split(", and price")[0].split()
            return [f"search[{' '.join(text[start : start + 6])}]" for start in range(0, max(1, len(text) - 5), 3)]
        return [f"click[{name}]" for name in self.clickable(state)] or ["click[back to search]"]

    def outcomes(self, state: Visit, action: str) -> list[Outcome]:
        """What the shop does; what it does not understand changes nothing."""
        searched, clicked = _SEARCH.fullmatch(action.strip()), _CLICK.fullmatch(action.strip())
        if searched and state.page == "search":
            return [Outcome(state=replace(state, page="results", query=searched[1].strip().lower(), number=0))]
        name = clicked[1].strip() if clicked else ""
        match = next((one for one in self.clickable(state) if one.lower() == name.lower()), None)
        return [self._click(state, match)] if match is not None else [Outcome(state=state)]

    def _click(self, state: Visit, name: str) -> Outcome:
        if name == "back to search":
            return Outcome(state=Visit(goal=state.goal))
        if name == "buy now":
            return self._buy(state)
        if name == "< prev" and state.page == "item":
            return Outcome(state=replace(state, page="results", item="", chosen=()))
        if name in ("next >", "< prev"):
            return Outcome(state=replace(state, number=state.number + (1 if name == "next >" else -1)))
        if state.page == "results":
            return Outcome(state=replace(state, page="item", item=name, chosen=()))
        return Outcome(state=self._choose(state, name))

    def _choose(self, state: Visit, value: str) -> Visit:
        chosen = dict(one.split("=", 1) for one in state.chosen)
        options = self.shop.products[state.item].options
        chosen.update({key: value for key, values in options if value in values})
        return replace(state, chosen=tuple(f"{key}={chosen[key]}" for key, _ in options if key in chosen))

    def _buy(self, state: Visit) -> Outcome:
        goal, shop = self.shop.goals[state.goal], self.shop.products
        options = [one.split("=", 1)[1] for one in state.chosen]
        earned = reward(shop[state.item], goal, shop[goal.asin], options)
        return Outcome(state=replace(state, page="done"), reward=earned, terminated=True, success=earned == 1.0)

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The reward of the purchase; nothing bought, nothing earned."""
        earned = sum(step.reward for step in transitions)
        return Verdict.of(earned, success=float(earned == 1.0))

    def expert(self, state: Visit, steps_left: int, rng: np.random.Generator) -> str:
        """Search for the wanted product's own title, open it, choose, buy."""
        goal = self.shop.goals[state.goal]
        product = self.shop.products[goal.asin]
        if state.page == "search":
            return f"search[{product.title[:180]}]"
        if state.page == "results":
            return f"click[{goal.asin}]" if goal.asin in self.clickable(state) else "click[next >]"
        missing = [one for one in goal.options if not any(c.endswith(f"={one}") for c in state.chosen)]
        offered = [name for name in self.clickable(state) if name in missing]
        return f"click[{offered[0]}]" if offered and state.item == goal.asin else "click[buy now]"


class PageView:
    """The page in words, below a line that says where it is; that line is what it is read back from."""

    legend = "The first line says where you are; below it stands the page, with what can be clicked in brackets."

    def __init__(self, world: WebShop) -> None:
        """The catalogue comes from the world."""
        self.world, self.record = world, RecordView(Visit)

    def show(self, state: Visit) -> Observation:
        """Head line and page."""
        lines = [show_text(self.record.show(state)), f"Instruction: {self.world.shop.goals[state.goal].instruction}"]
        if state.item:
            product = self.world.shop.products[state.item]
            lines += [product.title, f"Price: {product.price:.2f}", *state.chosen]
        for name in self.world.clickable(state):
            title = self.world.shop.products[name].title[:80] if name in self.world.shop.products else ""
            lines.append(f"[{name}] {title}".rstrip())
        return Text("\n".join(" ".join(line.split()) for line in lines))

    def read(self, observation: Observation) -> Visit | None:
        """The state of the head line, if the page below is its page."""
        state = self.record.read(State(show_text(observation).split("\n", 1)[0]))
        if not isinstance(state, Visit) or not 0 <= state.goal < len(self.world.shop.goals):
            return None
        if state.item and state.item not in self.world.shop.products:
            return None
        return state if self.show(state) == observation else None
