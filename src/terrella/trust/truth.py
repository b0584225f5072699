"""The truth, and what needs no model, as world models: what a learned one is measured against.

`TrueModel` asks the world itself; a world without a readable state is judged by the step that was seen. `NoChange` says
that nothing happens, `NearestCopy` copies what came of the most similar step in the data.
    truth = TrueModel(world).believe([question])[0]; NearestCopy(NearestData(transitions)).believe([question])
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.types import Transition
from terrella.core.world import StateWorld, World
from terrella.trust.beliefs import Belief, Question, certain
from terrella.trust.nearness import NearestData


class TrueModel:
    """The exact distribution over results, from a world whose observations can be read back."""

    def __init__(self, world: World) -> None:
        """The world is asked for outcomes; it is not stepped."""
        self.world = world

    @classmethod
    def knows(cls, world: World) -> bool:
        """Whether the world can say what comes of any observation."""
        return isinstance(world, StateWorld)

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """The true distribution for each question; none where the observation is no rendering of a state."""
        return [self._truth(question) for question in questions]

    def _truth(self, question: Question) -> Belief:
        world = self.world
        assert isinstance(world, StateWorld)
        state = world.view.read(question.situation.observation)
        if state is None:
            return Belief(())
        results = sorted(world.truth(state, question.action), key=lambda result: -result.probability)
        return Belief(
            tuple(certain(world.view.show(r.state), r.reward, r.terminated, r.success, r.probability) for r in results)
        )


def seen_truth(step: Transition) -> Belief:
    """What happened, as the truth of a world that cannot tell what else might have."""
    success = step.terminated and bool(step.info.get("success", step.reward > 0))
    return Belief((certain(step.next_observation, step.reward, step.terminated, success),))


class NoChange:
    """Nothing ever happens."""

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """The observation as it was, nothing earned, nothing over."""
        return [Belief((certain(question.situation.observation, 0.0, False, False),)) for question in questions]


class NearestCopy:
    """Copies what came of the most similar step in the data."""

    def __init__(self, data: NearestData) -> None:
        """The same index that measures the distance to the data."""
        self.data = data

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """The result of the nearest step with the same action."""
        pairs = [(question.situation.observation, question.action) for question in questions]
        _, nearest = self.data.look_up(pairs)
        return [seen_truth(step) if step is not None else Belief(()) for step in nearest]
