"""Baselines that need no model: uniform random, expert, and "nothing changes".

The value of the random policy is computed exactly by dynamic programming where the state space
allows it, and is always measured by playing as well.
    report = baselines(world, split=Split.TEST, instances=200)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from terrella.core.episode import play
from terrella.core.errors import EngineError
from terrella.core.protocols import Policy
from terrella.core.solve import StateSpaceTooLargeError
from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Split
from terrella.core.world import StateWorld, World
from terrella.policies.basic import Expert, Random
from terrella.rollout.tasks import distinct_instances

logger = logging.getLogger("terrella")


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Success of the policies that need no model, on the same instances."""

    instances: int
    random_exact: float | None
    """None where the state space is too large for exact values."""
    random_played: float
    random_interval: tuple[float, float]
    """95% interval of `random_played`."""
    expert_played: float | None
    """None in a world without an expert."""
    expert_interval: tuple[float, float] | None
    steps: int = 0
    """Steps that were taken in the world."""
    masked: int = 0
    """Episodes without a verdict; they are in no mean."""

    def __str__(self) -> str:
        """For a person: what a model must beat, and what can be reached."""
        low, high = self.random_interval
        told = f"on {self.instances} instances, random play wins {self.random_played:.2f} "
        told += f"[{low:.2f}, {high:.2f}]"
        if self.random_exact is not None:
            told += f" (exactly {self.random_exact:.3f})"
        if self.expert_played is None:
            return told
        return f"{told}, the expert {self.expert_played:.2f}"


def baselines(
    world: World,
    *,
    split: Split,
    instances: int,
    seed: int = 0,
    plays: int = 4,
    max_steps: int | None = None,
) -> Baselines:
    """Success of the random and the expert policy over `instances` seeds of a split.

    Of seeds that draw the same instance only the first is played. `max_steps` ends episodes before
    the world's own limit does, as a model's turns may.
    """
    seeds = distinct_instances(world, range(seed, seed + instances), split)
    instances = len(seeds)

    def played(policy: Policy) -> list[list[Episode]]:
        return [_play(world, policy, seed, split, plays, max_steps) for seed in seeds]

    random_play = played(Random.Config().build())
    expert_play = played(Expert.Config().build()) if world.has_expert else []
    masked = [e for each in (*random_play, *expert_play) for e in each if e.outcome.value is None]
    if masked:
        logger.warning(
            "%s: %d episodes of the baselines are masked, the first with seed %d: %s",
            masked[0].world,
            len(masked),
            masked[0].seed,
            masked[0].error or masked[0].outcome.status.value,
        )
    random_values, expert_values = _instance_means(random_play), _instance_means(expert_play)
    if not random_values:
        raise EngineError(
            masked[0].world if masked else world.name,
            "no episode of random play has a verdict",
            "see the warning above: the world or its judge fails in each of them",
        )
    return Baselines(
        instances=instances,
        random_exact=exact_random(world, seeds, split, max_steps),
        random_played=sum(random_values) / len(random_values),
        random_interval=mean_interval(random_values),
        expert_played=sum(expert_values) / len(expert_values) if expert_values else None,
        expert_interval=mean_interval(expert_values) if expert_values else None,
        steps=sum(
            len(episode.transitions) for each in (*random_play, *expert_play) for episode in each
        ),
        masked=len(masked),
    )


def to_beat(baselines: Mapping[str, float | None]) -> dict[str, float]:
    """What the reward must beat, for the display: random play, or predicting no change."""
    known = {name: value for name, value in baselines.items() if value is not None}
    random = known.get("random_exact", known.get("random"))
    if random is not None:
        return {"random": random}
    exact = {name.replace("_exact", ""): known[name] for name in known if "random_exact/" in name}
    played = {name: value for name, value in known.items() if name.startswith("random/")}
    return played | exact or {name.replace("_", " "): value for name, value in known.items()}


def _play(
    world: World, policy: Policy, seed: int, split: Split, plays: int, max_steps: int | None
) -> list[Episode]:
    """Play an instance several times, each time with other noise."""
    return [
        play(world, policy, seed=seed, noise_seed=k, split=split, max_steps=max_steps)
        for k in range(plays)
    ]


def _instance_means(instances: Iterable[Sequence[Episode]]) -> list[float]:
    """Mean success per instance: intervals are over instances, not episodes.

    Masked episodes have no value; an instance of which all are masked is left out.
    """
    verdicts = (
        [value for episode in each if (value := episode.outcome.value) is not None]
        for each in instances
    )
    return [sum(values) / len(values) for values in verdicts if values]


def exact_random(
    world: World, seeds: Iterable[int], split: Split, max_steps: int | None = None
) -> float | None:
    """Mean exact success of the uniform random policy, or None where it cannot be computed."""
    if not isinstance(world, StateWorld):
        return None
    steps = min(world.config.max_steps, max_steps or world.config.max_steps)
    values = []
    for seed in seeds:
        world.reset(seed=seed, options={"split": split})
        try:
            values.append(world.solver.random_value(world.state, steps))
        except StateSpaceTooLargeError:
            return None
        except Exception as error:  # noqa: BLE001  as in an episode: what it raises is its own
            logger.warning("%s has no exact value of random play: %r", world.name, error)
            return None
        world.solver.clear()
    return sum(values) / len(values)
