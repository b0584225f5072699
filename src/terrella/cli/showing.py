"""Commands that show and share: the viewer, reports, the server, the hub."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from terrella.cli.app import Assignments, app, console, world_of
from terrella.core.config_override import override


@app.command(name="view")
def view(
    run: Positional[Path],
    /,
    *,
    world: str | None = None,
    live: bool = False,
    assignments: Assignments = (),
) -> None:
    """Write a page to step through a run.

    What happened, what was predicted, what else could have come.

    Args:
        run: an episode store, a world model, a training run or an evaluation.
        world: the world of the run, if it is one of yours or starts a browser; the one of its
            manifest unless given.
        live: serve the page on loopback, with a token, so that any action can be tried at any step.
        assignments: config overrides, such as episodes=5000, model=runs/lake or out=page.
    """
    from terrella.commands.view import View
    from terrella.show.runs import read_run

    shown = world_of(run, world) if world else read_run(run).world
    stage = View(override(View.Config(run=run, world=shown), assignments))
    if live:
        stage.serve(lambda line: console.print(line, highlight=False, soft_wrap=True))
        return
    pages = stage.write()
    console.print(
        f"{len(pages)} page{'s' * (len(pages) > 1)}; open {pages[0]}",
        highlight=False,
        soft_wrap=True,
    )


@app.command(name="report")
def report(
    runs: Positional[tuple[Path, ...]] = (), /, *, out: Path = Path("report"), title: str = ""
) -> None:
    """Write one report (Markdown, HTML, PDF) about runs.

    Curves, baselines, certificates, cost, config differences.

    Args:
        runs: run folders and result files; seeds of one config become one metric.
        out: the folder of the report.
        title: its heading; it names the runs unless given.
    """
    from terrella.commands.report import Report

    for path in Report(Report.Config(runs=runs, out=out, title=title)).write():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


@app.command(name="serve")
def serve(
    model: Positional[Path], /, *, world: str | None = None, assignments: Assignments = ()
) -> None:
    """Serve a world model on loopback, with a token.

    Episodes (OpenEnv), predictions with their risk, chat (OpenAI).

    Args:
        model: the folder that `train-world-model` wrote.
        world: a world of yours or a preset; the world of the model unless given.
        assignments: config overrides, such as limits.port=8800 or sampler=vllm.
    """
    from terrella.commands.serve import Serve
    from terrella.show.runs import require_world_model

    require_world_model(model)
    config = Serve.Config(folder=model, world=world_of(model, world) if world else None)
    Serve(override(config, assignments)).run(
        lambda line: console.print(line, highlight=False, soft_wrap=True)
    )


@app.command(name="push")
def push(folder: Positional[Path], repo: Positional[str], /, *, public: bool = False) -> None:
    """Upload a run and a card made from its manifest to a Hugging Face hub (HF_TOKEN, HF_ENDPOINT).

    Args:
        folder: an episode store, a world model, a training run or an evaluation.
        repo: owner/name.
        public: make the repository public; private unless said.
    """
    from terrella.commands.hub import push as upload

    console.print(upload(folder, repo, private=not public), highlight=False, soft_wrap=True)


@app.command(name="pull")
def pull(
    repo: Positional[str], folder: Positional[Path], /, *, dataset: bool = False, revision: str = ""
) -> None:
    """Download a run from a hub, pinned to a commit; files that could run code are refused.

    Pages stay there: `terrella view FOLDER` makes them from the run's own files.

    Args:
        repo: owner/name.
        folder: a new folder.
        dataset: it is a dataset (an episode store), not a model.
        revision: a commit, tag or branch; the newest unless given.
    """
    from terrella.commands.hub import pull as download

    commit = download(
        repo, folder, kind="dataset" if dataset else "model", revision=revision or None
    )
    console.print(f"{repo} at {commit} in {folder}", highlight=False, soft_wrap=True)
