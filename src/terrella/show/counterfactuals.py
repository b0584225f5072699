"""Predictions of recorded steps, and the results of actions that were not taken.

Both real and imagined results are shown. A world with a readable state gives the exact distribution
of results; any other world is replayed to the step by its seed and the recorded actions. The model
is asked about many steps at once.
    analyzer = EpisodeAnalyzer(world_config, certified_model)
    analyzer.predict([episode])
    analyzer.fork(episode, step=3, actions=["Up"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from terrella.core.judge import judge
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Episode, Observation, Prediction, Situation, Transition, Verdict
from terrella.core.world import StateWorld, World
from terrella.trust.predictive import SAME_REWARD, certain
from terrella.world_models.certified import CertifiedModel

MAX_PROPOSALS = 8


@dataclass(frozen=True)
class StepPrediction:
    """The model's prediction of one recorded step, and its verdict.

    `prediction` is None if no sample could be read.
    """

    prediction: Prediction | None
    risk: float
    trust: str
    verdict: Verdict


@dataclass(frozen=True)
class CounterfactualBranch:
    """The results of an action that was not taken; `risk` is None without a model."""

    action: str
    real: tuple[Prediction, ...]
    imagined: tuple[Prediction, ...] = ()
    risk: float | None = None
    trust: str = ""


@runtime_checkable
class PagedWorld(Protocol):
    """A world whose observation can also be seen as a picture, such as a page in a browser."""

    def screenshot(self) -> bytes:
        """Return what is shown now as PNG."""
        ...


class EndedError(ValueError):
    """An action was tried after the end of an episode."""


class EpisodeAnalyzer:
    """Compares recorded episodes with a world and, if there is one, a model of it."""

    def __init__(self, config: World.Config, certified_model: CertifiedModel | None = None) -> None:
        """Build the world; it is moved from episode to episode."""
        self.world: World = config.build()
        self.certified_model = certified_model

    # --- recorded steps ---------------------------------------------------------------------------

    def predict(self, episodes: Sequence[Episode]) -> list[list[StepPrediction]]:
        """Predict every step of every episode, in one batch."""
        if self.certified_model is None:
            raise ValueError("predictions need a model; this analyzer has none")
        queries = []
        for episode in episodes:
            instruction = self._reset_to(episode)
            steps = episode.transitions
            queries += [self._step_query(steps, n, instruction) for n in range(len(steps))]
        assessed = iter(self.certified_model.assess(queries))
        return [
            [self._judge_step(step, *next(assessed)) for step in episode.transitions]
            for episode in episodes
        ]

    def _judge_step(
        self, step: Transition, distribution: PredictiveDistribution, risk: float
    ) -> StepPrediction:
        assert self.certified_model is not None
        trust = self.certified_model.verdict(risk, 1).value
        if not distribution.predictions:
            verdict = Verdict.unparsable("no sample could be read")
            return StepPrediction(None, risk, trust, verdict)
        prediction = distribution.predictions[0]
        verdict = judge(
            self.world.verifier,
            reply=prediction.observation,
            truth=step.next_observation,
            before=step.observation,
        )
        if verdict.value is not None:
            # Reward and termination are part of the prediction as well.
            same_reward = abs(prediction.reward - step.reward) <= SAME_REWARD
            same = float(same_reward and prediction.terminated == step.terminated)
            parts = {**verdict.parts, "outcome": same}
            verdict = replace(verdict, value=min(verdict.value, same), parts=parts)
        return StepPrediction(prediction, risk, trust, verdict)

    def _reset_to(self, episode: Episode) -> str:
        """Move the world to the beginning of an episode; return its instruction."""
        options = {"split": episode.split, "noise_seed": episode.noise_seed}
        self.world.reset(seed=episode.seed, options=options)
        return self.world.instruction

    def _step_query(
        self, steps: Sequence[Transition], index: int, instruction: str, action: str = ""
    ) -> Query:
        """Ask about a recorded step, or about another action in its place."""
        step = steps[index]
        return self._query(
            step.observation, action or step.action, tuple(steps[:index]), instruction
        )

    def _query(
        self,
        observation: Observation,
        action: str,
        history: tuple[Transition, ...],
        instruction: str,
    ) -> Query:
        situation = Situation(
            instruction=instruction,
            observation=observation,
            actions=(),
            history=history,
            steps_left=self.world.config.max_steps - len(history),
        )
        return Query(situation, action)

    # --- other actions ----------------------------------------------------------------------------

    def forks(self, episodes: Sequence[Episode]) -> list[list[list[CounterfactualBranch]]]:
        """Try every legal action at each step of each episode; the model is asked in one batch."""
        instructions = [self._reset_to(episode) for episode in episodes]
        forks = [self._real_forks(episode) for episode in episodes]
        if self.certified_model is None:
            return forks
        queries = [
            self._step_query(episode.transitions, index, instruction, branch.action)
            for episode, steps, instruction in zip(episodes, forks, instructions, strict=True)
            for index, branches in enumerate(steps)
            for branch in branches
        ]
        assessed = iter(self.certified_model.assess(queries))

        def imagine(branches: list[CounterfactualBranch]) -> list[CounterfactualBranch]:
            return [self._with_imagined(branch, *next(assessed), depth=1) for branch in branches]

        return [[imagine(branches) for branches in steps] for steps in forks]

    def action_names(self, episode: Episode) -> list[list[CounterfactualBranch]]:
        """Return the actions of each step without results: a live page asks for those."""
        self._reset_to(episode)
        steps: list[list[CounterfactualBranch]] = []
        for step in episode.transitions:
            actions = self._candidates(step.action)
            steps.append([CounterfactualBranch(action, ()) for action in actions])
            self.world.step(step.action)
        return steps

    def screenshots(self, episode: Episode) -> list[bytes]:
        """Replay an episode; return a picture of its beginning and one after each step.

        Empty for worlds without pictures. Ends where the replay shows something else than the
        record: a picture is never of another page than the tree beside it.
        """
        world = self.world
        if not isinstance(world, PagedWorld):
            return []
        self._reset_to(episode)
        pictures = [world.screenshot()]
        for step in episode.transitions:
            if self.world.step(step.action)[0] != step.next_observation:
                break
            pictures.append(world.screenshot())
        return pictures

    def _candidates(self, taken: str) -> tuple[str, ...]:
        """Return the legal actions.

        Where any text is legal: the recorded action and proposals of a random policy.
        """
        legal = self.world.actions()
        if legal:
            return legal
        return (taken, *islice(self.world.proposals(self.world.state), MAX_PROPOSALS))

    def _real_forks(self, episode: Episode) -> list[list[CounterfactualBranch]]:
        """Replay the episode once and try every action at each step."""
        self._reset_to(episode)
        steps: list[list[CounterfactualBranch]] = []
        for step in episode.transitions:
            branches = []
            for action in self._candidates(step.action):
                branches.append(CounterfactualBranch(action, self._real_results(action)))
            steps.append(branches)
            self.world.step(step.action)
        return steps

    def fork(self, episode: Episode, step: int, actions: Sequence[str]) -> CounterfactualBranch:
        """Take some actions from a step on, and return the results of the last of them."""
        self._replay(episode, step, actions[:-1])
        instruction = self.world.instruction
        branch = CounterfactualBranch(actions[-1], self._real_results(actions[-1]))
        if self.certified_model is None:
            return branch
        assess = self.certified_model.assess
        history = tuple(episode.transitions[:step])
        observation = _observation_at(episode, step)
        for action in actions[:-1]:  # the imagined branch follows the most likely result
            ((distribution, _),) = assess([self._query(observation, action, history, instruction)])
            if not distribution.predictions or distribution.predictions[0].terminated:
                return replace(branch, risk=1.0, trust="imagination ended before this action")
            prediction = distribution.predictions[0]
            imagined = Transition(
                observation=observation,
                action=action,
                next_observation=prediction.observation,
                reward=prediction.reward,
            )
            history = (*history, imagined)
            observation = prediction.observation
        query = self._query(observation, actions[-1], history, instruction)
        ((distribution, risk),) = assess([query])
        return self._with_imagined(branch, distribution, risk, depth=len(actions))

    def _with_imagined(
        self,
        branch: CounterfactualBranch,
        distribution: PredictiveDistribution,
        risk: float,
        *,
        depth: int,
    ) -> CounterfactualBranch:
        assert self.certified_model is not None
        trust = self.certified_model.verdict(risk, depth).value
        return replace(branch, imagined=distribution.predictions, risk=risk, trust=trust)

    def _replay(self, episode: Episode, step: int, actions: Sequence[str]) -> None:
        """Move the real world to a recorded step, and from there through some actions."""
        self._reset_to(episode)
        recorded = [transition.action for transition in episode.transitions[:step]]
        for action in (*recorded, *actions):
            _, _, terminated, truncated, _ = self.world.step(action)
            if terminated or truncated:
                raise EndedError(f"the episode is over after {action}")

    def _real_results(self, action: str) -> tuple[Prediction, ...]:
        """Return the results of an action from where the real world stands."""
        world = self.world
        if isinstance(world, StateWorld):
            show: Any = world.view.show
            return tuple(
                certain(
                    show(result.state),
                    result.reward,
                    result.terminated,
                    result.success,
                    result.probability,
                )
                for result in world.truth(world.state, action)
            )
        observation, reward, terminated, _, info = world.fork().step(action)
        return (certain(observation, float(reward), terminated, bool(info["success"])),)


def _observation_at(episode: Episode, step: int) -> Observation:
    if step < len(episode.transitions):
        return episode.transitions[step].observation
    return episode.transitions[-1].next_observation if episode.transitions else episode.first
