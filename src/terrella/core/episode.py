"""The one loop that steps a world: everything that plays an episode uses `EpisodeRun`.

`play` drives it with a policy, a `Rollout` with a model, turn by turn. If the world or the policy
fails, the episode ends masked, and the error names the culprit.
    episode = play(world, policy, seed=0); episode.success
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from terrella.core.protocols import Policy, TurnPolicy
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.step_values import check_step
from terrella.core.types import (
    Episode,
    Moment,
    Situation,
    Split,
    Status,
    Stop,
    Text,
    Transition,
    Verdict,
)
from terrella.core.world import World

T = TypeVar("T")


class EpisodeRun:
    """A running episode: read `moment`, `advance` with an action, read `episode` at the end."""

    def __init__(
        self,
        world: World,
        *,
        seed: int,
        noise_seed: int = 0,
        split: Split | None = None,
        policy: str = "",
        written: str = "",
    ) -> None:
        """Reset the world. `policy` is the name in the record, `written` a task for practice."""
        self.world, self.policy = world, policy
        self.rng = stream(POLICY_STREAM, seed, noise_seed)
        options: dict[str, Any] = {
            "split": split or world.config.split,
            "noise_seed": noise_seed,
        }
        if written:
            options["written"] = written
        self.first, _ = world.reset(seed=seed, options=options)
        self.identity = {
            "instance": world.instance,
            "split": world.split,
            "seed": seed,
            "noise_seed": noise_seed,
        }
        self.observation, self.instruction = self.first, world.instruction
        self.transitions: list[Transition] = []
        self.stop: Stop | None = None
        self.error = ""

    @property
    def over(self) -> bool:
        return self.stop is not None

    @property
    def situation(self) -> Situation:
        left = self.world.config.max_steps - len(self.transitions)
        return Situation(
            instruction=self.instruction,
            observation=self.observation,
            actions=self.world.actions(),
            history=self.transitions,
            steps_left=left,
        )

    @property
    def moment(self) -> Moment:
        world, left = self.world, self.world.config.max_steps - len(self.transitions)
        return Moment(
            instruction=self.instruction,
            observation=self.observation,
            actions=world.actions(),
            history=self.transitions,
            steps_left=left,
            rng=self.rng,
            proposals=lambda: world.proposals(world.state),
            expert=lambda: world.expert(world.state, left, self.rng),
        )

    def advance(self, action: str) -> Transition:
        """Carry out one action and record it. A reward that is no finite number is an error."""
        after, reward, terminated, truncated, info = self.world.step(action)
        check_step(self.world.name, reward, terminated, truncated)
        # The episode was ended while the world was still stepping: this step is not recorded.
        if self.over:
            raise ValueError("the episode was ended during this step")
        step = Transition(
            observation=self.observation,
            action=action,
            next_observation=after,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )
        self.transitions.append(step)
        self.observation = after
        if terminated or truncated:
            self.stop = Stop.TERMINATED if terminated else Stop.OUT_OF_STEPS
        return step

    def end(self, stop: Stop, error: str = "") -> None:
        """End the episode from outside: out of tokens, no action in the reply, an error."""
        self.stop, self.error = stop, error
        self.world.leave()

    @property
    def episode(self) -> Episode:
        """The finished record. A broken episode is masked."""
        if self.stop is None:
            raise ValueError("the episode is still running")
        outcome = self._outcome(self.stop)  # before the rest: it may end the episode as broken
        return Episode(
            world=self.world.name,
            policy=self.policy,
            first=self.first,
            transitions=tuple(self.transitions),
            stop=self.stop,
            outcome=outcome,
            error=self.error,
            **self.identity,  # type: ignore[arg-type]
        )

    def _outcome(self, stop: Stop) -> Verdict:
        if not stop.is_broken:
            verdict = _guarded(
                self,
                Stop.WORLD_ERROR,
                self.world.name,
                lambda: self.world.outcome(self.transitions),
            )
            if verdict is not None:
                return verdict
        # `stop` is the one asked for; a world that cannot judge has ended the episode as broken.
        return Verdict.failed((self.stop or stop).status, self.error)


def play(
    world: World,
    policy: Policy,
    *,
    seed: int,
    noise_seed: int = 0,
    split: Split | None = None,
    max_steps: int | None = None,
) -> Episode:
    """Play one episode. If something fails, the episode is masked and names the culprit.

    `max_steps` ends it before the world's own limit, which the policy still sees.
    """
    try:
        run = EpisodeRun(world, seed=seed, noise_seed=noise_seed, split=split, policy=policy.name)
        while not run.over:
            moment = _guarded(run, Stop.WORLD_ERROR, world.name, lambda: run.moment)
            if moment is None:
                break
            actions = _guarded(run, Stop.POLICY_ERROR, policy.name, partial(_turn, policy, moment))
            for action in actions or ():
                if not run.over:
                    _guarded(run, Stop.WORLD_ERROR, world.name, partial(run.advance, action))
                if not run.over and len(run.transitions) == max_steps:
                    run.end(Stop.OUT_OF_STEPS)
        return run.episode
    except Exception as error:  # noqa: BLE001  reset failed: there is no run to end
        return broken_episode(
            world, policy.name, error, seed=seed, noise_seed=noise_seed, split=split
        )


def _turn(policy: Policy, moment: Moment) -> tuple[str, ...]:
    """The next actions; a turn without one costs an invalid step, or the episode would not end."""
    if isinstance(policy, TurnPolicy):
        return policy.act_turn(moment) or ("",)
    return (policy.act(moment),)


def broken_episode(
    world: World, policy: str, error: Exception, *, seed: int, noise_seed: int, split: Split | None
) -> Episode:
    """The masked record of an episode whose world could not be reset."""
    what = f"{world.name} raised {type(error).__name__}: {error}"
    return Episode(
        world=world.name,
        policy=policy,
        instance="",
        split=split or world.config.split,
        seed=seed,
        noise_seed=noise_seed,
        first=Text(""),
        transitions=(),
        stop=Stop.WORLD_ERROR,
        error=what,
        outcome=Verdict.failed(Status.ENV_ERROR, what),
    )


def _guarded(run: EpisodeRun, stop: Stop, name: str, call: Callable[[], T]) -> T | None:
    """The result of a call; on an exception None, and the episode is ended."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  any failure must end the episode, masked
        run.end(stop, f"{name} raised {type(error).__name__}: {error}")
        return None
