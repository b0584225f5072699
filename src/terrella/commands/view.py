"""`terrella view RUN`: write a page to step through episodes, predictions and counterfactuals.

Works for an episode store, a world model (its data beside its predictions), a video model (held-out
clips), an evaluation (its episodes with the replies) and a training run (its curves, and its tokens
if they were recorded with `--set record_every=10`). The page is one file, opens from disk and makes
no connections.
    View(View.Config(run=Path("runs/lake"))).write()
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from terrella.commands.view_evaluation import about_evaluation, evaluated_episodes, pass_curves
from terrella.commands.view_tokens import token_episodes
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.files import locked, subfolder
from terrella.core.types import Episode
from terrella.core.untrusted import reading
from terrella.core.world import StateWorld, World
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError
from terrella.show.counterfactuals import EndedError, EpisodeAnalyzer
from terrella.show.page import render_page, write_pages
from terrella.show.page_data import Extras, PageBuilder, branch_json, page_observation
from terrella.show.runs import STRANGE, Run, read_run
from terrella.show.tables import interval_text
from terrella.world_models.certified import CertifiedModel, load_certified_model

CURVES = (
    "reward",
    "zero_variance",
    "masked",
    "in_group_std",
    "diversity",
    "entropy",
    "tokens",
    "turns",
    "kl",
    "grad_norm",
    "mismatch/mean",
    "seconds/generate",
    "seconds/train",
)
"""Metrics that are drawn as curves, in this order, if a run has them."""
BATCH_SIZE = 200
"""Episodes that are analyzed together."""

PageEpisode = tuple[int, Episode, Extras | None]
"""A number, an episode and, if they are already known, its extras."""


class View(Configurable):
    """The command; `write` makes the pages, `serve` a page with a server behind it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The run to show, and how much of it."""

        run: Local[Path]
        out: Local[Path | None] = None
        """The folder of the pages; by default `RUN/view`."""
        model: Local[Path | None] = None
        """A world model (a folder of `train-world-model`) that predicts the steps.

        The run of a world model uses its own model.
        """
        world: World.Config | None = None
        """The world of the run; by default what its manifest says about it.

        A manifest cannot start a program: a world with a browser must be named.
        """
        videos: Local[Path | None] = None
        """For a video model: the folder of its videos and tokenizer."""
        stores: Local[tuple[Path, ...]] = ()
        """For a video model: the episode stores that its videos came from, if any."""
        episodes: int = 1000
        """Episodes to show, from `first` on; 0 shows all."""
        first: int = 0
        predicted: int = 300
        """Episodes whose steps the model predicts."""
        forked: int = 60
        """Episodes whose other actions are tried in advance, if the world's state is readable."""
        replayed: int = 2
        """The same for worlds that must be replayed up to each step: a browser, a simulator."""
        photographed: int = 10
        """Episodes of a browser that are replayed for a screenshot of each page."""
        samples: int = 8
        """Samples per query."""
        page_megabytes: float = 50.0

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        run = read_run(config.run)
        _refuse_another_world(run, config.world)
        self.run: Run = replace(run, given_world=config.world)
        self.live = False
        """Whether the page will have a server behind it."""
        self.shown: dict[int, Episode] = {}
        """Episodes of the page by number; a live page forks them."""

    def write(self) -> list[Path]:
        """Write the pages and return their paths."""
        config = self.config
        out = config.out or subfolder(config.run, "view")
        data = self.build_page().data()
        with locked(out):
            return write_pages(data, out, max_bytes=int(config.page_megabytes * 1e6))

    # --- a live page ------------------------------------------------------------------------------

    def serve(self, say: Callable[[str], None], limits: ServeSettings.Config | None = None) -> None:
        """Serve the page on loopback, where any action can be tried at any step, until Ctrl-C."""
        from terrella.commands.serve import listen, serve_app

        limits = limits or ServeSettings.Config(port=0)
        token = secrets.token_urlsafe(32)
        app = self.live_app(token, limits)
        listening = listen(limits.host, limits.port)
        host, port = listening.getsockname()[:2]
        say(f"open http://{host}:{port}/?token={token}")
        serve_app(app, listening, limits)

    def live_app(self, token: str, limits: ServeSettings.Config) -> Any:
        """Build the ASGI application of a live page."""
        from terrella.serve.live import make_live_app

        self.live = True
        analyzer = self.analyzer
        if analyzer is None:
            raise ConfigError(
                str(self.config.run),
                f"no action can be tried: {_why_no_world(self.run)}",
                "name its world with --world, or view it without --live",
            )
        page = render_page({**self.build_page().data(), "pages": [], "live": token})
        return make_live_app(page, functools.partial(self._fork, analyzer), token, limits)

    def _fork(
        self, analyzer: EpisodeAnalyzer, number: int, step: int, actions: Sequence[str]
    ) -> dict[str, Any]:
        episode = self.shown.get(number)
        if episode is None or step > len(episode.transitions):
            raise RequestError(404, "no such step on this page", "NOT_FOUND")
        try:
            return branch_json(analyzer.fork(episode, step, actions), page_observation)
        except EndedError as error:
            raise RequestError(409, str(error), "EXECUTION_ERROR") from error

    # --- contents ---------------------------------------------------------------------------------

    def build_page(self) -> PageBuilder:
        """Collect everything that the page shows."""
        with reading(str(self.run.folder), STRANGE):
            about, curves = _about(self.run), _curves(self.run)
        builder = PageBuilder(self.run.name, about=about, curves=curves)
        certificate = self.certified_model.certificate if self.certified_model else None
        builder.threshold = certificate.threshold if certificate else None
        for batch in _batches(self._episodes(), BATCH_SIZE):
            analyzed = self._analyze(batch)
            for (number, episode, extras), computed in zip(batch, analyzed, strict=True):
                self.shown[number] = episode
                builder.add(episode, number, extras or computed)
        if not builder.episodes and not builder.curves and not _only_step(self.run):
            raise ConfigError(
                str(self.config.run), "holds neither episodes nor a curve", "collect or train first"
            )
        return builder

    @property
    def certified_model(self) -> CertifiedModel | None:
        """The model that predicts the steps, if there is one."""
        folder = self.config.model or (self.run.folder if self.run.kind == "world model" else None)
        if folder is None:
            return None
        return load_certified_model(folder, self.config.samples, self.run.world)

    @functools.cached_property
    def analyzer(self) -> EpisodeAnalyzer | None:
        """The analyzer of the run's world; None if the world cannot be built here."""
        return EpisodeAnalyzer(self.run.world, self.certified_model) if self.run.world else None

    def _episodes(self) -> Iterator[PageEpisode]:
        config = self.config
        if self.run.kind == "video model":
            # Imports torch, which other pages do without.
            from terrella.commands.view_videos import predicted_clips

            yield from predicted_clips(
                self.run, config.predicted, videos=config.videos, stores=config.stores
            )
            return
        if self.run.store is not None:
            stop = config.first + config.episodes if config.episodes else None
            numbered = enumerate(self.run.store.episodes())
            for number, episode in itertools.islice(numbered, config.first, stop):
                yield number, episode, None
        yield from evaluated_episodes(self.run, config.first, config.episodes)
        yield from token_episodes(self.run, config.episodes)

    def _analyze(self, batch: Sequence[PageEpisode]) -> list[Extras]:
        """Predict steps and try other actions, for as many episodes as the config allows.

        Episodes that come with extras are left alone.
        """
        pending = {number: episode for number, episode, extras in batch if extras is None}
        analyzer = self.analyzer if pending else None
        if analyzer is None:
            return [Extras() for _ in batch]
        config = self.config
        predictions: dict[int, Any] = {}
        if analyzer.certified_model is not None:
            chosen = self._first_of(pending, config.predicted)
            predictions = dict(zip(chosen, analyzer.predict(list(chosen.values())), strict=True))
        readable = isinstance(analyzer.world, StateWorld)
        chosen = self._first_of(pending, config.forked if readable else config.replayed)
        forks: dict[int, Any] = dict(
            zip(chosen, analyzer.forks(list(chosen.values())), strict=True)
        )
        chosen = self._first_of(pending, config.photographed)
        screenshots = {number: analyzer.screenshots(episode) for number, episode in chosen.items()}
        if self.live:
            names = {number: analyzer.action_names(episode) for number, episode in pending.items()}
            forks = names | forks
        return [
            Extras(
                predictions=predictions.get(number, ()),
                forks=forks.get(number, ()),
                screenshots=screenshots.get(number, ()),
            )
            for number, *_ in batch
        ]

    def _first_of(self, episodes: Mapping[int, Episode], count: int) -> dict[int, Episode]:
        """Return those among the first `count` episodes of the page."""
        end = self.config.first + count
        return {number: episode for number, episode in episodes.items() if number < end}


def _batches(items: Iterator[PageEpisode], size: int) -> Iterator[list[PageEpisode]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _curves(run: Run) -> list[dict[str, Any]]:
    """Metrics by step. Values of a run that diverged (NaN, infinity) are counted, not drawn."""
    curves = []
    for name in CURVES:
        known = [row for row in run.curve if isinstance(row.get(name), int | float)]
        rows = [row for row in known if math.isfinite(row[name])]
        if len(rows) > 1:
            steps = [row["step"] for row in rows]
            values = [row[name] for row in rows]
            lost = len(known) - len(rows)
            title = f"{name} (not finite in {lost} steps)" if lost else name
            curves.append({"name": title, "steps": steps, "values": values})
    return [*curves, *pass_curves(run)]


def _only_step(run: Run) -> str:
    """The metrics of a run with one step, which is no curve; empty for any other run."""
    if len(run.curve) != 1:
        return ""
    (row,) = run.curve
    known = [name for name in CURVES if isinstance(row.get(name), int | float)]
    return ", ".join(f"{name} {row[name]:.4g}" for name in known)


def _about(run: Run) -> list[tuple[str, str]]:
    """Summarise a run as rows of a table."""
    rows = [("kind", run.kind), ("folder", str(run.folder))]
    for part in ("before", "after"):
        metric = run.metrics.get(part) or {}
        if "means" in metric:  # a video model: several metrics of the same clips
            n = len(metric["clips"]["value"])
            for name, mean in metric["means"].items():
                rows.append((f"{part}: {name}", f"{interval_text(mean)}, n = {n}"))
        elif metric:
            rows.append((part, f"{interval_text(metric)}, n = {metric['n']}"))
    for name, value in run.metrics.get("baselines", {}).items():
        if value is not None:
            rows.append((f"baseline: {name}", f"{value:.3f}"))
    if run.certificate is not None:
        horizon = f"safe horizon {run.certificate.safe_horizon}"
        refused = f"NOT CERTIFIED: {'; '.join(run.certificate.reasons)}"
        rows.append(("certificate", horizon if run.certificate.certified else refused))
    rows += about_evaluation(run)
    if only := _only_step(run):
        rows.append(("the only step", only))
    if run.world is None and run.kind != "evaluation":
        rows.append(("world", f"no counterfactuals: {_why_no_world(run)}"))
    return [*rows, ("config", json.dumps(run.config, indent=1))]


def _refuse_another_world(run: Run, given: World.Config | None) -> None:
    """The episodes of one world cannot be played on in another."""
    world = run.config.get("world")
    recorded = str(world.get("class", "")) if isinstance(world, Mapping) else ""
    if given is None or not recorded or given.owner.__name__ == recorded.rpartition(":")[2]:
        return
    there = recorded.rpartition(":")[2]
    with contextlib.suppress(TerrellaError):
        there = run.load_world().owner.name or there
    raise ConfigError(
        str(run.folder),
        f"is of {there}, not {given.owner.name or given.owner.__name__}",
        f"use --world {there}, or leave --world out",
    )


def _why_no_world(run: Run) -> str:
    try:
        run.load_world()
    except TerrellaError as error:
        return error.what
    return "it cannot be built here"
