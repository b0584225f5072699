"""A world without a readable state, whose legal actions and verdict depend on where it is."""

from terrella.core.predictive import PredictiveDistribution
from terrella.core.spaces import Names, Observations
from terrella.core.types import Kind, Text, Verdict
from terrella.core.world import Step, World
from terrella.trust.predictive import certain
from terrella.verify.text import Exact

LAST = 5


class Pages(World):
    """Pages in a row: page n offers only the link `to n+1`, and page 5 is the goal."""

    verifier = Exact.Config().build()

    def __init__(self, config):
        super().__init__(config)
        self.page = self.book = 0
        self.taken = 0  # steps in this world, not in its forks
        self.action_space = Names(("to 1",))
        self.observation_space = Observations(Kind.TEXT)

    def _start(self, rng):
        self.page, self.book = 0, int(rng.integers(10**9))
        return self.book

    def _observe(self):
        return Text(f"page {self.page} of {self.book}")

    def actions(self):
        return (f"to {self.page + 1}",)

    def _act(self, action):
        self.taken += 1
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        self.page += 1
        over = self.page == LAST
        return Step(float(over), over, over, valid=True, effective=True)

    def outcome(self, transitions):
        return Verdict.of(float(self.page == LAST), "the page of the real world")


class Reader:
    """A model of `Pages` that predicts right."""

    def predict(self, queries):
        return [PredictiveDistribution((self.turn(query),)) for query in queries]

    def turn(self, query):
        _, page, _, book = query.situation.observation.text.split()
        if query.action != f"to {int(page) + 1}":
            return certain(query.situation.observation, 0.0, False, False)
        over = int(page) + 1 == LAST
        return certain(Text(f"page {int(page) + 1} of {book}"), float(over), over, over)
