"""A pixel policy that improves by its own successes: filtered behaviour cloning, in rounds.

It plays with noise in its actions, keeps the episodes that succeed, and imitates what it did in
them. In the world that `imagined_video_world` makes, success is what a classifier sees, and no real
step is taken; in the simulator the same practice takes a real step each time.
    practice = PixelPractice(PixelPractice.Config(rounds=4))
    practised = practice.run(net, lambda: imagined_video_world(config, model), seed=0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from terrella.core.bounds import check_above_zero, check_least
from terrella.core.config import Configurable
from terrella.core.types import Split
from terrella.core.world import World
from terrella.evals.policy_eval import PolicyResult, evaluate_policy
from terrella.evals.video_success import PixelExample, recorded_example
from terrella.policies.pixels import Pixels

if TYPE_CHECKING:
    from terrella.models.pixel_nets import PixelNet

FIRST_SEED = 30_000_000
SEEDS = 100_000
"""Seeds per run, so that its instances are not those of the recordings or of other runs."""


@dataclass(frozen=True, kw_only=True)
class PracticeRound:
    """What one round of practice took and gave."""

    steps: int
    """Real or imagined, as the world was."""
    successes: int
    episodes: int
    unreadable: int
    """Episodes that ended where the model said nothing."""


@dataclass(frozen=True)
class Practised:
    """The policy after practice, and its rounds."""

    net: PixelNet
    rounds: tuple[PracticeRound, ...]

    @property
    def steps(self) -> int:
        """Steps of all rounds."""
        return sum(each.steps for each in self.rounds)


class PixelPractice(Configurable):
    """Practice of a policy on frames in a world, real or imagined."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        rounds: int = 4
        episodes: int = 48
        """Episodes of each round, on training instances."""
        noise: float = 0.4
        """Standard deviation of what is added to each number of an action."""
        updates: int = 150
        """After each round, towards the actions of all successful episodes so far."""

        def __post_init__(self) -> None:
            """Refuse practice without an episode, or without anything new."""
            check_least(self, rounds=1, episodes=1, updates=1)
            check_above_zero(self, "noise")

    config: Config

    def run(self, net: PixelNet, make_world: Callable[[], World], *, seed: int) -> Practised:
        """Practise, and return a new network; `net` stays as it is."""
        kept: list[PixelExample] = []
        rounds = []
        for number in range(self.config.rounds):
            played = self._play(net, make_world, seed, number)
            won = [episode for episode in played.episodes if episode.success]
            kept += map(recorded_example, won)
            rounds.append(_row(played, len(won)))
            if kept:
                net = self._imitate(net, kept, seed * self.config.rounds + number)
        return Practised(net, tuple(rounds))

    def _play(
        self, net: PixelNet, make_world: Callable[[], World], seed: int, number: int
    ) -> PolicyResult:
        config = self.config
        policy = Pixels(net.read, f"practice {number}", noise=config.noise)
        first = FIRST_SEED + seed * SEEDS + number * config.episodes
        seeds = range(first, first + config.episodes)
        return evaluate_policy(
            make_world, policy, seeds=seeds, split=Split.TRAIN, num_envs=config.episodes
        )

    def _imitate(self, net: PixelNet, kept: Sequence[PixelExample], seed: int) -> PixelNet:
        from terrella.engines.frames.pixel_trainer import refine

        return refine(
            net,
            np.concatenate([example.video[:-1] for example in kept]),
            np.concatenate([example.actions for example in kept]),
            updates=self.config.updates,
            seed=seed,
        )


def _row(played: PolicyResult, won: int) -> PracticeRound:
    last = [episode.transitions[-1] for episode in played.episodes]
    return PracticeRound(
        steps=played.steps,
        successes=won,
        episodes=len(last),
        unreadable=sum(bool(step.info.get("unreadable")) for step in last),
    )
