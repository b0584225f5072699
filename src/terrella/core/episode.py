"""The one loop that steps a world. Everything that ever plays an episode goes through `EpisodeRun`.

`play` drives it with a policy, `play_async` with one that waits; the token-level driver of an engine
advances it turn by turn. A world or a policy that breaks ends the episode *masked*, with its name.
    episode = play(world, policy, seed=0); episode.success
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from terrella.core.instances import POLICY_STREAM, stream
from terrella.core.protocols import AsyncPolicy, Policy
from terrella.core.types import Episode, Moment, Situation, Split, Status, Stop, Text, Transition, Verdict
from terrella.core.world import World

T = TypeVar("T")


class EpisodeRun:
    """An episode being played: ask for the `moment`, `advance` with an action, read the `episode` at the end."""

    def __init__(
        self, world: World, *, seed: int, noise_seed: int = 0, split: Split | None = None, policy: str = ""
    ) -> None:
        """Reset the world; `policy` is the name that the record will carry."""
        self.world, self.policy = world, policy
        self.rng = stream(POLICY_STREAM, seed, noise_seed)
        options = {"split": split or world.config.split, "noise_seed": noise_seed}
        self.first, _ = world.reset(seed=seed, options=options)
        self.identity = {"instance": world.instance, "split": world.split, "seed": seed, "noise_seed": noise_seed}
        self.observation, self.instruction = self.first, world.instruction
        self.transitions: list[Transition] = []
        self.stop: Stop | None = None
        self.error = ""

    @property
    def over(self) -> bool:
        """True when there is nothing left to do."""
        return self.stop is not None

    @property
    def situation(self) -> Situation:
        """Where the episode stands, for a model."""
        left = self.world.config.max_steps - len(self.transitions)
        return Situation(
            instruction=self.instruction, observation=self.observation, actions=self.world.actions(),
            history=self.transitions, steps_left=left,
        )  # fmt: skip

    @property
    def moment(self) -> Moment:
        """What a policy is asked now."""
        world, left = self.world, self.world.config.max_steps - len(self.transitions)
        return Moment(
            instruction=self.instruction, observation=self.observation, actions=world.actions(),
            history=self.transitions, steps_left=left, rng=self.rng,
            proposals=lambda: world.proposals(world.state),
            expert=lambda: world.expert(world.state, left, self.rng),
        )  # fmt: skip

    def advance(self, action: str) -> Transition:
        """Carry out one action and record it."""
        after, reward, terminated, truncated, info = self.world.step(action)
        if self.over:  # ended from outside while the world was still thinking: what came too late is not recorded
            raise ValueError("the episode was ended during this step")
        step = Transition(
            observation=self.observation, action=action, next_observation=after, reward=reward,
            terminated=terminated, truncated=truncated, info=info,
        )  # fmt: skip
        self.transitions.append(step)
        self.observation = after
        if terminated or truncated:
            self.stop = Stop.TERMINATED if terminated else Stop.OUT_OF_STEPS
        return step

    def end(self, stop: Stop, error: str = "") -> None:
        """End it from outside: tokens ran out, the reply had no action, something broke."""
        self.stop, self.error = stop, error

    @property
    def episode(self) -> Episode:
        """The finished record. A broken episode is masked, whatever it had earned."""
        if self.stop is None:
            raise ValueError("the episode is still running")
        outcome = self._outcome(self.stop)  # first: a world that cannot tell breaks the episode here
        return Episode(
            world=self.world.name, policy=self.policy, first=self.first, transitions=tuple(self.transitions),
            stop=self.stop, outcome=outcome, error=self.error, **self.identity,  # type: ignore[arg-type]
        )  # fmt: skip

    def _outcome(self, stop: Stop) -> Verdict:
        if not stop.is_broken:
            verdict = _guarded(self, Stop.WORLD_ERROR, self.world.name, lambda: self.world.outcome(self.transitions))
            if verdict is not None:
                return verdict
        status = Status.TIMEOUT if stop is Stop.WORLD_TIMEOUT else Status.ERROR
        return Verdict.failed(status, self.error)


def play(world: World, policy: Policy, *, seed: int, noise_seed: int = 0, split: Split | None = None) -> Episode:
    """Play one episode to its end. Whatever breaks, the episode comes back masked, with the culprit named."""
    try:
        run = EpisodeRun(world, seed=seed, noise_seed=noise_seed, split=split, policy=policy.name)
        while not run.over:
            moment = _guarded(run, Stop.WORLD_ERROR, world.name, lambda: run.moment)
            if moment is None:
                break
            action = _guarded(run, Stop.POLICY_ERROR, policy.name, partial(policy.act, moment))
            if action is not None:
                _guarded(run, Stop.WORLD_ERROR, world.name, partial(run.advance, action))
        return run.episode
    except Exception as error:  # noqa: BLE001  reset: there is no run to end, but there is a culprit
        return broken_episode(world, policy.name, error, seed=seed, noise_seed=noise_seed, split=split)


def broken_episode(
    world: World, policy: str, error: Exception, *, seed: int, noise_seed: int, split: Split | None
) -> Episode:
    """The masked record of an episode whose world could not even be reset."""
    what = f"{world.name} raised {type(error).__name__}: {error}"
    return Episode(
        world=world.name, policy=policy, instance="", split=split or world.config.split, seed=seed,
        noise_seed=noise_seed, first=Text(""), transitions=(), stop=Stop.WORLD_ERROR, error=what,
        outcome=Verdict.failed(Status.ERROR, what),
    )  # fmt: skip


def _guarded(run: EpisodeRun, stop: Stop, name: str, call: Callable[[], T]) -> T | None:
    """The result of a call, or None with the episode ended and the culprit named."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  whatever breaks, the episode must end masked and named
        run.end(stop, f"{name} raised {type(error).__name__}: {error}")
        return None


async def play_async(
    world: World, policy: AsyncPolicy, *, seed: int, noise_seed: int = 0, split: Split | None = None,
    world_timeout: float = 60.0, executor: Executor | None = None,
) -> Episode:  # fmt: skip
    """Play one episode while others go on. The world steps in a thread; one that hangs is left behind, masked."""
    loop = asyncio.get_running_loop()
    begin = partial(EpisodeRun, world, seed=seed, noise_seed=noise_seed, split=split, policy=policy.name)
    try:  # a slow reset, too, must not hold up the other episodes
        run = await asyncio.wait_for(loop.run_in_executor(executor, begin), world_timeout)
    except Exception as error:  # noqa: BLE001  as in `play`
        return broken_episode(world, policy.name, error, seed=seed, noise_seed=noise_seed, split=split)
    while not run.over:
        moment = _guarded(run, Stop.WORLD_ERROR, world.name, lambda: run.moment)
        if moment is None:
            break
        try:
            action = await policy.act(moment)
        except Exception as error:  # noqa: BLE001  as in `_guarded`
            run.end(Stop.POLICY_ERROR, f"{policy.name} raised {type(error).__name__}: {error}")
            break
        stepping = loop.run_in_executor(executor, run.advance, action)
        try:
            await asyncio.wait_for(stepping, world_timeout)
        except TimeoutError:
            run.end(Stop.WORLD_TIMEOUT, f"{world.name} did not answer within {world_timeout:g} s")
        except Exception as error:  # noqa: BLE001  as in `_guarded`
            run.end(Stop.WORLD_ERROR, f"{world.name} raised {type(error).__name__}: {error}")
    return run.episode
