"""Run all properties on one world and report the results.

All checks run, also after one has failed.
    for result in check_world(FrozenLake.Config()): print(result.name, result.passed)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from terrella.commands.check import verifier_properties as verifier
from terrella.commands.check import world_properties as world
from terrella.commands.check.subject import PropertyError, Subject
from terrella.core.world import World

Check = Callable[[Subject], str]

CHECKS: tuple[Check, ...] = (
    world.config_survives_disk,
    world.is_a_gymnasium_env,
    world.same_seed_same_episode,
    world.leaves_global_rngs_alone,
    world.noise_is_not_the_instance,
    world.truth_is_pure,
    world.views_round_trip,
    verifier.truth_scores_one,
    verifier.corrupted_truth_scores_less,
    verifier.battery_wins_nothing,
    world.splits_are_disjoint,
    world.nonsense_is_harmless,
    world.fork_is_independent,
    world.random_value_is_exact,
    world.expert_beats_random,
)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one property of one world."""

    world: str
    name: str
    passed: bool
    detail: str
    seconds: float


def check_world(config: World.Config, label: str = "") -> list[CheckResult]:
    """Run every check; one that raises has failed, with the exception as its detail."""
    label = label or config.owner.__name__
    subject = Subject(config)
    return [_run(check, subject, label) for check in CHECKS]


def _run(check: Check, subject: Subject, label: str) -> CheckResult:
    began = time.perf_counter()
    passed = False
    try:
        detail = check(subject)
        passed = True
    except PropertyError as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001  a world may fail in any way; the table must name it
        detail = f"{type(error).__name__}: {error}"
    return CheckResult(
        world=label,
        name=check.__name__,
        passed=passed,
        detail=detail,
        seconds=time.perf_counter() - began,
    )
