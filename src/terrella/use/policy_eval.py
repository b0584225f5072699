"""Policies played in a world or in its imagined twin, on the same instances with the same random numbers.

Many episodes go on side by side: an imagined world's next steps are asked of the model together.
    evaluate_policy(lambda: imagine(config, folder), policy, seeds=range(100), split=Split.TEST).returns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Policy
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.use.imagine import ImaginedWorld


@dataclass(frozen=True)
class Played:
    """What a policy earned, instance by instance."""

    episodes: tuple[Episode, ...]

    @property
    def returns(self) -> list[float]:
        """Return of each episode."""
        return [episode.total_reward for episode in self.episodes]

    @property
    def successes(self) -> list[float]:
        """Success of each episode."""
        return [float(episode.success) for episode in self.episodes]

    @property
    def steps(self) -> int:
        """Steps taken, real or imagined."""
        return sum(len(episode.transitions) for episode in self.episodes)


def evaluate_policy(
    make: Callable[[], World], policy: Policy, *, seeds: Sequence[int], split: Split, side_by_side: int = 64
) -> Played:
    """One episode per seed; `make` builds as many worlds as play side by side."""
    worlds = [make() for _ in range(min(side_by_side, len(seeds)))]
    episodes: list[Episode] = []
    for start in range(0, len(seeds), len(worlds)):
        episodes += play_together(worlds, policy, seeds[start : start + len(worlds)], split)
    return Played(tuple(episodes))


def play_together(worlds: Sequence[World], policy: Policy, seeds: Sequence[int], split: Split) -> list[Episode]:
    """One episode in each world, step by step side by side."""
    runs = [
        EpisodeRun(world, seed=seed, split=split, policy=policy.name)
        for world, seed in zip(worlds, seeds, strict=False)
    ]
    while any(not run.over for run in runs):
        going = [run for run in runs if not run.over]
        actions = [policy.act(run.moment) for run in going]
        ask_together([run.world for run in going], actions)
        for run, action in zip(going, actions, strict=True):
            run.advance(action)
    return [run.episode for run in runs]


def ask_together(worlds: Sequence[World], actions: Sequence[str]) -> None:
    """Let a model answer all next steps at once: each world then finds its answer kept."""
    imagined = [(w, a) for w, a in zip(worlds, actions, strict=True) if isinstance(w, ImaginedWorld)]
    if imagined:
        imagined[0][0].imagination.assessor.model.believe([world.question(action) for world, action in imagined])
