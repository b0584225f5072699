"""A web agent that looks ahead in imagined pages before it acts, within a budget of model calls.

A proposer names actions with weights; a page world model says what each would change and earn; pages are imagined by
applying the changes, and looked at again to `depth`. `stop` is an action like any other: its worth is what the model
says it earns. Risk (the probability a model leaves for other answers) costs `risk_weight`.
    agent = PagePlanner(PagePlanner.Config(depth=2), proposer, model, legal); agent.act(moment); agent.spent.calls
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.types import Moment, Observation, Situation, Tree, show_text
from terrella.trust.beliefs import Belief, Question
from terrella.verify.tree import Node, parse, write
from terrella.verify.tree_diff import read_page


class PageCodec(InterleavedCodec):
    """Reads a reply of changes as the page that comes of them; `like` is the page before."""

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The imagined page; None for changes that cannot be made."""
        told = super().read_observation(token_ids, like)
        try:
            return None if told is None else Tree(write(read_page(show_text(told), parse(show_text(like)))))
        except ValueError:
            return None


class Proposer(Protocol):
    """Who names actions worth looking at: (action, weight) with the likeliest first."""

    calls: int

    def propose(self, situations: Sequence[Situation]) -> list[list[tuple[str, float]]]:
        """Proposals for each situation, asked together."""
        ...


class Believer(Protocol):
    """A page world model."""

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """What comes of each action."""
        ...


@dataclass
class Spent:
    """What acting took."""

    steps: int = 0
    calls: int = 0
    """Model calls: proposals and predictions, each question counted once."""


@dataclass
class _Branch:
    """An imagined line of play: its first action, where it stands, what it is worth so far."""

    first: str
    situation: Situation
    value: float
    over: bool = False


class PagePlanner(Configurable):
    """Model-predictive control over pages."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How far, how wide, how dear."""

        depth: int = 2
        """Steps looked ahead; 0 acts on the proposals alone."""
        width: int = 4
        """Proposals looked at on each page, and branches kept from one depth to the next."""
        budget: int = 64
        """Model calls per step of the episode."""
        risk_weight: float = 0.1
        prior_weight: float = 0.3
        """What the proposer's own preference adds to a branch."""
        discount: float = 0.95

        def __post_init__(self) -> None:
            """Refuse a search that cannot look at anything."""
            if self.depth < 0 or self.width < 1 or self.budget < 1:
                raise ConfigError("page_planner", "wants depth >= 0, width >= 1 and budget >= 1")

    config: Config

    def __init__(
        self,
        config: Config,
        proposer: Proposer,
        model: Believer | None,
        legal: Callable[[Sequence[Node]], Sequence[str]],
    ) -> None:
        """`legal` lists the candidate actions of a page, imagined or real; the proposer chooses among them."""
        super().__init__(config)
        if config.depth and model is None:
            raise ConfigError("page_planner.depth", "looking ahead needs a model", "give one, or set depth=0")
        self.proposer, self.model, self.legal, self.spent = proposer, model, legal, Spent()
        self.name = f"page_planner({config.depth},{config.width})"

    def act(self, moment: Moment) -> str:
        """The first action of the branch that promises most."""
        self.spent.steps += 1
        start = Situation(
            instruction=moment.instruction, observation=moment.observation, actions=moment.actions,
            history=tuple(moment.history), steps_left=moment.steps_left,
        )  # fmt: skip
        began = self._calls
        proposals = self._proposals([start])[0]
        if not proposals:
            raise PolicyError(self.name, "nothing was proposed for this page")
        values = {action: self.config.prior_weight * weight for action, weight in proposals}
        if self.config.depth and self.model is not None:
            branches = [_Branch(action, start, value) for action, value in values.items()]
            values |= self._look_ahead(branches, [action for action, _ in proposals], began)
        return max(values, key=lambda action: values[action])

    @property
    def _calls(self) -> int:
        return self.spent.calls

    def _proposals(self, situations: Sequence[Situation]) -> list[list[tuple[str, float]]]:
        before = self.proposer.calls
        found = self.proposer.propose(situations)
        self.spent.calls += self.proposer.calls - before
        return [one[: self.config.width] for one in found]

    def _look_ahead(self, branches: list[_Branch], actions: list[str], began: int) -> dict[str, float]:
        """Worth of each first action: the best that was imagined after it."""
        best: dict[str, float] = {}
        for depth in range(self.config.depth):
            left = self.config.budget - (self._calls - began)
            branches, actions = branches[:left], actions[:left]
            if not branches:
                break
            branches = self._imagine(branches, actions, depth)
            for branch in branches:
                best[branch.first] = max(best.get(branch.first, -1e9), branch.value)
            branches, actions = self._grow(branches, began)
        return best

    def _imagine(self, branches: Sequence[_Branch], actions: Sequence[str], depth: int) -> list[_Branch]:
        """Every branch one step further, all asked at once."""
        assert self.model is not None
        beliefs = self.model.believe([Question(b.situation, a) for b, a in zip(branches, actions, strict=True)])
        self.spent.calls += len(branches)
        return [self._further(b, belief, depth) for b, belief in zip(branches, beliefs, strict=True)]

    def _further(self, branch: _Branch, belief: Belief, depth: int) -> _Branch:
        if not belief.predictions:  # nothing that could be read: all risk, no promise
            return replace(branch, value=branch.value - self.config.risk_weight, over=True)
        said, scale = belief.predictions[0], self.config.discount**depth
        value = branch.value + scale * (said.reward - self.config.risk_weight * said.risk)
        page = parse(show_text(said.observation))
        situation = replace(
            branch.situation, observation=said.observation, actions=tuple(self.legal(page)),
            steps_left=branch.situation.steps_left - 1,
        )  # fmt: skip
        return replace(branch, situation=situation, value=value, over=said.terminated or situation.steps_left < 1)

    def _grow(self, branches: Sequence[_Branch], began: int) -> tuple[list[_Branch], list[str]]:
        """The best open branches, once for each action proposed on their imagined pages."""
        open_ones = sorted((b for b in branches if not b.over), key=lambda b: -b.value)[: self.config.width]
        left = self.config.budget - (self._calls - began)
        if not open_ones or left < 2 * len(open_ones):
            return [], []
        grown, actions = [], []
        for branch, proposals in zip(open_ones, self._proposals([b.situation for b in open_ones]), strict=True):
            for action, weight in proposals:
                grown.append(replace(branch, value=branch.value + 0.1 * self.config.prior_weight * weight))
                actions.append(action)
        return grown, actions
