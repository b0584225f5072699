"""MetaMathQA: answer a word problem in free text, with several tries. Each wrong try halves the reward.

Without `path` the questions are a made sample that ships with the package, not the published data.
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

from terrella.core.protocols import View
from terrella.core.types import Observation, Outcome
from terrella.core.world import StateWorld, World
from terrella.verify.state import StateDiff
from terrella.worlds.metamathqa.answers import same_answer
from terrella.worlds.metamathqa.table import load_table
from terrella.worlds.metamathqa.views import Attempt, AttemptView

GUESSES = tuple(map(str, range(100)))
"""What the random policy says: most answers of word problems are small whole numbers."""


class MetaMathQA(StateWorld[Attempt]):
    """Word problems of a local MetaMathQA file; without one, of a made sample that only shows how it works."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Where the questions are, and how many tries there are."""

        max_steps: int = 5
        """Tries; the last wrong one ends the episode."""
        path: Path | None = None
        """A local copy of MetaMathQA (JSON list or JSON lines); None for the made sample."""

    config: Config
    name = "metamathqa"
    rules = (
        "Answer the question with a number or a short expression; you may end with 'The answer is: ...'. "
        "A wrong answer can be corrected, but each wrong try halves the reward."
    )
    verifier = StateDiff.Config().build()

    def __init__(self, config: Config) -> None:
        """Load the questions; a missing or broken file fails here, before anything is played."""
        self.table = load_table(config.path)
        super().__init__(config)

    def make_view(self, name: str) -> View[Attempt]:
        """The JSON view."""
        return AttemptView(self.table, self.config.max_steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """As every world; `info["source"]` says whether this is the made sample or which file."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "source": self.table.source}

    def draw(self, rng: np.random.Generator) -> Attempt:
        """A question, uniformly."""
        return Attempt(self.table.questions[int(rng.integers(len(self.table.questions)))])

    def key(self, state: Attempt) -> Any:
        """The original question: its rephrasings are one instance, so that no split holds hints on another."""
        return self.table.original_of(state.question)

    def legal(self, state: Attempt) -> tuple[str, ...]:
        """None: the answer is free text."""
        return ()

    def outcomes(self, state: Attempt, action: str) -> list[Outcome]:
        """Right pays 1/2^k after k wrong tries. The last wrong try ends the episode: the tries are a rule."""
        if state.solved or state.wrong_tries >= self.config.max_steps:
            return [Outcome(state=state, terminated=True)]
        if same_answer(action, self.table.answer_of(state.question)):
            return [
                Outcome(state=replace(state, solved=True), reward=0.5**state.wrong_tries, terminated=True, success=True)
            ]
        after = replace(state, wrong_tries=state.wrong_tries + 1)
        return [Outcome(state=after, terminated=after.wrong_tries == self.config.max_steps)]

    def proposals(self, state: Attempt) -> Sequence[str]:
        """Small whole numbers."""
        return GUESSES

    def expert(self, state: Attempt, steps_left: int, rng: np.random.Generator) -> str:
        """The true answer."""
        return self.table.answer_of(state.question)
