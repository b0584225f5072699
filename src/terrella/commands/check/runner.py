"""Run all properties on one world and report the results.

All checks run, also after one has failed.
    for result in check_world(FrozenLake.Config()): print(result.name, result.passed)
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

from terrella.commands.check import verifier_properties as verifier
from terrella.commands.check import world_properties as world
from terrella.commands.check.subject import NotApplicableError, PropertyError, Subject
from terrella.core.errors import TerrellaError, WorldError
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


class CheckStatus(enum.StrEnum):
    """What became of a check."""

    OK = "ok"
    BROKEN = "BROKEN"
    NOT_APPLICABLE = "n/a"
    """Nothing was tested: the world has no such thing."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one property of one world."""

    world: str
    name: str
    status: CheckStatus
    detail: str
    seconds: float

    @property
    def passed(self) -> bool:
        """False if the property is broken; one that does not apply is not."""
        return self.status is not CheckStatus.BROKEN


def check_world(config: World.Config, label: str = "") -> list[CheckResult]:
    """Run every check; one that raises has failed, with the exception as its detail."""
    label = label or config.owner.__name__
    try:
        subject = Subject(config)
    except TerrellaError:
        raise
    except Exception as error:  # the world may be the user's: it may raise anything
        raise WorldError(
            label, f"cannot be built: {type(error).__name__}: {error}", "mend the world"
        ) from error
    return [_run(check, subject, label) for check in CHECKS]


def _run(check: Check, subject: Subject, label: str) -> CheckResult:
    began = time.perf_counter()
    status = CheckStatus.BROKEN
    try:
        detail = check(subject)
        status = CheckStatus.OK
    except NotApplicableError as error:
        detail, status = str(error), CheckStatus.NOT_APPLICABLE
    except PropertyError as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001  a world may fail in any way; the table must name it
        detail = f"{type(error).__name__}: {error}"
    subject.leave()
    return CheckResult(
        world=label,
        name=check.__name__,
        status=status,
        detail=detail,
        seconds=time.perf_counter() - began,
    )
