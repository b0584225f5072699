"""The command that evaluates: agents and world models, sampled here or at an endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.markup import escape
from rich.table import Table
from tyro.conf import EnumChoicesFromValues, Positional, arg

from terrella.cli.app import Assignments, app, console, with_overrides
from terrella.cli.endpoint import endpoint_config
from terrella.cli.memory_plan import dry_run_config
from terrella.core.errors import ConfigError
from terrella.core.types import Split

if TYPE_CHECKING:
    from terrella.core.world import World
    from terrella.policies.endpoint import Endpoint

FILE_COLUMNS = 160
"""Width of a table that goes to a file."""
EPISODES_AT_ONCE, REQUESTS_AT_ONCE = 64, 16
In = Annotated[tuple[Path, ...], arg(name="in")]
As = Annotated[Literal["agent", "world-model"] | None, arg(name="as")]


@app.command(name="evaluate")
def evaluate(
    model: Positional[str],
    worlds: Positional[tuple[str, ...]] = (),
    /,
    *,
    inside: In = (),
    against: tuple[str, ...] = (),
    role: As = None,
    instances: int = 100,
    samples: int | None = None,
    out: Path | None = None,
    split: Annotated[Split, EnumChoicesFromValues] = Split.TEST,
    seed: int = 0,
    max_actions: int | None = None,
    turn_tokens: int | None = None,
    temperature: float | None = None,
    horizon: int | None = None,
    policy: str | None = None,
    model_name: str = "",
    key_variable: str | None = None,
    concurrency: int | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Measure a model on held-out instances; the same command resumes after a kill.

    An agent plays: success, pass@k, well-formed replies, steps, beside random and optimal play. A
    world model predicts: accuracy where something changes and where nothing does, and by horizon.
    With --in, policies on pixels play in a video model and in its world: are they ranked alike?

    Args:
        model: a run's folder, a Hugging Face folder, a preset such as smollm2 or tiny-1m, or the
            http(s) address of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1.
        worlds: worlds or presets, such as sokoban or frozen_lake:4x4_slip.
        inside: runs of a video model, one for each seed; MODEL is then a folder of pixel policies
            (NAME.safetensors), or `ladder` for clones of the expert that are trained here.
        against: the worlds that the policies also play in, such as tabletop:push.
        role: whether the model acts or predicts; as the run was trained unless given, else agent.
        instances: distinct instances of each world; every model gets the same ones.
        samples: episodes per instance, 8 unless given; pass@k goes up to this k.
        out: the folder; `runs/evaluate-MODEL-WORLDS` unless given.
        split: where instances come from.
        seed: of the sampling; instances do not depend on it.
        max_actions: actions that one reply may hold; as the run was trained unless given, else 1.
        turn_tokens: longest reply; as the run was trained unless given, else 2048 for a model that
            thinks, 32 for an agent from scratch, and 256 for others.
        temperature: of an agent's sampling, 1 unless given; a world model is asked greedily.
        horizon: steps ahead in imagination, for a world model; 5 unless given.
        policy: takes the steps that a world model predicts: random, expert or mixture; random
            unless given.
        model_name: the model's name at the endpoint.
        key_variable: the environment variable with the endpoint's key, OPENAI_API_KEY unless
            given; it may be unset.
        concurrency: episodes at once; at an endpoint also the requests under way.
        price_in: price of a million prompt tokens at the endpoint.
        price_out: price of a million written tokens.
        assignments: config overrides, such as sampler=vllm, world.max_steps=20 or form=worldmodel.
        dry_run: print the resolved config and stop.
    """
    for_agents = _given(samples=samples, max_actions=max_actions, temperature=temperature)
    for_world_models = _given(horizon=horizon, policy=policy)
    for_endpoints = _given(key_variable=key_variable, price_in=price_in, price_out=price_out)
    limit = _given(turn_tokens=turn_tokens)
    if inside or against:
        from terrella.cli.evaluate_policies import evaluate_policies

        others = {**for_agents, **for_world_models, **for_endpoints, **limit}
        _refuse_unread({**others, **_given(concurrency=concurrency)}, "policies on pixels")
        options = {"instances": instances, "seed": seed, "out": out}
        evaluate_policies(model, inside, against or worlds, options, assignments, dry_run=dry_run)
        return
    role = _role(model, worlds, role, for_agents, for_world_models, for_endpoints)
    common: dict[str, Any] = {
        "model": model,
        "endpoint": _endpoint(model, model_name, key_variable),
        "worlds": _worlds(model, worlds, assignments),
        "instances": instances,
        "split": split,
        "seed": seed,
        "concurrency": _concurrency(model) if concurrency is None else concurrency,
        "prompt_price": price_in or 0.0,
        "reply_price": price_out or 0.0,
        "out": out or _folder(model_name or model, worlds, role),
    }
    if role == "agent":
        config = _agent_config(common, {**limit, **for_agents})
    else:
        config = _world_model_config(common, {**limit, **for_world_models})
    rest = [each for each in assignments if not each.startswith("world.")]
    config = with_overrides(config, rest).settled()
    if dry_run:
        dry_run_config(config)
    else:
        _run(config)


def _role(
    model: str,
    worlds: Sequence[str],
    role: Literal["agent", "world-model"] | None,
    for_agents: Mapping[str, object],
    for_world_models: Mapping[str, object],
    for_endpoints: Mapping[str, object],
) -> Literal["agent", "world-model"]:
    """Whether the model acts or predicts; refuses options that this evaluation does not read."""
    from terrella.pipelines.evaluate.models import is_address, trained_role

    if not worlds:
        raise ConfigError("evaluate", "no world named", "terrella evaluate MODEL WORLD...")
    role = role or trained_role(model)
    if role == "agent":
        _refuse_unread(for_world_models, "an agent; add --as world-model")
    else:
        _refuse_unread(for_agents, "a world model; add --as agent")
    if not is_address(model):
        _refuse_unread(for_endpoints, "a model that is loaded here")
    return role


def _agent_config(common: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The evaluation of an agent; options that were given come before what its run says."""
    from terrella.pipelines.evaluate.agents import AgentEvaluation
    from terrella.pipelines.evaluate.talk import agent_settings

    settings = agent_settings(common["model"], common["worlds"])
    return AgentEvaluation.Config(**common, **{**settings, **given})


def _world_model_config(common: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The evaluation of a world model; options that were given come before what its run says."""
    from terrella.cli.worlds import policy_config
    from terrella.pipelines.evaluate.talk import prediction_settings
    from terrella.pipelines.evaluate.world_models import WorldModelEvaluation

    policy = policy_config(given.get("policy", "random"))
    settings = {**prediction_settings(common["model"]), **given, "policy": policy}
    return WorldModelEvaluation.Config(**common, **settings)


def _given(**options: float | str | None) -> dict[str, Any]:
    """The options that were given: they come before what a run says."""
    return {name: value for name, value in options.items() if value is not None}


def _refuse_unread(options: Mapping[str, object], subject: str) -> None:
    """Refuse options that were given and that this evaluation does not read."""
    if options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        what, _, remedy = subject.partition("; ")
        raise ConfigError(names, f"is not read when evaluating {what}", remedy or "leave it out")


def _run(config: Any) -> None:
    from terrella.core.instances import plain
    from terrella.show.evaluation import evaluation_tables
    from terrella.show.progress import make_progress

    with make_progress() as progress:
        result = config.build().run(progress)
    for title, header, rows in evaluation_tables(plain(result)):
        _show(title, header, rows)
    console.print(f"rows and scores in {config.out}", highlight=False, soft_wrap=True)


def _show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A framed table in a terminal, aligned lines elsewhere."""
    if not console.is_terminal:
        from terrella.show.tables import text_table

        lines = (title, *text_table(header, rows, columns=FILE_COLUMNS), "")
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(*map(escape, header), title=escape(title), title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _concurrency(model: str) -> int:
    from terrella.pipelines.evaluate.models import is_address

    return REQUESTS_AT_ONCE if is_address(model) else EPISODES_AT_ONCE


def _endpoint(model: str, name: str, key_variable: str | None) -> Endpoint.Config | None:
    """The endpoint of an address; refuses a mistyped name before anything is loaded."""
    from terrella.pipelines.evaluate.models import weights_of

    endpoint = endpoint_config(model, name, key_variable, option="--model-name")
    if endpoint is None:
        weights_of(model)
    return endpoint


def _worlds(
    model: str, names: Iterable[str], assignments: Iterable[str]
) -> Mapping[str, World.Config]:
    """Worlds by name; a run's model gets the world that it was trained in."""
    from terrella.cli.app import world_of
    from terrella.core.config_override import override
    from terrella.pipelines.evaluate.models import run_of
    from terrella.show.runs import warn_of_another_world
    from terrella.worlds import world_config

    run = run_of(model)
    changes = [each.removeprefix("world.") for each in assignments if each.startswith("world.")]
    worlds = {
        name: override(world_of(run, name) if run else world_config(name), changes)
        for name in names
    }
    if run:
        for world in worlds.values():
            warn_of_another_world(run, world)
    return worlds


def _folder(model: str, worlds: Iterable[str], role: str) -> Path:
    short = model.rstrip("/").rpartition("/")[2]
    kind = "" if role == "agent" else "-world-model"
    name = "-".join(("evaluate", short, *worlds)).replace(":", "-")
    return Path("runs") / f"{name}{kind}"
