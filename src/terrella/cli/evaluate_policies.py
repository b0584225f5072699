"""`terrella evaluate POLICIES --in MODEL --against WORLD`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from terrella.cli.app import print_config, with_overrides
from terrella.core.config_override import override
from terrella.core.errors import ConfigError

LADDER = "ladder"
WORLD = "world."


def evaluate_policies(
    policies: str,
    models: Sequence[Path],
    names: Sequence[str],
    options: Mapping[str, Any],
    assignments: Sequence[str],
    *,
    dry_run: bool,
) -> None:
    """Compare policies in video models with the same in their worlds, task by task."""
    from terrella.pipelines.base import run_pipeline
    from terrella.pipelines.evaluate.policies import PolicyEvaluation
    from terrella.worlds import world_config

    usage = "terrella evaluate POLICIES --in MODEL --against WORLD"
    if not models or not names:
        missing = "--in" if not models else "--against"
        raise ConfigError("evaluate", f"{missing} is missing", usage)
    if policies != LADDER and not Path(policies).is_dir():
        remedy = f"name one, or `{LADDER}`: {usage}"
        raise ConfigError(policies, "is not a folder of policies", remedy)
    changes = [each.removeprefix(WORLD) for each in assignments if each.startswith(WORLD)]
    short = "-".join((models[0].resolve().name, *names)).replace(":", "-").replace("/", "-")
    config = PolicyEvaluation.Config(
        models=tuple(models),
        policies=None if policies == LADDER else Path(policies),
        worlds={name: override(world_config(name), changes) for name in names},
        instances=options["instances"],
        seed=options["seed"],
        out=options["out"] or Path("runs") / f"evaluate-policies-{short}",
    )
    config = with_overrides(config, [each for each in assignments if not each.startswith(WORLD)])
    if dry_run:
        print_config(config)
        return
    run_pipeline(config)
