"""A small web agent from recorded successes, and a comparison of acting with and without planning.

`WebPolicy` fits an agent to the steps of recorded successes. `SampledProposals` samples it several
times per page and counts. `compare_agents` plays the same instances at each depth of look-ahead.
    config = LookAhead.Config(policy=web_policy(), page_model=Path("runs/page_model/rl/model"))
    episodes = compare_agents(config, Path("mpc.jsonl"), progress)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.config import Configurable, Local, record_from_json
from terrella.core.episode import play
from terrella.core.files import read_json_lines
from terrella.core.protocols import Progress, Sampler
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import TokenRequest, TrainExample
from terrella.core.types import Episode, Situation, Split, canonical_json, show_text
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.engines.configs import EngineConfig, SftConfig
from terrella.engines.engine import load_tokenizer, open_sampler, start_model
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.web.page_steps import MAX_PAGE, situation_of
from terrella.world_models.language import LearnedWorldModel
from terrella.world_models.planner_web import PageCodec, PagePlanner, Proposals
from terrella.worlds.miniwob.env import MiniWob, legal
from terrella.worlds.miniwob.families import held_out
from terrella.worlds.miniwob.scripts import SCRIPTS

MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class WebPolicyResult:
    """How many recorded steps were imitated."""

    examples: int


class WebPolicy(ModelPipeline[WebPolicyResult]):
    """Imitation of recorded successes. The model is in the folder `model` of the run."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        train: Local[Path]
        """A store of recorded episodes."""
        model: Local[str] = "tiny-0.3m"
        sft: SftConfig = field(default_factory=SftConfig)
        out: Path = Path("runs/web_policy")

    config: Config
    result_type = WebPolicyResult

    def train(self, run: RunFolder) -> WebPolicyResult:
        config = self.config
        vocabulary = config.world.build().vocabulary()
        start = start_model(config.model, run / "start", vocabulary=vocabulary, seed=config.seed)
        codec = InterleavedCodec(load_tokenizer(start))
        examples: list[TrainExample] = []
        for episode in EpisodeStore.open(config.train).episodes():
            examples += _success_examples(episode, codec)
        run.model(
            MODEL,
            lambda folder: self.engine.sft(
                start,
                examples,
                config.sft,
                folder,
                seed=config.seed,
                progress=run.progress,
            ),
        )
        return WebPolicyResult(examples=len(examples))

    def summary(self, result: WebPolicyResult) -> list[tuple[str, str]]:
        return [("imitated steps", f"{result.examples:,}")]


def _success_examples(episode: Episode, codec: InterleavedCodec) -> list[TrainExample]:
    """Steps of a success that changed the page or ended the episode."""
    if episode.outcome.value != 1.0:
        return []
    examples = []
    for step in episode.transitions:
        if (step.changed or step.terminated) and len(show_text(step.observation)) <= MAX_PAGE:
            reply = codec.answer_action([step.action])
            example = TrainExample(
                prompt_ids=codec.ask_action(situation_of(step)),
                completion_ids=reply,
                mask=(True,) * len(reply),
            )
            examples.append(example)
    return examples


class SampledProposals:
    """Samples a policy `samples` times per page; the most frequent action comes first."""

    def __init__(
        self,
        sampler: Sampler,
        codec: InterleavedCodec,
        *,
        samples: int = 8,
        turn_tokens: int = 40,
        seed: int = 0,
    ) -> None:
        """The first sample is greedy, the others are drawn."""
        self.sampler = sampler
        self.codec = codec
        self.samples = samples
        self.turn_tokens = turn_tokens
        self.seed = seed
        self.calls = 0

    def propose(self, situations: Sequence[Situation]) -> list[Proposals]:
        """(action, fraction of the samples) for each page; only actions that the page offers."""
        return asyncio.run(self._propose_all(situations))

    async def _propose_all(self, situations: Sequence[Situation]) -> list[Proposals]:
        return list(await asyncio.gather(*map(self._propose_one, situations)))

    async def _propose_one(self, situation: Situation) -> Proposals:
        prompt = self.codec.ask_action(situation)
        requests = [
            TokenRequest(
                prompt_ids=prompt,
                max_new_tokens=self.turn_tokens,
                seed=self.seed * 1000 + number,
                temperature=1.0 if number else 0.0,
                stop_ids=self.codec.stop_ids,
            )
            for number in range(self.samples)
        ]
        self.calls += self.samples
        replies = await asyncio.gather(*map(self.sampler.sample, requests))
        parsed = [self.codec.read_actions(reply.token_ids) for reply in replies]
        first = [actions[0] for actions in parsed if actions]
        counts = Counter(action for action in first if action in situation.actions)
        if not counts:  # no reply is an offered action: the first candidate is as good as any
            counts.update(situation.actions[:1])
        total = counts.total()
        return [(action, count / total) for action, count in counts.most_common()]


class LookAhead(Configurable):
    """Settings of the comparison."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        policy: WebPolicy.Config
        page_model: Local[Path]
        depths: tuple[int, ...] = (0, 1, 2)
        """Steps of look-ahead, one arm each."""
        episodes: int = 100
        split: Split = Split.TEST
        samples: int = 2
        """Samples of the page model per prediction."""
        planner: PagePlanner.Config = field(default_factory=PagePlanner.Config)


@dataclass(frozen=True, kw_only=True)
class PlayedEpisode:
    """One episode of one arm, as it is kept in the log."""

    arm: str
    seed: int
    success: float | None
    steps: int
    calls: int
    """Model calls of the whole episode."""
    family: str
    error: str


def compare_agents(config: LookAhead.Config, log: Path, progress: Progress) -> list[PlayedEpisode]:
    """Play the same instances at each depth; episodes that are in the log are not played again."""
    policy = WebPolicy(config.policy)
    policy.run(progress)
    proposals = sampled_proposals(config.policy.out / MODEL, config.policy)
    model = _page_model(config)
    world: MiniWob = MiniWob.Config(max_steps=6, families=trained_families()).build()
    logged = read_json_lines(log) if log.exists() else []
    episodes = [record_from_json(PlayedEpisode, row) for row in logged]
    known = {(episode.arm, episode.seed) for episode in episodes}
    for seed in range(config.episodes):
        for depth in config.depths:
            if (f"depth {depth}", seed) in known:
                continue
            planner = PagePlanner(config.planner.replace(depth=depth), proposals, model, legal)
            episode = _play(world, planner, seed, config.split)
            episodes.append(episode)
            with log.open("a", encoding="utf-8") as file:
                file.write(canonical_json(asdict(episode)) + "\n")
    return episodes


def _play(world: MiniWob, planner: PagePlanner, seed: int, split: Split) -> PlayedEpisode:
    episode = play(world, planner, seed=seed, split=split)
    return PlayedEpisode(
        arm=f"depth {planner.config.depth}",
        seed=seed,
        success=episode.outcome.value,
        steps=len(episode.transitions),
        calls=planner.cost.calls,
        family=world.family,
        error=episode.error,
    )


def trained_families() -> tuple[str, ...]:
    """The families that the policy was trained on; their held-out seeds are played."""
    return held_out(Split.TRAIN, tuple(sorted(SCRIPTS)))


def sampled_proposals(folder: Path, config: EngineConfig | None = None) -> SampledProposals:
    """Proposals of the policy in a folder."""
    sampler = open_sampler(folder, config, work=folder.with_name("engine"))
    return SampledProposals(sampler, InterleavedCodec(load_tokenizer(folder)))


def _page_model(config: LookAhead.Config) -> LearnedWorldModel:
    tokenizer = load_tokenizer(config.page_model)
    work = config.page_model.with_name("engine")
    return LearnedWorldModel(
        open_sampler(config.page_model, config.policy, work=work),
        PageCodec(tokenizer),
        tokenizer,
        samples=config.samples,
        turn_tokens=64,
    )
