"""The world under test, with the episodes that several properties look at.

Episodes are played once, when a property first asks for them.
    subject = Subject(FrozenLake.Config())
    require(bool(subject.transitions), "the world has no steps")
"""

from __future__ import annotations

import functools

from terrella.core.episode import play
from terrella.core.types import Episode, Transition
from terrella.core.world import World
from terrella.policies.basic import Mixture, Random

EPISODES = 24


class PropertyError(AssertionError):
    """A property does not hold; the message says where."""


class NotApplicableError(Exception):
    """A property that this world cannot have; the message says why."""


def require(condition: bool, message: str) -> None:
    """Raise `PropertyError` unless the condition holds; unlike `assert`, also under `python -O`."""
    if not condition:
        raise PropertyError(message)


class Subject:
    """A world under test."""

    def __init__(self, config: World.Config) -> None:
        """Build the world once; properties that need a fresh one build their own."""
        self.config = config
        self.world: World = config.build()

    @functools.cached_property
    def views(self) -> list[Subject]:
        """The same world once per view, its configured view first."""
        others = [name for name in self.world.view_names if name != self.config.view]
        return [self, *(Subject(self.config.replace(view=name)) for name in others)]

    def leave(self) -> None:
        """End what a property left unfinished: the next one may build a world of its own."""
        for each in self.__dict__.get("views", [self]):  # those that were built
            each.world.leave()

    @functools.cached_property
    def episodes(self) -> list[Episode]:
        """Random play on train instances, mixed with the expert's where the world has one.

        The expert is there to reach the end of episodes.
        """
        random = Random.Config().build()
        mixed = Mixture.Config(share=0.2).build() if self.world.has_expert else random
        episodes = []
        for seed in range(EPISODES):
            policy = mixed if seed % 2 else random
            episodes.append(play(self.world, policy, seed=seed, noise_seed=seed))
        for episode in episodes:
            require(not episode.stop.is_broken, f"seed {episode.seed}: {episode.error}")
        return episodes

    @functools.cached_property
    def transitions(self) -> list[Transition]:
        """All steps of the episodes."""
        steps = [step for episode in self.episodes for step in episode.transitions]
        require(any(step.changed for step in steps), "no action ever changes the observation")
        return steps
