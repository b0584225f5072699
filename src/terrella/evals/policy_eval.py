"""Evaluates a policy in a world or its imagined counterpart, on the same instances and noise.

Many episodes run in lockstep, so that an imagined world predicts their next steps as one batch.
    make_world = lambda: imagine(config, folder)
    evaluate_policy(make_world, policy, seeds=range(100), split=Split.TEST).returns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Policy
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.world_models.imagine import play_in_lockstep


@dataclass(frozen=True)
class PolicyResult:
    """The episodes of a policy, one per instance."""

    episodes: tuple[Episode, ...]
    instructions: tuple[str, ...]
    """What each episode was told."""

    @property
    def returns(self) -> list[float]:
        """Undiscounted return of each episode."""
        return [episode.total_reward for episode in self.episodes]

    @property
    def successes(self) -> list[float]:
        """1.0 for each successful episode, else 0.0."""
        return [float(episode.success) for episode in self.episodes]

    @property
    def steps(self) -> int:
        """Total number of env steps, real or imagined."""
        return sum(len(episode.transitions) for episode in self.episodes)


def evaluate_policy(
    make_world: Callable[[], World],
    policy: Policy,
    *,
    seeds: Sequence[int],
    split: Split,
    num_envs: int = 64,
) -> PolicyResult:
    """Play one episode per seed, in up to `num_envs` worlds at a time.

    An error of the world or the policy is raised: no episode is left out or cut short.
    """
    worlds = [make_world() for _ in range(min(num_envs, len(seeds)))]
    runs: list[EpisodeRun] = []
    for start in range(0, len(seeds), len(worlds)):
        runs += _play_batch(worlds, policy, seeds[start : start + len(worlds)], split)
    return PolicyResult(tuple(run.episode for run in runs), tuple(run.instruction for run in runs))


def _play_batch(
    worlds: Sequence[World], policy: Policy, seeds: Sequence[int], split: Split
) -> list[EpisodeRun]:
    """Play one episode in each world, in lockstep."""
    runs = [
        EpisodeRun(world, seed=seed, split=split, policy=policy.name)
        for world, seed in zip(worlds, seeds, strict=False)
    ]
    play_in_lockstep([(run, run.advance) for run in runs], policy)
    return runs
