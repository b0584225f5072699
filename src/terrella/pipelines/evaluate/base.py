"""What both evaluations share: the model, the rows that survive a kill, tokens and cost.

Each world has its rows (`rows/WORLD.jsonl.gz`) and its scores (`scores/WORLD.json`). A killed run
continues with the episodes that are missing. Episodes that an endpoint's failure masked are asked
again as long as the run is unfinished.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

from terrella.core.bounds import check_least, check_not_negative
from terrella.core.config import Local, Recorded, record_from_json
from terrella.core.errors import ConfigError, EngineError
from terrella.core.instances import plain
from terrella.core.run_folder import Manifest, RunFolder
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.row_journal import Key, RowJournal
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Engine, Model
from terrella.evals.endpoint_agent import ChatThreads
from terrella.models.names import TINY
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.evaluate.models import (
    CHAT_TURN_TOKENS,
    THINKING_TURN_TOKENS,
    ModelIdentity,
    check_same,
    identify,
    refuse_practised,
    weights_of,
)
from terrella.policies.chat_client import Usage
from terrella.policies.endpoint import Endpoint

Result = TypeVar("Result")
Job = TypeVar("Job")


class EvaluationRow(Protocol):
    """What both kinds of rows have."""

    @property
    def reason(self) -> str:
        """Why the row says nothing about the model; empty if it does."""
        ...

    @property
    def may_pass(self) -> bool:
        """Whether it failed for a reason that may have passed: a server that was down."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens that were paid for, those of earlier tries included."""
        ...


Row = TypeVar("Row", bound=EvaluationRow)
SHOW_EVERY = 0.5
"""Seconds between two updates of the display."""
LOOK_AFTER = 20
"""Rows after which a server or a world that is down is noticed: no more are asked for."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Tokens of a whole evaluation, and their price where one was given."""

    usage: Usage
    price: float | None = None


class Evaluation(ModelPipeline[Result]):
    """The base of both; `model_for` and `play_missing` are what they use."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        model: Local[str]
        """A run's folder, a Hugging Face folder, a preset, or the address of an endpoint."""
        endpoint: Local[Endpoint.Config | None] = None
        """For an address: how the endpoint is asked."""
        worlds: Recorded[Mapping[str, World.Config]]
        """By the names that they were asked for."""
        instances: int = 100
        """Distinct instances of each world; the same ones for every model."""
        split: Split = Split.TEST
        turn_tokens: int = 0
        """Longest reply; 0 is 2048 for a model that thinks and 256 for others.

        An agent that is made from scratch has 32.
        """
        concurrency: Local[int] = 64
        """Episodes that are played at once; at an endpoint also the requests under way."""
        prompt_price: float = 0.0
        """Price of a million prompt tokens at the endpoint."""
        reply_price: float = 0.0
        """Price of a million written tokens."""
        out: Path = Path("runs/evaluate")

        def __post_init__(self) -> None:
            if not self.worlds:
                raise ConfigError("worlds", "no world named", "terrella evaluate MODEL WORLD...")
            check_not_negative(self)
            check_least(self, instances=1, concurrency=1)

        def settled(self) -> Self:
            """The same config, with the limits of the evaluation in the endpoint's settings."""
            if self.endpoint is None:
                return self
            longest = self.longest_reply(thinks=self.asks_thought)
            limits = {"max_tokens": longest, "temperature": self.asked_temperature}
            return self.replace(endpoint=self.endpoint.replace(**limits))

        def refuse_at_endpoint(self, *names: str) -> None:
            """Refuse settings of prompts that are written here, for a model elsewhere."""
            fields = type(self).__dataclass_fields__
            changed = [each for each in names if getattr(self, each) != fields[each].default]
            if self.endpoint is not None and changed:
                raise ConfigError(
                    changed[0],
                    "is for models that are sampled here: an endpoint writes its own prompts",
                    "leave it out, or name the model's folder",
                )

        def longest_reply(self, *, thinks: bool) -> int:
            """The limit of a reply: as set, else by whether the model thinks."""
            return self.turn_tokens or (THINKING_TURN_TOKENS if thinks else CHAT_TURN_TOKENS)

        @property
        def asks_thought(self) -> bool:
            """Whether an endpoint is asked for a thought."""
            return False

        @property
        def asked_temperature(self) -> float:
            """The temperature at which the model is sampled: greedily."""
            return 0.0

    config: Config
    row_key: ClassVar[tuple[str, ...]] = ("seed",)
    """Columns that tell the rows of a world apart."""
    ignored: ClassVar[tuple[str, ...]] = (
        "out",
        "concurrency",
        "endpoint.timeout",
        "endpoint.retries",
        "endpoint.backoff",
        "endpoint.patience",
        "endpoint.key_variable",
    )

    @property
    def needs_engine(self) -> bool:
        return self.config.endpoint is None

    def is_finished(self, manifest: Manifest) -> bool:
        """A finished evaluation is of the model that is there now, or is refused."""
        known = record_from_json(ModelIdentity, manifest.metrics["model"])
        weights = "" if self.config.endpoint else weights_of(self.config.model)
        if weights and Path(weights).is_dir():  # presets and names on a hub do not change
            check_same(known, identify(weights), self.config.out)
        return True

    # --- the model --------------------------------------------------------------------------------

    def model_for(self, run: RunFolder) -> Model:
        """The weights; a model from scratch is made in the run's folder, for all its worlds."""
        vocabulary: dict[str, None] = {}
        if self.config.model in TINY:
            for config in self.config.worlds.values():
                world: World = config.build()
                world.reset(seed=0, options={"split": self.config.split})
                vocabulary |= dict.fromkeys(world.vocabulary())
        return start_model(
            weights_of(self.config.model),
            run / "start",
            vocabulary=tuple(vocabulary),
            seed=self.config.seed,
        )

    def check_model(self, run: RunFolder) -> ModelIdentity:
        """What is evaluated; a folder that was begun with another model is refused."""
        refuse_practised(self.config.model, self.config.worlds)
        endpoint = self.config.endpoint
        if endpoint is not None:
            now = ModelIdentity(kind="endpoint", name=endpoint.model, url=endpoint.url)
        else:
            now = identify(self.model_for(run))
        known = run.part("identity", ModelIdentity, lambda: now)
        check_same(known, now, run.path)
        return known

    @contextlib.contextmanager
    def chat(self) -> Iterator[ChatThreads]:
        """The endpoint, asked with this evaluation's limits."""
        endpoint = self.config.settled().endpoint
        assert endpoint is not None
        with ChatThreads(endpoint.build(), self.config.concurrency) as threads:
            yield threads

    @contextlib.contextmanager
    def sampler(self, run: RunFolder) -> Iterator[tuple[Any, Any]]:
        """A sampler of the model, and its tokenizer."""
        model = self.model_for(run)
        engine: Engine = self.engine
        with engine.sampler(model) as sampler:
            yield sampler, load_tokenizer(model)

    # --- rows -------------------------------------------------------------------------------------

    def play_missing(
        self,
        run: RunFolder,
        name: str,
        jobs: Mapping[Key, Job],
        play: Callable[[Job], Awaitable[Row]],
        kind: type[Row],
    ) -> list[Row]:
        """The rows of all jobs, in their order; only those are played that are missing."""
        with RowJournal(run / "rows", name, key=self.row_key) as journal:
            known = {key: record_from_json(kind, row) for key, row in journal.rows.items()}
            done = {key: row for key, row in known.items() if key in jobs and not row.may_pass}
            run.progress.phase(name, len(jobs))
            run.progress.advance(len(done))
            watch = _Watch(name)

            def keep(key: Key, row: Row) -> None:
                if key in known:  # its first try was paid for, too
                    row = with_usage(row, row.usage + known[key].usage)
                journal.append(plain(row))
                done[key] = row
                if watch.is_due() or len(done) == len(jobs):
                    run.progress.advance(len(done), **self.shown(list(done.values())))
                watch.count(row.reason)

            missing = [(key, job) for key, job in jobs.items() if key not in done]
            asyncio.run(_play_all(missing, play, keep, self.config.concurrency))
            journal.rows = {key: plain(done[key]) for key in jobs}
            journal.finish()
        return [done[key] for key in jobs]

    def shown(self, rows: Sequence[Any]) -> dict[str, float]:
        """What the progress display shows of the rows so far."""
        return {}

    def cost(self, usages: Sequence[Usage]) -> Cost:
        usage = sum(usages, Usage())
        config = self.config
        if not config.prompt_price and not config.reply_price:
            return Cost(usage=usage)
        return Cost(usage=usage, price=usage.cost(config.prompt_price, config.reply_price))


def with_usage(row: Row, usage: Usage) -> Row:
    """A copy of a row with another count of tokens."""
    changed: Any = dataclasses.replace(cast(Any, row), usage=usage)
    return cast(Row, changed)


async def _play_all(
    jobs: Sequence[tuple[Key, Job]],
    play: Callable[[Job], Awaitable[Row]],
    keep: Callable[[Key, Row], None],
    at_once: int,
) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(key: Key, job: Job) -> None:
        async with gate:
            keep(key, await play(job))

    await asyncio.gather(*(one(key, job) for key, job in jobs))


@dataclass
class _Watch:
    """Ends an evaluation whose server or world is down, instead of masking all of it."""

    name: str
    rows: int = 0
    failed: int = 0
    first: str = ""
    shown: float = 0.0

    def is_due(self) -> bool:
        """Whether the display is old enough to be drawn again."""
        now = time.monotonic()
        if now - self.shown < SHOW_EVERY:
            return False
        self.shown = now
        return True

    def count(self, reason: str) -> None:
        self.rows += 1
        self.failed += bool(reason)
        self.first = self.first or reason
        if self.rows >= LOOK_AFTER and self.failed * 2 > self.rows:
            raise EngineError(
                self.name,
                f"{self.failed} of {self.rows} episodes failed; the first: {self.first}",
                "mend the cause and run the same command again: it continues",
            )
