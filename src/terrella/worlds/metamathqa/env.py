"""MetaMathQA: answer a word problem in free text. Each wrong try halves the reward.

Without `path` the questions are a small sample that ships with the package, not the published data.
    world = MetaMathQA.Config(path=Path("MetaMathQA-395K.json")).build()
    world.reset(seed=0)
    world.step("The answer is: 3/4")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.config import Local
from terrella.core.protocols import View
from terrella.core.types import Observation, Outcome
from terrella.core.world import StateWorld, World
from terrella.verify.state import StateDiff
from terrella.worlds.metamathqa.answers import same_answer
from terrella.worlds.metamathqa.table import load_table
from terrella.worlds.metamathqa.views import AnswerAttempt, AttemptView

GUESSES = tuple(map(str, range(100)))
"""Answers of the random policy: most word problems have a small whole number as their answer."""


class MetaMathQA(StateWorld[AnswerAttempt]):
    """Word problems from a local MetaMathQA file; without one, from a small built-in sample."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The data file and the number of tries."""

        max_steps: int = 5
        """Number of tries; the last wrong one ends the episode."""
        path: Local[Path | None] = None
        """A local copy of MetaMathQA (JSON list or JSON lines); None for the built-in sample."""

    config: Config
    name = "metamathqa"
    rules = (
        "Answer the question with a number or a short expression; "
        "you may end with 'The answer is: ...'. "
        "A wrong answer can be corrected, but each wrong try halves the reward."
    )
    verifier = StateDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Load the questions, so that a missing or broken file fails before the first episode."""
        self.table = load_table(config.path)
        super().__init__(config)

    def make_view(self, name: str) -> View[AnswerAttempt]:
        return AttemptView(self.table, self.config.max_steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset; `info["source"]` names the data file, or says that this is the sample."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "source": self.table.source}

    def draw(self, rng: np.random.Generator) -> AnswerAttempt:
        """Draw a question uniformly."""
        return AnswerAttempt(self.table.questions[int(rng.integers(len(self.table.questions)))])

    def key(self, state: AnswerAttempt) -> Any:
        """The original question.

        Its rephrasings are one instance, so that no split leaks the answers of another.
        """
        return self.table.original_of(state.question)

    def legal(self, state: AnswerAttempt) -> tuple[str, ...]:
        """Return no names: the answer is free text."""
        return ()

    def outcomes(self, state: AnswerAttempt, action: str) -> list[Outcome]:
        """A right answer pays 1/2^k after k wrong tries.

        The last wrong try terminates the episode: the number of tries is a rule of the game.
        """
        if state.solved or state.wrong_tries >= self.config.max_steps:
            return [Outcome(state=state, terminated=True)]
        if same_answer(action, self.table.answer_of(state.question)):
            return [
                Outcome(
                    state=replace(state, solved=True),
                    reward=0.5**state.wrong_tries,
                    terminated=True,
                    success=True,
                )
            ]
        after = replace(state, wrong_tries=state.wrong_tries + 1)
        return [Outcome(state=after, terminated=after.wrong_tries == self.config.max_steps)]

    def proposals(self, state: AnswerAttempt) -> Sequence[str]:
        return GUESSES

    def expert(self, state: AnswerAttempt, steps_left: int, rng: np.random.Generator) -> str:
        return self.table.answer_of(state.question)
