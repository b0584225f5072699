"""`terrella view RUN`: a page to step through what happened, what was predicted, and what else could have.

For an episode store, a world model (its data, with its predictions beside them), a video model (held-out clips) or a
training run (its curves, and its tokens if it kept them: `--set record_every=10`). The page is one file, opens from
disk and calls nobody.
    View(View.Config(run=Path("runs/lake"))).write()
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.types import Episode, Frames, Prediction, Stop, Transition, Verdict
from terrella.core.world import StateWorld
from terrella.data.token_records import read_records, recorded_episode, recorded_verdict
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError
from terrella.show.counterfactuals import EndedError, Foresight, Foretold
from terrella.show.page import render_page, write_pages
from terrella.show.page_data import Extras, PageBook, branch_json, seen_json
from terrella.show.runs import Run, read_run
from terrella.stages.tasks import PredictionTasks
from terrella.use.imagine import Imagination, load_imagination

CURVES = (
    "reward", "zero_variance", "masked", "in_group_std", "diversity", "entropy", "tokens", "turns", "kl", "grad_norm",
    "mismatch/mean", "seconds/generate", "seconds/train",
)  # fmt: skip
"""Figures that are drawn, in this order, where a run has them."""


class View(Configurable):
    """The stage: `book` collects what is shown, `write` makes the pages."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What to show and how much of it."""

        run: Path
        out: Path | None = None
        """The folder of the pages; `RUN/view` unless given."""
        model: Path | None = None
        """A world model (a folder of `train-world-model`) to ask about the steps; a world model's run asks itself."""
        episodes: int = 1000
        """Shown, from `first` on; 0 shows all."""
        first: int = 0
        predicted: int = 300
        """Episodes whose steps the model is asked about."""
        forked: int = 60
        """Episodes whose other actions are tried ahead of time, where the world's state can be read."""
        replayed: int = 2
        """The same for worlds that must be replayed up to each step: a browser, a simulator."""
        samples: int = 8
        """Answers per question."""
        page_megabytes: float = 50.0

    config: Config

    def __init__(self, config: Config) -> None:
        """Read the run; nothing is computed before `book`."""
        super().__init__(config)
        self.run: Run = read_run(config.run)
        self.live = False
        """Whether the page will have a server to ask."""
        self.shown: dict[int, Episode] = {}
        """Episodes of the page by number: a live page forks them."""

    def write(self) -> list[Path]:
        """The pages."""
        config = self.config
        return write_pages(
            self.book().data(), config.out or config.run / "view", most_bytes=int(config.page_megabytes * 1e6)
        )

    def serve(self, say: Callable[[str], None], limits: ServeSettings.Config | None = None) -> None:
        """The page on loopback, with a server that tries any action at any step; Ctrl-C ends it."""
        from terrella.stages.serve import listen, serve_app

        limits = limits or ServeSettings.Config(port=0)
        token = secrets.token_urlsafe(32)
        app = self.live_app(token, limits)
        listening = listen(limits.host, limits.port)
        host, port = listening.getsockname()[:2]
        say(f"open http://{host}:{port}/?token={token}")
        serve_app(app, listening, limits)

    def live_app(self, token: str, limits: ServeSettings.Config) -> Any:
        """The ASGI application of a live page."""
        from terrella.serve.live import make_live_app

        self.live = True
        foresight = self.foresight
        if foresight is None:
            raise ConfigError(str(self.config.run), "its world cannot be built here", "there is nothing to ask live")
        page = render_page({**self.book().data(), "pages": [], "live": token})
        return make_live_app(page, functools.partial(self._fork, foresight), token, limits)

    def _fork(self, foresight: Foresight, number: int, step: int, actions: Sequence[str]) -> dict[str, Any]:
        episode = self.shown.get(number)
        if episode is None or step > len(episode.transitions):
            raise RequestError(404, "no such step on this page", "NOT_FOUND")
        try:
            return branch_json(foresight.fork(episode, step, actions), seen_json)
        except EndedError as error:
            raise RequestError(409, str(error), "EXECUTION_ERROR") from error

    def book(self) -> PageBook:
        """Everything that the page holds."""
        book = PageBook(self.run.name, about=_about(self.run), curves=_curves(self.run))
        certificate = self.imagination.certificate if self.imagination else None
        book.threshold = certificate.threshold if certificate else None
        for rows in _batches(self._wanted(), 200):
            for (number, episode, extras), more in zip(rows, self._explained(rows), strict=True):
                self.shown[number] = episode
                book.add(episode, number, extras or more)
        if not book.episodes and not book.curves:
            raise ConfigError(str(self.config.run), "holds neither episodes nor a curve", "collect or train first")
        return book

    @property
    def imagination(self) -> Imagination | None:
        """The model to ask, if there is one."""
        folder = self.config.model or (self.run.folder if self.run.kind == "world model" else None)
        return load_imagination(folder, self.config.samples) if folder else None

    @functools.cached_property
    def foresight(self) -> Foresight | None:
        """Who is asked about actions; None where the world cannot be built here."""
        return Foresight(self.run.world, self.imagination) if self.run.world else None

    def _wanted(self) -> Iterator[tuple[int, Episode, Extras | None]]:
        if self.run.kind == "video model":
            from terrella.stages.view_films import predicted_clips  # with torch: other pages do without

            yield from predicted_clips(self.run, self.config.predicted)
            return
        if self.run.store is not None:
            first, count = self.config.first, self.config.episodes
            stop = first + count if count else None
            for number, episode in itertools.islice(enumerate(self.run.store.episodes()), first, stop):
                yield number, episode, None
        yield from _token_episodes(self.run, self.config.episodes)

    def _explained(self, rows: Sequence[tuple[int, Episode, Extras | None]]) -> list[Extras]:
        """Predictions and counterfactuals of some episodes, as far as the config's counts go."""
        foresight = self.foresight if any(known is None for *_, known in rows) else None
        if foresight is None:
            return [Extras() for _ in rows]
        foretold: dict[int, Any] = {}
        asked = {n: e for n, e, known in rows if known is None and n - self.config.first < self.config.predicted}
        if foresight.imagination is not None:
            foretold = dict(zip(asked, foresight.predict(list(asked.values())), strict=True))
        most = self.config.forked if isinstance(foresight.world, StateWorld) else self.config.replayed
        tried = {n: e for n, e, known in rows if known is None and n - self.config.first < most}
        forks: dict[int, Any] = dict(zip(tried, foresight.forks(list(tried.values())), strict=True))
        if self.live:
            forks = {n: foresight.names(e) for n, e, known in rows if known is None} | forks
        return [Extras(foretold=foretold.get(n, ()), forks=forks.get(n, ())) for n, *_ in rows]


def _batches(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def _curves(run: Run) -> list[dict[str, Any]]:
    found = []
    for name in CURVES:
        rows = [row for row in run.curve if isinstance(row.get(name), int | float)]
        if len(rows) > 1:
            values = [row[name] for row in rows]
            found.append({"name": name, "steps": [row["step"] for row in rows], "values": values})
    return found


def _token_episodes(run: Run, most: int) -> Iterator[tuple[int, Episode, Extras | None]]:
    """What was kept of a training run, first step first; with a limit, evenly many of each kept step."""
    each = max(1, most // len(run.token_files)) if most and run.token_files else None
    number = itertools.count()
    for path in run.token_files:
        for record in itertools.islice(read_records(path), each):
            found = recorded_episode(record)
            told: list[Foretold] = []
            if found is None:
                found, told = _asked(run, record)
            if found is not None:
                tokens = {key: record[key] for key in ("prompt", "texts", "model", "logprobs", "advantages")}
                yield next(number), found, Extras(foretold=told, tokens=tokens, note=f"step {record['step']}")


def _asked(run: Run, record: Mapping[str, Any]) -> tuple[Episode | None, list[Foretold]]:
    """A question to a world model, as an episode of one step: questions are a function of their number."""
    if run.world is None:
        return None, []
    task = PredictionTasks(run.world, seed=int(run.config["seed"]))(record["noise_seed"])
    step, verdict = task.transition, recorded_verdict(record["outcome"])
    assert step is not None
    episode = Episode(
        world=run.world.owner.name, instance="", split=task.split, seed=record["seed"],  # type: ignore[attr-defined]
        noise_seed=record["noise_seed"], policy="question", first=step.observation, transitions=(step,),
        stop=Stop.OUT_OF_STEPS, outcome=verdict,
    )  # fmt: skip
    return episode, [_answered(step, record, verdict)]


def _answered(step: Transition, record: Mapping[str, Any], verdict: Verdict) -> Foretold:
    """What was sampled, as a prediction; its risk is the probability that the model gave to everything else."""
    logprob = min(0.0, sum(record["logprobs"]))
    risk, truth = 1.0 - math.exp(logprob), step.next_observation
    if record["predicted"] is None or isinstance(truth, Frames):
        return Foretold(None, risk, "", verdict)
    seen = type(truth)(record["predicted"])
    said = Prediction(observation=seen, reward=step.reward, terminated=step.terminated, logprob=logprob, risk=risk)
    return Foretold(said, risk, "", verdict)


def _interval(figure: Mapping[str, float], n: int) -> str:
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}], n = {n}"


def _about(run: Run) -> list[tuple[str, str]]:
    """What a reader wants to know of a run, as rows."""
    rows = [("kind", run.kind), ("folder", str(run.folder))]
    for part in ("before", "after"):
        figure = run.manifest.get(part, {})
        if "means" in figure:  # a video model's: several figures of the same clips
            n = len(figure["clips"]["value"])
            rows += [(f"{part}: {name}", _interval(one, n)) for name, one in figure["means"].items()]
        elif figure:
            rows.append((part, _interval(figure, figure["n"])))
    known = run.manifest.get("baselines", {}).items()
    rows += [(f"baseline: {name}", f"{value:.3f}") for name, value in known if value is not None]
    if run.certificate is not None:
        horizon = f"safe horizon {run.certificate.safe_horizon}"
        rows.append(("certificate", horizon if run.certificate.certified else "NOT CERTIFIED"))
    if run.world is None:
        rows.append(("world", "cannot be built here: no counterfactuals"))
    return [*rows, ("config", json.dumps(run.config, indent=1))]
