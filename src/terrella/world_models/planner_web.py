"""A web agent that looks ahead in imagined pages before it acts, within a budget of model calls.

A proposer names actions with weights. A page world model predicts the changes and the reward of
each; applying the changes gives an imagined page, which is expanded again up to `depth`. `stop` is
an action like any other, worth the reward that the model predicts for it. Risk (the probability
that the model leaves for other answers) costs `risk_weight`.
    agent = PagePlanner(PagePlanner.Config(depth=2), proposer, model, legal)
    agent.act(moment); agent.cost.calls
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from terrella.codecs.tagged import TextCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Codec, ThoughtReader, WorldModel
from terrella.core.types import Moment, Observation, Situation, Tree, show_text
from terrella.verify.page_sections import read_imagined
from terrella.verify.tree import Node, parse, write

Proposals = list[tuple[str, float]]
"""Actions with their weights, highest weight first."""


class PageReplies:
    """What a world model needs of a codec, with replies read as the page that they lead to.

    `like` is the page before; changes that cannot be applied to it cannot be read.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.stop_ids = codec.stop_ids

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        return self.codec.ask_observation(situation, action)

    def text(self, token_ids: Sequence[int]) -> str:
        """The changes as they were written."""
        return cast(TextCodec, self.codec).text(token_ids)

    def read_thought(self, token_ids: Sequence[int]) -> tuple[int, bool] | None:
        """As the codec's: see `core.protocols.ThoughtReader`."""
        codec = self.codec
        return codec.read_thought(token_ids) if isinstance(codec, ThoughtReader) else None

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The imagined page; None if the changes cannot be applied."""
        changes = self.codec.read_observation(token_ids, like)
        if changes is None:
            return None
        try:
            return Tree(write(read_imagined(show_text(changes).strip("\n"), page_of(like))))
        except ValueError:
            return None


def page_of(observation: Observation) -> list[Node]:
    """The elements of a page."""
    return parse(show_text(observation))


class ActionProposer(Protocol):
    """Proposes the actions of a page that are worth expanding."""

    @property
    def calls(self) -> int:
        """Model calls so far."""
        ...

    @property
    def calls_per_page(self) -> int:
        """Model calls that one situation takes."""
        ...

    def propose(self, situations: Sequence[Situation]) -> list[Proposals]:
        """Proposals for each situation, computed as one batch."""
        ...


class PageValue(Protocol):
    """Values pages, real or imagined: 1 is a task that will be done, 0 one that will not."""

    @property
    def calls(self) -> int:
        """Model calls so far."""
        ...

    @property
    def calls_per_page(self) -> int:
        """Model calls that one situation takes."""
        ...

    def value(self, situations: Sequence[Situation]) -> list[float]:
        """A number from 0 to 1 for each situation, computed as one batch."""
        ...


@dataclass
class PagePlanCost:
    """Steps taken, and the model calls they took."""

    steps: int = 0
    calls: int = 0
    """Model calls: proposals, predictions and values, one per query."""


@dataclass(eq=False)
class _Branch:
    """An imagined course: its first action, its current situation and its value so far."""

    first: str
    situation: Situation
    value: float
    over: bool = False


class PagePlanner(Configurable):
    """Model-predictive control over pages."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Search depth, width and budget."""

        depth: int = 2
        """Steps of look-ahead; 0 acts on the proposals alone."""
        width: int = 4
        """Proposals expanded on each page, and branches kept from one depth to the next."""
        budget: int = 64
        """Model calls per step of the episode; what it does not pay for is not looked at."""
        risk_weight: float = 0.1
        prior_weight: float = 0.3
        """Weight of the proposer's own preference in the value of a branch."""
        discount: float = 0.95

        def __post_init__(self) -> None:
            if self.depth < 0 or self.width < 1 or self.budget < 1:
                raise ConfigError("page_planner", "needs depth >= 0, width >= 1 and budget >= 1")

    config: Config

    def __init__(
        self,
        config: Config,
        proposer: ActionProposer,
        model: WorldModel | None,
        legal: Callable[[Sequence[Node]], Sequence[str]],
        value: PageValue | None = None,
    ) -> None:
        """`legal` lists the candidate actions of a page, imagined or real.

        The proposer chooses among them. Without a `value`, a branch is worth the rewards that the
        model predicts for it.
        """
        super().__init__(config)
        if config.depth and model is None:
            raise ConfigError(
                "page_planner.depth", "looking ahead needs a model", "give one, or set depth=0"
            )
        self.proposer = proposer
        self.model = model
        self.legal = legal
        self.value = value
        self.value_calls = 0 if value is None else value.calls_per_page
        self._check_budget()
        self.cost = PagePlanCost()
        self.name = f"page_planner({config.depth},{config.width})"

    def _check_budget(self) -> None:
        """One step of look-ahead is the least: with less, some actions keep only their prior."""
        config = self.config
        needed = self.proposer.calls_per_page + config.width * (1 + self.value_calls)
        if config.depth and config.budget < needed:
            raise ConfigError(
                "page_planner.budget",
                f"one step of look-ahead takes up to {needed} model calls, the budget has "
                f"{config.budget}",
                f"set budget to {needed} or more, or lower width or the samples",
            )

    def act(self, moment: Moment) -> str:
        """The first action of the branch with the highest value."""
        self.cost.steps += 1
        start = Situation(
            instruction=moment.instruction,
            observation=moment.observation,
            actions=moment.actions,
            history=tuple(moment.history),
            steps_left=moment.steps_left,
        )
        call_limit = self.cost.calls + self.config.budget
        proposals = self._propose([start])[0]
        if not proposals:
            raise PolicyError(self.name, "nothing was proposed for this page")
        values = {action: self.config.prior_weight * weight for action, weight in proposals}
        if self.config.depth:
            branches = [_Branch(action, start, value) for action, value in values.items()]
            actions = [action for action, _ in proposals]
            values |= self._look_ahead(branches, actions, call_limit)
        return max(values, key=lambda action: values[action])

    def _propose(self, situations: Sequence[Situation]) -> list[Proposals]:
        calls_before = self.proposer.calls
        proposals = self.proposer.propose(situations)
        self.cost.calls += self.proposer.calls - calls_before
        return [each[: self.config.width] for each in proposals]

    def _look_ahead(
        self, branches: list[_Branch], actions: list[str], call_limit: int
    ) -> dict[str, float]:
        """Value of each first action: the best value of any branch that starts with it."""
        best: dict[str, float] = {}
        for depth in range(self.config.depth):
            seen = self._predict(branches, actions, depth)
            last = depth + 1 == self.config.depth
            parents = [] if last else self._affordable(seen, call_limit)
            parents, branches, actions = self._expand(parents)
            # With a value, a branch that goes on is valued where it ends.
            ends = seen if self.value is None else [b for b in seen if b not in parents]
            for branch, end_value in zip(ends, self._end_values(ends, depth), strict=True):
                best[branch.first] = max(best.get(branch.first, -1e9), end_value)
            if not branches:
                break
        return best

    def _end_values(self, branches: Sequence[_Branch], depth: int) -> list[float]:
        """The branches' values; an open one is worth what can still be won from its page."""
        ahead = [branch.situation for branch in branches if not branch.over]
        if self.value is None or not ahead:
            return [branch.value for branch in branches]
        calls_before = self.value.calls
        values = iter(self.value.value(ahead))
        self.cost.calls += self.value.calls - calls_before
        scale = self.config.discount ** (depth + 1)
        return [
            branch.value if branch.over else branch.value + scale * next(values)
            for branch in branches
        ]

    def _predict(
        self, branches: Sequence[_Branch], actions: Sequence[str], depth: int
    ) -> list[_Branch]:
        """Advance every branch by one step, in one batch."""
        assert self.model is not None
        distributions = self.model.predict(
            [
                Query(branch.situation, action)
                for branch, action in zip(branches, actions, strict=True)
            ]
        )
        self.cost.calls += len(branches)
        return [
            self._advance(branch, action, distribution, depth)
            for branch, action, distribution in zip(branches, actions, distributions, strict=True)
        ]

    def _advance(
        self, branch: _Branch, action: str, distribution: PredictiveDistribution, depth: int
    ) -> _Branch:
        if not distribution.predictions:  # nothing could be parsed: full risk, no reward
            return replace(branch, value=branch.value - self.config.risk_weight, over=True)
        predicted = distribution.predictions[0]
        scale = self.config.discount**depth
        situation = replace(
            Query(branch.situation, action).after(predicted),
            actions=tuple(self.legal(page_of(predicted.observation))),
        )
        gain = predicted.reward - self.config.risk_weight * predicted.risk
        return replace(
            branch,
            situation=situation,
            value=branch.value + scale * gain,
            over=predicted.terminated or situation.steps_left < 1,
        )

    def _affordable(self, branches: Sequence[_Branch], call_limit: int) -> list[_Branch]:
        """The best open branches: as many as can be expanded, and all ends still be valued."""
        width, value_calls = self.config.width, self.value_calls
        open_branches = [branch for branch in branches if not branch.over]
        open_branches.sort(key=lambda branch: -branch.value)
        room = call_limit - self.cost.calls - value_calls * len(open_branches)
        # Its children are predicted and valued; the branch itself is not valued then.
        each = self.proposer.calls_per_page + width * (1 + value_calls) - value_calls
        return open_branches[: min(width, max(0, room // each))]

    def _expand(
        self, branches: Sequence[_Branch]
    ) -> tuple[list[_Branch], list[_Branch], list[str]]:
        """The branches that go on, and a copy for each action proposed on their imagined pages."""
        parents: list[_Branch] = []
        expanded: list[_Branch] = []
        actions: list[str] = []
        if not branches:
            return parents, expanded, actions
        all_proposals = self._propose([branch.situation for branch in branches])
        for branch, proposals in zip(branches, all_proposals, strict=True):
            if proposals:
                parents.append(branch)
            for action, weight in proposals:
                bonus = 0.1 * self.config.prior_weight * weight
                expanded.append(replace(branch, value=branch.value + bonus))
                actions.append(action)
        return parents, expanded, actions
