"""`terrella check`: test the properties that every world must have, in seconds, without a model.

Each property is a function in `world_properties.py` or `verifier_properties.py`. It returns a line
of detail, or raises `PropertyError` with what it observed.
    results = check_world(FrozenLake.Config())
    all(result.passed for result in results)
"""

from terrella.commands.check.runner import CHECKS, CheckResult, CheckStatus, check_world
from terrella.commands.check.subject import PropertyError, Subject
from terrella.commands.check.world_properties import instances_of

__all__ = [
    "CHECKS",
    "CheckResult",
    "CheckStatus",
    "PropertyError",
    "Subject",
    "check_world",
    "instances_of",
]
