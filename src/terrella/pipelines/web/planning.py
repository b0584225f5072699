"""`terrella plan PAGE_MODEL WORLD`: a web agent that looks ahead in a page model, measured.

The same instances are played at each depth of look-ahead; depth 0 acts on the proposals alone. Each
part can be a model in a folder, a model behind an endpoint, or an oracle that knows the real world:
so it can be seen which part costs what. Every episode is a row that survives a kill.
    config = WebPlan.Config(world=MiniWob.Config(), proposer="runs/web_policy", page_model="real")
    WebPlan(config).run(progress).depths["1"].gain
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from terrella.codecs.chat_template import Thinking
from terrella.codecs.pages import PageCodecConfig
from terrella.core.config import Local, record_from_json
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.instances import plain
from terrella.core.protocols import Sampler, WorldModel
from terrella.core.run_folder import RunFolder, read_manifest
from terrella.core.seeds import instance_seed
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.row_journal import Key, RowJournal
from terrella.engines.engine import load_tokenizer, start_model
from terrella.engines.interface import Model
from terrella.evals.endpoint_agent import ChatThreads
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.evaluate.models import (
    ModelIdentity,
    check_same,
    identify,
    is_address,
    run_of,
    weights_of,
)
from terrella.pipelines.evaluate.page_predictor import AskedPages
from terrella.pipelines.evaluate.talk import page_settings, proposer_settings
from terrella.pipelines.web.page_agent import (
    AskedAgent,
    EndpointPageAgent,
    ModelValue,
    PageAgent,
    RandomPageAgent,
    SampledProposals,
)
from terrella.pipelines.web.page_cut import CutPages
from terrella.pipelines.web.planned_episodes import (
    DepthScores,
    PlannedEpisode,
    depth_scores,
    planned_episode,
    success_so_far,
)
from terrella.pipelines.web.real_pages import RealPages, RightActionAmong, TrueValue
from terrella.policies.endpoint import Endpoint
from terrella.world_models.language import LearnedWorldModel
from terrella.world_models.planner_web import (
    ActionProposer,
    PagePlanner,
    PageReplies,
    PageValue,
)
from terrella.worlds.miniwob.env import legal

logger = logging.getLogger("terrella")

REAL = "real"
"""In place of a page model: a copy of the real world."""
RANDOM = "random"
"""In place of a proposer: draws from what a page offers."""
REWARD, TRUE = "reward", "true"
"""Values that need no model: the predicted reward, and what the expert makes of the real page."""
NO_MODEL = (REAL, RANDOM, REWARD, TRUE)


MOST_UNREAD = 0.2
"""Above this share of unread replies, a warning says that success is hardly the model's."""
UNREAD = (
    "depth %s: %.0f%% of the replies of the proposer and the value could not be read; where no "
    "reply holds an action that the page allows, the first offered one is played"
)
ORACLE_PRIOR = 0.01
"""`prior_weight` beside the true value, which a wasted step costs 5%: preferences break ties."""


StartSampler = Callable[[str], tuple[contextlib.AbstractContextManager[Sampler], Model]]


@dataclass(frozen=True, kw_only=True)
class WebPlanResult:
    """What was played, by depth."""

    models: dict[str, ModelIdentity]
    depths: dict[str, DepthScores]


class WebPlan(ModelPipeline[WebPlanResult]):
    """Plays held-out instances with and without look-ahead."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        proposer: Local[str]
        """Proposes actions: a run's folder, a model, an endpoint's address, or `random`."""
        page_model: Local[str] = REAL
        """Predicts pages: a run's folder, or `real`, a copy of the world."""
        value: Local[str] = REWARD
        """Values pages: `reward` (as predicted), `true`, a chat model, or an endpoint's address."""
        right_action: bool = False
        """Oracle: the expert's action is always among the proposals."""
        proposer_endpoint: Local[Endpoint.Config | None] = None
        value_endpoint: Local[Endpoint.Config | None] = None
        depths: tuple[int, ...] = (0, 1, 2)
        """Steps of look-ahead; every instance is played at each."""
        instances: int = 40
        split: Split = Split.TEST
        proposer_samples: int = 8
        value_samples: int = 4
        model_samples: int = 2
        """Samples of the page model per prediction."""
        turn_tokens: int = 40
        """Longest reply of a proposer or a value that is sampled here; endpoints have their own.

        A WebRL run has its own, too.
        """
        thinking: Thinking = "off"
        """Whether chat models that are sampled here think first; give them turn_tokens for it.

        The proposer of a run is asked as in its run.
        """
        context_tokens: int = 0
        """Most tokens of their prompt and reply; 0 sets no bound."""
        concurrency: Local[int] = 8
        """Requests under way at an endpoint."""
        planner: PagePlanner.Config = field(default_factory=PagePlanner.Config)
        """Its depth is replaced by each of `depths`."""
        out: Path = Path("runs/web_plan")

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.depths or min(self.depths) < 0 or self.instances < 1:
                raise ConfigError("web_plan", "needs depths >= 0 and at least one instance")

    config: Config
    result_type = WebPlanResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "concurrency")

    @property
    def needs_engine(self) -> bool:
        names = (self.config.proposer, self.config.page_model, self.config.value)
        return not all(is_address(name) or name in NO_MODEL for name in names)

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        super().check_settings(ranks=ranks, machines=machines)
        if not is_address(self.config.proposer) and self.config.proposer != RANDOM:
            proposer_settings(self.config.proposer)

    def train(self, run: RunFolder) -> WebPlanResult:
        models = self.check_models(run)
        rows = self.play_missing(run)
        depths = depth_scores(rows)
        for depth, scores in depths.items():
            if scores.unread > MOST_UNREAD:
                logger.warning(UNREAD, depth, 100 * scores.unread)
        return WebPlanResult(models=models, depths=depths)

    # --- models -----------------------------------------------------------------------------------

    def check_models(self, run: RunFolder) -> dict[str, ModelIdentity]:
        """What is used; a folder that was begun with other weights is refused."""
        config = self.config
        now = {}
        for part in ("proposer", "page_model", "value"):
            name = getattr(config, part)
            if is_address(name):
                now[part] = ModelIdentity(
                    kind="endpoint", name=_endpoint(config, part).model, url=name
                )
            elif name not in NO_MODEL:
                now[part] = identify(weights_of(name))
        known = run.part("models", dict[str, ModelIdentity], lambda: now)
        for part, identity in now.items():
            check_same(known[part], identity, run.path)
        return known

    def engine_sampler(self, run: RunFolder) -> StartSampler:
        """Samplers of the engine, by the names of models or runs."""

        def start(name: str) -> tuple[contextlib.AbstractContextManager[Sampler], Model]:
            weights = start_model(weights_of(name), run / "start", seed=self.config.seed)
            return self.engine.sampler(weights), weights

        return start

    @contextlib.contextmanager
    def parts(self, run: RunFolder, real: RealPages) -> Iterator[_Parts]:
        """The proposer, the page model and the value, open while episodes are played."""
        config = self.config
        with contextlib.ExitStack() as stack:
            samplers = _Samplers(self.engine_sampler(run), stack)
            agent = self._agent("proposer", samplers, stack)
            sampled = SampledProposals(agent, samples=config.proposer_samples, seed=config.seed)
            proposer: ActionProposer = sampled
            if config.right_action:
                proposer = RightActionAmong(sampled, real, width=config.planner.width)
            model: WorldModel = real
            if config.page_model != REAL:
                model = self._page_model(samplers)
            value: PageValue | None = None
            if config.value == TRUE:
                value = TrueValue(real)
            elif config.value != REWARD:
                judge = self._agent("value", samplers, stack)
                value = ModelValue(judge, samples=config.value_samples, seed=config.seed)
            yield _Parts(proposer, model, value, sampled)

    def _agent(self, part: str, samplers: _Samplers, stack: contextlib.ExitStack) -> PageAgent:
        config = self.config
        name = getattr(config, part)
        if is_address(name):
            settings = _endpoint(config, part).replace(url=name)
            threads = ChatThreads(settings.build(), config.concurrency)
            return EndpointPageAgent(stack.enter_context(threads))
        if name == RANDOM:
            return RandomPageAgent()
        sampler, weights = samplers.open(name)
        asked = AskedAgent(
            codec=PageCodecConfig(thinking=config.thinking),
            turn_tokens=config.turn_tokens,
            context_tokens=config.context_tokens,
        )
        if part == "proposer":
            asked = replace(asked, **proposer_settings(name))
        return asked.make(sampler, load_tokenizer(weights))

    def _page_model(self, samplers: _Samplers) -> CutPages:
        """The page model, asked as it was trained; of a page that does not fit, about a part."""
        trained = asked_pages(self.config.page_model)
        sampler, weights = samplers.open(self.config.page_model)
        tokenizer = load_tokenizer(weights)
        codec = trained.codec.make(tokenizer)
        model = LearnedWorldModel(
            sampler,
            cast(Any, PageReplies(codec)),  # what a prediction needs of a codec
            tokenizer,
            samples=self.config.model_samples,
            turn_tokens=trained.turn_tokens,
            seed=self.config.seed,
        )
        return CutPages(model, trained.fits(codec, weights))

    # --- episodes ---------------------------------------------------------------------------------

    def play_missing(self, run: RunFolder) -> list[PlannedEpisode]:
        """The rows of all episodes, in their order; only those are played that are missing."""
        config = self.config
        seeds = [instance_seed(config.seed, index) for index in range(config.instances)]
        keys: list[Key] = [(depth, seed) for seed in seeds for depth in config.depths]
        with RowJournal(run / "rows", "episodes", key=("depth", "seed")) as journal:
            done = {key: record_from_json(PlannedEpisode, row) for key, row in journal.rows.items()}
            done = {key: row for key, row in done.items() if key in keys and not row.may_pass}
            run.progress.phase("plan", len(keys))
            run.progress.advance(len(done), **success_so_far(list(done.values())))
            missing = [key for key in keys if key not in done]
            if missing:
                for row in self._play_all(run, missing):
                    journal.append(plain(row))
                    done[(row.depth, row.seed)] = row
                    run.progress.advance(len(done), **success_so_far(list(done.values())))
            journal.rows = {key: plain(done[key]) for key in keys}
            journal.finish()
        return [done[key] for key in keys]

    def _play_all(self, run: RunFolder, keys: Sequence[Key]) -> Iterator[PlannedEpisode]:
        config = self.config
        world: World = config.world.build()
        real = RealPages(config.world)
        with self.parts(run, real) as parts:
            for depth, seed in keys:
                real.begin(seed=seed, split=config.split)
                planner = PagePlanner(
                    config.planner.replace(depth=depth),
                    parts.proposer,
                    parts.model,
                    legal,
                    parts.value,
                )
                before = parts.counts()
                episode = play(world, planner, seed=seed, split=config.split)
                counts = {name: n - before[name] for name, n in parts.counts().items()}
                yield planned_episode(episode, world, planner, counts)

    def summary(self, result: WebPlanResult) -> list[tuple[str, str]]:
        rows = []
        for depth, scores in result.depths.items():
            gain = (
                ""
                if scores.gain is None
                else f"; gain {scores.gain.mean:+.3f}{scores.gain.interval}"
            )
            cost = f"; {scores.calls_per_step:.1f} calls a step, {scores.unread:.0%} unread"
            rows.append((f"success, depth {depth}", f"{scores.success or 'masked'}{gain}{cost}"))
        return rows


@dataclass(frozen=True)
class _Parts:
    proposer: ActionProposer
    model: WorldModel
    value: PageValue | None
    sampled: SampledProposals

    def counts(self) -> dict[str, int]:
        """So far: replies, those that could not be read, and pages without the right proposal."""
        models: list[SampledProposals | ModelValue] = [self.sampled]
        if isinstance(self.value, ModelValue):
            models.append(self.value)
        counts = {
            "asked": sum(model.calls for model in models),
            "unread": sum(model.unread for model in models),
        }
        if isinstance(self.proposer, RightActionAmong):
            counts |= {"pages": self.proposer.pages, "missing": self.proposer.missing}
        return counts


class _Samplers:
    """Samplers of a plan's models; one that serves a single model at a time is refused."""

    def __init__(self, start: StartSampler, stack: contextlib.ExitStack) -> None:
        self.start = start
        self.stack = stack
        self.known: dict[str, tuple[Sampler, Model]] = {}

    def open(self, name: str) -> tuple[Sampler, Model]:
        """The sampler of a model, by the name that the config gives it, and its weights."""
        if name not in self.known:
            context, weights = self.start(name)
            sampler = self.stack.enter_context(context)
            for other, (known, _) in self.known.items():
                if known is sampler:
                    raise ConfigError(
                        "sampler",
                        f"one server cannot serve {other} and {name} in turns",
                        "serve one of them elsewhere (`vllm serve`) and give its address",
                    )
            self.known[name] = sampler, weights
        return self.known[name]


def _endpoint(config: WebPlan.Config, part: str) -> Endpoint.Config:
    endpoint: Endpoint.Config | None = getattr(config, f"{part}_endpoint", None)
    if endpoint is None:
        raise ConfigError(
            part, "which model of this endpoint?", f"set {part}_endpoint, or --{part}-name"
        )
    return endpoint


def planner_for(value: str) -> PagePlanner.Config:
    """The planner's settings beside this value; beside the true one preferences break ties."""
    planner = PagePlanner.Config()
    return planner.replace(prior_weight=ORACLE_PRIOR) if value == TRUE else planner


def asked_pages(model: str) -> AskedPages:
    """How a page model was trained to be asked, from its run's manifest."""
    from terrella.pipelines.web.page_model import PageModel

    run = run_of(model)
    config: Mapping[str, Any] = read_manifest(run).config if run else {}
    if str(config.get("class", "")).rpartition(":")[2] != PageModel.__name__:
        raise ConfigError(
            model,
            "is not the folder of a finished page model",
            "`terrella train-world-model page_model` makes one; `real` is a copy of the world",
        )
    return AskedPages(**page_settings(config))
