"""The command line: `terrella worlds | check | play | new-world | collect | doctor`.

A command parses its words, calls one stage and shows the result; knobs belong in configs (`--set a.b=c`).
    terrella collect frozen_lake:6x6 --policy random --transitions 100000 --out runs/lake
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import EnumChoicesFromValues, Positional, UseAppendAction, arg

from terrella.core.config import Configurable, dump, override
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.types import Split, canonical_json

if TYPE_CHECKING:
    from terrella.stages.check import CheckResult

console = Console()
Assignments = Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="A.B=C")]
app = tyro.extras.SubcommandApp()


@app.command(name="worlds")
def worlds() -> None:
    """List the worlds, their presets and views."""
    from terrella.worlds import builtin_names, find_world

    table = Table("world", "what", "presets", "views")
    for name in builtin_names():
        world = find_world(name)
        what = (world.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, what, " ".join(world.presets), " ".join(world.view_names))
    console.print(table)


@app.command(name="check")
def check(
    names: Positional[tuple[str, ...]] = (),
    /,
    *,
    all: bool = False,
    assignments: Assignments = (),
) -> None:
    """Prove the properties every world must keep; exit 1 if one does not hold.

    Args:
        names: worlds or presets (`sokoban`, `sokoban:two_box`, a package in this folder).
        all: every world that ships, with every preset.
        assignments: config overrides.
    """
    from terrella.stages.check import check_world
    from terrella.worlds import builtin_names, find_world, world_config

    if all:
        names += tuple(
            spec for name in builtin_names() for spec in (name, *(f"{name}:{p}" for p in find_world(name).presets))
        )
    if not names:
        raise ConfigError("check", "no world named", "terrella check NAME, or terrella check --all")
    failures = [
        failure for name in names for failure in _check_one(name, check_world(world_config(name, assignments), name))
    ]
    console.print(f"{len(names)} worlds, {len(failures)} broken properties")
    sys.exit(1 if failures else 0)


def _check_one(label: str, results: list[CheckResult]) -> list[CheckResult]:
    table = Table("property", "", "detail", "s", title=label, title_justify="left")
    for result in results:
        mark = "[green]ok[/]" if result.passed else "[bold red]BROKEN[/]"
        table.add_row(result.name.replace("_", " "), mark, escape(result.detail[:300]), f"{result.seconds:.2f}")
    console.print(table)
    return [result for result in results if not result.passed]


@app.command(name="play")
def play(world: Positional[str], /, *, seed: int = 0, assignments: Assignments = ()) -> None:
    """Play a world by hand in the terminal."""
    from terrella.stages.play import play_by_hand
    from terrella.worlds import world_config

    play_by_hand(world_config(world, assignments), seed=seed, console=console)


@app.command(name="new-world")
def new_world(name: Positional[str], /) -> None:
    """Write a folder with a new world that already passes `terrella check NAME`."""
    from terrella.stages.new_world import new_world as write

    folder = write(name, Path.cwd())
    console.print(f"wrote {folder}/__init__.py; now: terrella check {name}")


@app.command(name="collect")
def collect(
    world: Positional[str],
    /,
    *,
    out: Path | None = None,
    policy: str = "random",
    transitions: int = 0,
    episodes: int = 0,
    seed: int = 0,
    split: Annotated[Split, EnumChoicesFromValues] = Split.TRAIN,
    workers: int = 0,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Play episodes into a store; the same command resumes after a kill, and a larger target extends it.

    Args:
        world: a world or preset.
        out: the folder; `runs/collect-WORLD-POLICY` unless given.
        policy: random, expert, mixture or endpoint.
        transitions: how many steps to collect (or give --episodes).
        episodes: how many episodes to collect.
        seed: the first seed; episode i is the same in every run.
        split: where instances come from.
        workers: 0 plays in this process, n > 0 on n Ray actors.
        assignments: config overrides, such as world.max_steps=20 or policy.share=0.3.
        dry_run: print the resolved config and stop.
    """
    from terrella.stages.collect import Collect, run
    from terrella.worlds import world_config

    config = Collect.Config(
        world=world_config(world), policy=policy_config(policy),
        out=out or Path("runs") / f"collect-{world.replace(':', '-')}-{policy}",
        transitions=transitions, episodes=episodes, seed=seed, split=split, workers=workers,
    )  # fmt: skip
    config = override(config, assignments)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
        return
    run(config)


def policy_config(name: str) -> Configurable.Config:
    """The default config of a policy by its short name."""
    from terrella.policies.basic import Expert, Mixture, Random
    from terrella.policies.endpoint import Endpoint

    known: dict[str, type[Configurable]] = {
        "random": Random,
        "expert": Expert,
        "mixture": Mixture,
        "endpoint": Endpoint,
    }
    if name not in known:
        raise ConfigError(name, "no such policy", f"policies: {', '.join(known)}")
    return known[name].Config()


@app.command(name="rlvr")
def rlvr(
    recipe: Positional[str], /, *, out: Path | None = None, assignments: Assignments = (), dry_run: bool = False
) -> None:
    """Train a model with verifiable rewards; the same command resumes after a kill.

    Args:
        recipe: a recipe by name, such as tiny_counter.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as rlvr.steps=20 or seed=1.
        dry_run: print the resolved config and stop.
    """
    from terrella.recipes import find_recipe
    from terrella.stages import rlvr, self_evolving

    config = find_recipe(recipe)()
    if not isinstance(config, rlvr.Rlvr.Config | self_evolving.SelfEvolving.Config):
        raise ConfigError(recipe, "is not a recipe for rlvr")
    config = override(config.replace(out=out or Path("runs") / recipe), assignments)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
    elif isinstance(config, rlvr.Rlvr.Config):
        rlvr.run(config)
    else:
        self_evolving.run(config)


@app.command(name="train-world-model")
def train_world_model(
    recipe: Positional[str], /, *, out: Path | None = None, assignments: Assignments = (), dry_run: bool = False
) -> None:
    """Fit a model to real steps of a world; the folder is what `certify` and `plan` take.

    Args:
        recipe: a recipe by name, such as lake_model.
        out: the folder; `runs/RECIPE` unless given.
        assignments: config overrides, such as transitions=20000 or rlvr_steps=50.
        dry_run: print the resolved config and stop.
    """
    from terrella.recipes import find_recipe
    from terrella.stages import train_world_model as texts
    from terrella.stages import video_model as videos

    config = find_recipe(recipe)()
    if not isinstance(config, texts.TrainWorldModel.Config | videos.VideoModel.Config):
        raise ConfigError(recipe, "is not a recipe for a world model")
    config = override(config.replace(out=out or Path("runs") / recipe), assignments)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
    elif isinstance(config, videos.VideoModel.Config):
        videos.run(config)
    else:
        texts.run(config)


@app.command(name="certify")
def certify(model: Positional[Path], world: Positional[str], /, *, assignments: Assignments = ()) -> None:
    """Measure how far a world model may be believed; exit 1 if it is not certified.

    Args:
        model: the folder that `train-world-model` wrote; the certificate and its report go into it.
        world: the world or preset that it is a model of.
        assignments: config overrides, such as world.size=3, held_out=3000 or step_error=0.01.
    """
    from terrella.stages.certify import Certify, run
    from terrella.worlds import world_config

    certificate = run(override(Certify.Config(world=world_config(world), folder=model), assignments))
    sys.exit(0 if certificate.certified else 1)


@app.command(name="plan")
def plan(model: Positional[Path], world: Positional[str], /, *, assignments: Assignments = ()) -> None:
    """Play a world by looking ahead in a model of it, beside the random policy and the expert.

    Args:
        model: the folder that `train-world-model` wrote.
        world: the world or preset.
        assignments: config overrides, such as planner.depth=8 or planner.method=beam.
    """
    from terrella.stages.plan import Plan, run
    from terrella.worlds import world_config

    run(override(Plan.Config(world=world_config(world), folder=model), assignments))


@app.command(name="reproduce")
def reproduce(
    recipe: Positional[str], /, *, quick: bool = False, seeds: int | None = None, out: Path | None = None,
    results: Path | None = None, dry_run: bool = False,
) -> None:  # fmt: skip
    """Run a published comparison, arms x seeds, and say whether it holds; exit 1 if not. The same command resumes.

    Args:
        recipe: a reproduction by name, such as spa_frozen_lake.
        quick: only the first arms, with one seed.
        seeds: how many seeds; the recipe's unless given.
        out: the folder; `runs/RECIPE` unless given.
        results: also write the table here.
        dry_run: print the resolved config and stop.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: small models lose by sharing cores
    from terrella.recipes import find_recipe
    from terrella.stages.reproduce import Reproduce
    from terrella.stages.reproduce_report import show_table

    config = find_recipe(recipe)()
    if not isinstance(config, Reproduce.Config):
        raise ConfigError(recipe, "is not a reproduction")
    config = config.quick() if quick else config
    config = config.replace(out=out or config.out, seeds=seeds or config.seeds)
    if dry_run:
        console.print_json(canonical_json(dump(config)))
        return
    table = Reproduce(config).run(console.print)
    if results:
        command = " ".join(["terrella", *sys.argv[1:]])
        results.write_text(json.dumps({"command": command, **table}, indent=1) + "\n", "utf-8")
    sys.exit(0 if show_table(table) else 1)


@app.command(name="view")
def view(run: Positional[Path], /, *, live: bool = False, assignments: Assignments = ()) -> None:
    """Write a page to step through a run: what happened, what was predicted, what else could have come.

    Args:
        run: an episode store, a world model or a training run.
        live: serve the page on loopback, with a token, so that any action can be tried at any step.
        assignments: config overrides, such as episodes=5000, model=runs/lake or out=page.
    """
    from terrella.stages.view import View

    stage = View(override(View.Config(run=run), assignments))
    if live:
        stage.serve(lambda line: console.print(line, highlight=False, soft_wrap=True))
        return
    pages = stage.write()
    console.print(f"{len(pages)} page{'s' * (len(pages) > 1)}; open {pages[0]}", highlight=False, soft_wrap=True)


@app.command(name="report")
def report(runs: Positional[tuple[Path, ...]] = (), /, *, out: Path = Path("report"), title: str = "Report") -> None:
    """Write one report (Markdown, HTML, PDF) about runs: curves, baselines, certificates, cost, config differences.

    Args:
        runs: folders of runs, and files of results; seeds of one config become one figure with an interval.
        out: the folder of the report.
        title: its heading.
    """
    from terrella.stages.report import Report

    for path in Report(Report.Config(runs=runs, out=out, title=title)).write():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


@app.command(name="serve")
def serve(model: Positional[Path], /, *, world: str | None = None, assignments: Assignments = ()) -> None:
    """Serve a world model on loopback, with a token: episodes (OpenEnv), predictions with their risk, chat (OpenAI).

    Args:
        model: the folder that `train-world-model` wrote.
        world: the world or preset whose beginnings are imagined from; the one it was trained on unless given.
        assignments: config overrides, such as limits.port=8800, limits.max_sessions=64 or sampler=vllm.
    """
    from terrella.stages.serve import Serve
    from terrella.worlds import world_config

    config = Serve.Config(folder=model, world=world_config(world) if world else None)
    Serve(override(config, assignments)).run(lambda line: console.print(line, highlight=False, soft_wrap=True))


@app.command(name="push")
def push(folder: Positional[Path], repo: Positional[str], /, *, public: bool = False) -> None:
    """Upload a run and a card made from its manifest to a Hugging Face hub (HF_TOKEN, HF_ENDPOINT).

    Args:
        folder: an episode store, a world model or a training run.
        repo: owner/name.
        public: make the repository public; private unless said.
    """
    from terrella.stages.hub import push as upload

    console.print(upload(folder, repo, private=not public), highlight=False, soft_wrap=True)


@app.command(name="pull")
def pull(repo: Positional[str], folder: Positional[Path], /, *, dataset: bool = False, revision: str = "") -> None:
    """Download a run from a hub, pinned to a commit; files that could run code are refused.

    Args:
        repo: owner/name.
        folder: a new folder.
        dataset: it is a dataset (an episode store), not a model.
        revision: a commit, tag or branch; the newest unless given.
    """
    from terrella.stages.hub import pull as download

    commit = download(repo, folder, kind="dataset" if dataset else "model", revision=revision or None)
    console.print(f"{repo} at {commit} in {folder}", highlight=False, soft_wrap=True)


@app.command(name="sites")
def sites(
    verb: Positional[Literal["up", "reset", "down", "status"]], /, names: Positional[tuple[str, ...]] = ()
) -> None:
    """Install and start, put back, or stop the web sites that the tasks of the mini-arena are about.

    Args:
        verb: up, reset, down or status.
        names: only these sites (shop, forum, tracker).
    """
    from terrella.stages.sites import run

    run(verb, names)


@app.command(name="doctor")
def doctor(*, cluster: bool = False, nodes: int = 0, out: Path = Path("runs")) -> None:
    """Say what is installed, what is missing for which extra, and what this machine has.

    Args:
        cluster: look at every node of the Ray cluster instead (RAY_ADDRESS); exit 1 if something is wrong.
        nodes: with --cluster, wait for so many.
        out: with --cluster, the folder that all nodes must share.
    """
    from terrella.stages.doctor import diagnose

    findings = list(diagnose())
    if cluster:
        from terrella.stages.doctor_cluster import diagnose_cluster

        findings = diagnose_cluster(out, nodes)
    table = Table("", "", "", "detail")
    for finding in findings:
        table.add_row(
            finding.topic, finding.subject, "[green]ok[/]" if finding.good else "[yellow]--[/]", escape(finding.detail)
        )
    console.print(table)
    sys.exit(1 if cluster and not all(finding.good for finding in findings) else 0)


def main() -> None:
    """Run a command; an error of ours is three lines for a person, not a traceback."""
    try:
        app.cli(prog="terrella", description="World models with verifiable rewards.")
    except TerrellaError as error:
        Console(stderr=True).print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
