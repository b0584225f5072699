"""World models made by hand: exact, broken on purpose, and on the way between."""

import zlib
from dataclasses import replace

from terrella.core.episode import play
from terrella.policies.basic import Random
from terrella.trust.beliefs import Belief
from terrella.trust.nearness import NearestData
from terrella.trust.risk import Assessor
from terrella.trust.truth import TrueModel
from terrella.use.imagine import Imagination


class Lying:
    """The truth, except where `lies` says otherwise; it knows nothing of its lies and stays as sure as ever."""

    def __init__(self, world, lies):
        self.truth, self.lies, self.asked = TrueModel(world), lies, 0

    def believe(self, questions):
        self.asked += len(questions)
        told = self.truth.believe(questions)
        return [self.lie(q, b) if self.lies(q) else b for q, b in zip(questions, told, strict=True)]

    def lie(self, question, belief):
        """Nothing happens."""
        before = question.situation.observation
        return Belief(tuple(replace(p, observation=before, terminated=False, success=False, reward=0.0) for p in
                            belief.predictions[:1]))  # fmt: skip


class Doubting(Lying):
    """Lies as often, but says so: what it makes up it finds improbable, and its samples disagree."""

    def lie(self, question, belief):
        lied = super().lie(question, belief)
        return Belief(tuple(replace(p, logprob=-1.5) for p in lied.predictions), counts=(2,), unreadable=3)


def by_chance(share, seed=0):
    """A fixed share of all questions, decided by the question itself."""

    def lies(question):
        text = f"{seed} {question.situation.observation} {question.action}"
        return zlib.crc32(text.encode()) / 2**32 < share

    return lies


def data_of(world, episodes=60):
    policy = Random.Config().build()
    return NearestData(step for seed in range(episodes) for step in play(world, policy, seed=seed).transitions)


def imagination_of(model, certificate=None, data=None):
    risk = certificate.risk if certificate else None
    return Imagination(Assessor(model, data or NearestData([]), risk), certificate)
