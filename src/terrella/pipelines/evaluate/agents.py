"""`terrella evaluate MODEL WORLD...`: an agent on held-out instances of worlds.

Success and pass@k with intervals over instances, well-formed replies, steps, tokens and cost,
beside random and optimal play. The model is sampled here, by a vLLM server, or at an endpoint.
    config = AgentEvaluation.Config(model="runs/x", worlds={"sokoban": Sokoban.Config()})
    AgentEvaluation(config).run(progress).worlds["sokoban"].passes["1"]
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import CodecConfig, TaggedCodecConfig, writes_thoughts
from terrella.codecs.tagged import ORDERS, Form
from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.bounds import check_least
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.run_folder import RunFolder
from terrella.core.seeds import NOISE_STRIDE
from terrella.core.tokens import History, Task
from terrella.core.world import World
from terrella.data.row_journal import file_name
from terrella.engines.configs import LearnerConfig
from terrella.engines.engine import load_tokenizer
from terrella.engines.interface import Engine
from terrella.evals.agent_rows import AskedEpisode, EpisodeRow, token_row
from terrella.evals.agent_scores import AgentScores, agent_scores
from terrella.evals.agents import Evaluate, reference_policies, tested_instances
from terrella.evals.endpoint_agent import EndpointAgent
from terrella.evals.reply_counts import ReplyCounts
from terrella.models.names import TINY
from terrella.pipelines.evaluate.base import Cost, Evaluation
from terrella.pipelines.evaluate.models import (
    EPISODE_TOKENS,
    SCRATCH_TURN_TOKENS,
    THINKING_EPISODE_TOKENS,
    ModelIdentity,
)
from terrella.pipelines.evaluate.web_agents import Play, scoring_play
from terrella.pipelines.text_only import require_text
from terrella.pipelines.webrl.language_agent import Act
from terrella.rollout.env_pool import EnvPool
from terrella.rollout.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class AgentResult:
    """What was evaluated, its scores by world, and what it cost."""

    model: ModelIdentity
    worlds: dict[str, AgentScores]
    cost: Cost


class AgentEvaluation(Evaluation[AgentResult]):
    """Plays every instance several times and scores the episodes."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Evaluation.Config):
        samples: int = 8
        """Episodes per instance; pass@k is estimated up to this k."""
        form: Form | None = None
        """Tags of a reply (`codecs/tagged.py`); None is the model's plain form."""
        max_actions: int = 1
        """Actions that one reply may hold; the model is told, and further ones are ignored."""
        thinking: Thinking = "auto"
        """Whether the model is asked to think; auto follows its template, and asks at endpoints."""
        codec: CodecConfig | None = None
        """How a web agent is asked and answers; None asks by `form` and `thinking`."""
        max_turns: int = 0
        """Replies in an episode; 0 is as many as the world has steps."""
        episode_tokens: int = 0
        """Most tokens of an episode after its prompt, the world's included.

        0 is 32,768 for a model that thinks and 4096 for others.
        """
        context_tokens: int = 0
        """Most tokens that the model sees at once, its reply included; 0 is all it can read."""
        history: History = "sampled"
        """What the model sees of earlier turns (`core.tokens.History`)."""
        temperature: float = 1.0
        env_pool: Local[EnvPool.Config] = field(default_factory=EnvPool.Config)
        act: Act = "write"
        """write: the model writes a reply; score: a web agent scores the offered actions."""
        mean_score: bool = False
        """score: compare actions by their mean log-probability per token, not by its sum."""
        scorer: LearnerConfig = field(default_factory=LearnerConfig)
        """score: how the model is loaded that scores."""
        read_instruction: bool = False
        """score: the world's instruction stands before its text."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 1 <= self.samples <= NOISE_STRIDE or self.max_actions < 1:
                raise ConfigError(
                    "evaluate", f"samples must be in 1..{NOISE_STRIDE}, max_actions at least 1"
                )
            check_least(self, episode_tokens=0)
            if self.codec is not None and (self.form is not None or self.thinking != "auto"):
                raise ConfigError(
                    "codec", "says the form and whether to think", "leave out form and thinking"
                )
            if self.act == "score" and not isinstance(self.codec, WebCodecConfig):
                raise ConfigError(
                    "act", "only a web agent scores actions", "set act=write, or name its run"
                )
            self.refuse_at_endpoint("codec", "context_tokens", "history", "act")
            if self.endpoint is not None and self.form is not None and not ORDERS[self.form]:
                raise ConfigError(
                    "form",
                    f"{self.form} has no tags: only a model that was trained to it writes it",
                    f"leave it out, or choose {', '.join(form for form in ORDERS if ORDERS[form])}",
                )

        def settled(self) -> Self:
            settled = super().settled()
            if settled.endpoint is None:
                return settled
            return settled.replace(endpoint=settled.endpoint.replace(max_actions=self.max_actions))

        def longest_reply(self, *, thinks: bool) -> int:
            scratch = SCRATCH_TURN_TOKENS if self.model in TINY else 0
            return self.turn_tokens or scratch or super().longest_reply(thinks=thinks)

        def longest_episode(self, *, thinks: bool) -> int:
            """The limit of an episode: as set, else by whether the model thinks."""
            return self.episode_tokens or (THINKING_EPISODE_TOKENS if thinks else EPISODE_TOKENS)

        @property
        def unused(self) -> tuple[str, ...]:
            return () if self.act == "score" else ("scorer",)

        @property
        def asks_thought(self) -> bool:
            return self.thinking != "off"

        @property
        def asked_temperature(self) -> float:
            return self.temperature

    config: Config
    result_type = AgentResult
    row_key = ("seed", "member")

    def train(self, run: RunFolder) -> AgentResult:
        identity = self.check_model(run)
        worlds = {
            name: run.part(
                f"scores/{file_name(name)}",
                AgentScores,
                functools.partial(self.evaluate, run, name, world),
            )
            for name, world in self.config.worlds.items()
        }
        cost = self.cost([scores.usage for scores in worlds.values()])
        return AgentResult(model=identity, worlds=worlds, cost=cost)

    def evaluate(self, run: RunFolder, name: str, world: World.Config) -> AgentScores:
        """Play what is missing of one world, and score all of it."""
        config = self.config
        asked = self.asked(world)  # before a page is opened: it refuses too many instances
        require_text(world)
        with self.player(run, world) as play:
            rows = self.play_missing(
                run,
                name,
                {each.key: each for each in asked},
                play,
                EpisodeRow,
            )
        measured = Evaluate.Config(
            instances=config.instances, samples=config.samples, split=config.split
        )
        most_actions = (config.max_turns or world.max_steps) * config.max_actions
        return agent_scores(
            rows,
            samples=config.samples,
            reference=reference_policies(world, measured, most_actions=most_actions),
        )

    def asked(self, world: World.Config) -> list[AskedEpisode]:
        """Every episode: each instance as often as there are samples."""
        config = self.config
        measured = Evaluate.Config(instances=config.instances, split=config.split)
        return [
            AskedEpisode(
                instance=instance,
                task=Task(seed=seed, noise_seed=seed * NOISE_STRIDE, split=config.split),
                member=member,
            )
            for instance, seed in tested_instances(world, measured).items()
            for member in range(config.samples)
        ]

    def rollout_config(self, world: World.Config, *, thinks: bool) -> Rollout.Config:
        """The limits of an episode of a model that thinks, or of one that does not."""
        config = self.config
        return Rollout.Config(
            world=world,
            max_turns=config.max_turns or world.max_steps,
            max_actions=config.max_actions,
            turn_tokens=config.longest_reply(thinks=thinks),
            episode_tokens=config.longest_episode(thinks=thinks),
            context_tokens=config.context_tokens,
            history=config.history,
            temperature=config.temperature,
            env_pool=config.env_pool,
        )

    def codec_config(self) -> CodecConfig:
        config = self.config
        if config.codec is not None:
            return config.codec.replace(max_actions=config.max_actions)
        plain = CodecConfig(max_actions=config.max_actions, thinking=config.thinking)
        if config.form is None:
            return plain
        return TaggedCodecConfig(
            max_actions=plain.max_actions, thinking=plain.thinking, form=config.form
        )

    @contextlib.contextmanager
    def player(self, run: RunFolder, world: World.Config) -> Iterator[Play]:
        """What plays an episode of this world: a rollout, or the endpoint."""
        seed, asks_thought = self.config.seed, self.config.asks_thought
        if self.config.endpoint is not None:
            limits = self.rollout_config(world, thinks=asks_thought)
            with (
                self.chat() as threads,
                EndpointAgent(threads, limits, form=self.config.form, thinks=asks_thought) as agent,
            ):
                yield lambda asked: agent.play(asked, seed=seed)
            return
        if self.config.act == "score":
            with self.scoring(run, world) as scoring:
                yield scoring
            return
        with self.sampler(run) as (sampler, tokenizer):
            codec = self.codec_config().make(tokenizer)
            limits = self.rollout_config(world, thinks=writes_thoughts(codec))
            with Rollout(limits, codec) as rollout:

                async def play(asked: AskedEpisode) -> EpisodeRow:
                    episode = await rollout.run_one(sampler, asked.task, asked.member, seed)
                    return token_row(episode, rollout.codec, asked)

                yield play

    @contextlib.contextmanager
    def scoring(self, run: RunFolder, world: World.Config) -> Iterator[Play]:
        """A web agent that scores the offered actions, by a learner that learns nothing."""
        config, model = self.config, self.model_for(run)
        assert isinstance(config.codec, WebCodecConfig)
        engine: Engine = self.engine
        with (
            engine.learner(model, config=config.scorer, work=run / "learner") as learner,
            scoring_play(
                learner,
                config.codec.make(load_tokenizer(model)),
                world,
                mean_score=config.mean_score,
                read_instruction=config.read_instruction,
                temperature=config.temperature,
            ) as play,
        ):
            yield play

    def shown(self, rows: Sequence[Any]) -> dict[str, float]:
        judged = [row for row in rows if row.value is not None]
        written = sum((row.written for row in rows), ReplyCounts())
        shares = {"masked": float(len(rows) - len(judged))}
        if judged:
            shares["success"] = sum(row.won for row in judged) / len(judged)
            turns = sum(row.turns for row in judged)
            shares["well_formed"] = sum(row.well_formed for row in judged) / max(turns, 1)
        if written.truncated:
            shares["truncated"] = written.truncated / written.replies
        return shares
