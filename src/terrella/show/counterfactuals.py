"""What a model says of recorded steps, and what would have come of other actions: really, and in imagination.

Worlds with a readable state tell the exact distribution of what comes of an action; any other world is brought to the
step by its seed and the recorded actions. The model is asked about many steps at once.
    foresight = Foresight(world_config, imagination); foresight.predict([episode]); foresight.fork(episode, 3, ["Up"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from terrella.core.judge import judge
from terrella.core.types import Episode, Observation, Prediction, Situation, Transition, Verdict
from terrella.core.world import StateWorld, World
from terrella.trust.beliefs import SAME_REWARD, Belief, Question, certain
from terrella.use.imagine import Imagination

MOST_PROPOSALS = 8


@dataclass(frozen=True)
class Foretold:
    """What the model said of one step, and how that was judged; `said` is None when nothing could be read."""

    said: Prediction | None
    risk: float
    trust: str
    verdict: Verdict


@dataclass(frozen=True)
class Branch:
    """What comes of an action that was not taken; `risk` is None without a model."""

    action: str
    real: tuple[Prediction, ...]
    imagined: tuple[Prediction, ...] = ()
    risk: float | None = None
    trust: str = ""


class Foresight:
    """A world, and a model of it if there is one."""

    def __init__(self, config: World.Config, imagination: Imagination | None = None) -> None:
        """The world is built here and moved from episode to episode."""
        self.world: World = config.build()
        self.imagination = imagination

    # --- what was done ---------------------------------------------------------------------------------------------

    def predict(self, episodes: Sequence[Episode]) -> list[list[Foretold]]:
        """Every step of every episode, asked together."""
        if self.imagination is None:
            raise ValueError("there is no model to ask")
        told_once = [self._begin(episode) for episode in episodes]
        questions = [
            self._question(episode.transitions, at, instruction)
            for episode, instruction in zip(episodes, told_once, strict=True) for at in range(len(episode.transitions))
        ]  # fmt: skip
        told = iter(self.imagination.assessor.assess(questions))
        return [[self._judged(step, *next(told)) for step in episode.transitions] for episode in episodes]

    def _judged(self, step: Transition, belief: Belief, risk: float) -> Foretold:
        assert self.imagination is not None
        trust = self.imagination.verdict(risk, 1).value
        if not belief.predictions:
            return Foretold(None, risk, trust, Verdict.unparsable("no sample could be read"))
        said = belief.predictions[0]
        verdict = judge(
            self.world.verifier, reply=said.observation, truth=step.next_observation, before=step.observation
        )
        if verdict.value is None:
            return Foretold(said, risk, trust, verdict)
        same = said.terminated == step.terminated and abs(said.reward - step.reward) <= SAME_REWARD
        parts = {**verdict.parts, "outcome": float(same)}  # reward and end are part of what was asked
        return Foretold(said, risk, trust, replace(verdict, value=min(verdict.value, float(same)), parts=parts))

    def _begin(self, episode: Episode) -> str:
        """Move the world to the beginning of an episode; returns the instruction that held in it."""
        self.world.reset(seed=episode.seed, options={"split": episode.split, "noise_seed": episode.noise_seed})
        return self.world.instruction

    def _question(self, steps: Sequence[Transition], at: int, instruction: str, action: str = "") -> Question:
        seen = steps[at].observation
        return self._ask(seen, action or steps[at].action, tuple(steps[:at]), instruction)

    def _ask(self, seen: Observation, action: str, history: tuple[Transition, ...], instruction: str) -> Question:
        situation = Situation(
            instruction=instruction, observation=seen, actions=(), history=history,
            steps_left=self.world.config.max_steps - len(history),
        )  # fmt: skip
        return Question(situation, action)

    # --- what was not done -----------------------------------------------------------------------------------------

    def forks(self, episodes: Sequence[Episode]) -> list[list[list[Branch]]]:
        """For each step of each episode, every action that was legal; what the model imagines is asked together."""
        told_once = [self._begin(episode) for episode in episodes]
        found = [self._real_forks(episode) for episode in episodes]
        if self.imagination is None:
            return found
        questions = [
            self._question(episode.transitions, step, instruction, branch.action)
            for episode, steps, instruction in zip(episodes, found, told_once, strict=True)
            for step, branches in enumerate(steps) for branch in branches
        ]  # fmt: skip
        told = iter(self.imagination.assessor.assess(questions))
        return [
            [[self._imagined(branch, *next(told), depth=1) for branch in branches] for branches in steps]
            for steps in found
        ]

    def names(self, episode: Episode) -> list[list[Branch]]:
        """The actions of each step without what comes of them: for a page that can ask."""
        self._begin(episode)
        found: list[list[Branch]] = []
        for step in episode.transitions:
            found.append([Branch(action, ()) for action in self._to_try(step.action)])
            self.world.step(step.action)
        return found

    def _to_try(self, taken: str) -> tuple[str, ...]:
        """The legal actions; where any text is one, what was done and what a random policy would do."""
        return self.world.actions() or (taken, *islice(self.world.proposals(self.world.state), MOST_PROPOSALS))

    def _real_forks(self, episode: Episode) -> list[list[Branch]]:
        """The world walks along the episode once and looks to the side at each step."""
        self._begin(episode)
        found: list[list[Branch]] = []
        for step in episode.transitions:
            found.append([Branch(action, self._really(self.world, action)) for action in self._to_try(step.action)])
            self.world.step(step.action)
        return found

    def fork(self, episode: Episode, step: int, actions: Sequence[str]) -> Branch:
        """What comes of the last of these actions, the others being done first, from this step on."""
        here = self._standing(episode, step, actions[:-1])
        branch = Branch(actions[-1], self._really(here, actions[-1]))
        if self.imagination is None:
            return branch
        history, seen = tuple(episode.transitions[:step]), _seen_at(episode, step)
        for action in actions[:-1]:  # imagination goes on with what it finds likeliest
            ((belief, _),) = self.imagination.assessor.assess([self._ask(seen, action, history, here.instruction)])
            if not belief.predictions or belief.predictions[0].terminated:
                return replace(branch, risk=1.0, trust="imagination ended before this action")
            said = belief.predictions[0]
            done = Transition(observation=seen, action=action, next_observation=said.observation, reward=said.reward)
            history, seen = (*history, done), said.observation
        ((belief, risk),) = self.imagination.assessor.assess([self._ask(seen, actions[-1], history, here.instruction)])
        return self._imagined(branch, belief, risk, depth=len(actions))

    def _imagined(self, branch: Branch, belief: Belief, risk: float, *, depth: int) -> Branch:
        assert self.imagination is not None
        return replace(
            branch, imagined=belief.predictions, risk=risk, trust=self.imagination.verdict(risk, depth).value
        )

    def _standing(self, episode: Episode, step: int, actions: Sequence[str]) -> World:
        """The real world before this step, and after these actions."""
        self._begin(episode)
        for action in (*(done.action for done in episode.transitions[:step]), *actions):
            _, _, terminated, truncated, _ = self.world.step(action)
            if terminated or truncated:
                raise EndedError(f"the episode is over after {action}")
        return self.world

    def _really(self, world: World, action: str) -> tuple[Prediction, ...]:
        if isinstance(world, StateWorld):
            show: Any = world.view.show
            return tuple(
                certain(show(result.state), result.reward, result.terminated, result.success, result.probability)
                for result in world.truth(world.state, action)
            )
        seen, reward, terminated, _, info = world.fork().step(action)
        return (certain(seen, float(reward), terminated, bool(info["success"])),)


class EndedError(ValueError):
    """An action after the end of an episode."""


def _seen_at(episode: Episode, step: int) -> Observation:
    return episode.transitions[step].observation if step < len(episode.transitions) else episode.first
