"""The command that plays by planning: in a certified world model, or as a web agent in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tyro.conf import Positional

from terrella.cli.app import Assignments, app, print_config, with_overrides, world_of
from terrella.cli.endpoint import endpoint_config
from terrella.core.errors import ConfigError


@app.command(name="plan")
def plan(
    model: Positional[str],
    world: Positional[str | None] = None,
    /,
    *,
    proposer: str | None = None,
    value: str = "reward",
    proposer_name: str = "",
    value_name: str = "",
    key_variable: str = "OPENAI_API_KEY",
    out: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Play a world by planning in a model of it, beside policies that do not plan.

    With a page model, a web agent plays each instance without look-ahead and with one and two steps
    of it; the same command resumes after a kill.

    Args:
        model: the folder that `train-world-model` wrote; `real` plans web pages in a copy of the
            world, to see what a perfect model would gain.
        world: a world of yours or a preset; the world of the model unless given.
        proposer: pages only: the run or model that proposes actions, an endpoint's address, or
            random.
        value: pages only: reward (as the model predicts it), true (an oracle), a chat model, or an
            endpoint's address.
        proposer_name: the proposer's name at the endpoint.
        value_name: the name of the model that values pages, at the endpoint.
        key_variable: the environment variable with the endpoint's key; it may be unset.
        out: pages only: the folder; `runs/plan-MODEL` unless given.
        assignments: config overrides, such as planner.depth=8, planner.method=beam; for pages
            depths=[0,1], instances=100 or right_action=true.
        dry_run: print the resolved config and stop.
    """
    if _is_page_model(model):
        config: Any = _web_plan(
            model, world, proposer, value, proposer_name, value_name, key_variable, out
        )
        run: Any = _run_web
    else:
        from terrella.commands import plan as command
        from terrella.show.runs import require_world_model, warn_of_another_world

        folder = Path(model)
        require_world_model(folder)
        if proposer or value != "reward" or out:
            raise ConfigError(model, "is not a page model", "leave out --proposer, --value, --out")
        played = world_of(folder, world)
        warn_of_another_world(folder, played)
        config, run = command.Plan.Config(world=played, folder=folder), command.run
    config = with_overrides(config, assignments)
    print_config(config) if dry_run else run(config)


def _is_page_model(model: str) -> bool:
    from terrella.core.run_folder import read_manifest
    from terrella.pipelines.evaluate.models import run_of

    run = None if model == "real" else run_of(model)
    kind = str(read_manifest(run).config.get("class", "")) if run else ""
    return model == "real" or kind.endswith(":PageModel")


def _web_plan(
    model: str,
    world: str | None,
    proposer: str | None,
    value: str,
    proposer_name: str,
    value_name: str,
    key_variable: str,
    out: Path | None,
) -> Any:
    from terrella.pipelines.evaluate.models import run_of
    from terrella.pipelines.web.planning import WebPlan, planner_for
    from terrella.worlds import world_config

    if proposer is None:
        raise ConfigError(
            "plan", "who proposes actions?", "add --proposer: a run's folder, a model, an address"
        )
    run = run_of(model)
    if run is None and world is None:
        raise ConfigError("plan", "no world named", "terrella plan real miniwob --proposer ...")
    short = model.rstrip("/").rpartition("/")[2]
    return WebPlan.Config(
        world=world_of(run, world) if run else world_config(str(world)),
        page_model=model,
        proposer=proposer,
        value=value,
        proposer_endpoint=endpoint_config(
            proposer, proposer_name, key_variable, option="--proposer-name"
        ),
        value_endpoint=endpoint_config(value, value_name, key_variable, option="--value-name"),
        planner=planner_for(value),
        out=out or Path("runs") / f"plan-{short}",
    )


def _run_web(config: Any) -> None:
    from terrella.pipelines.base import run_pipeline

    run_pipeline(config)
