"""`terrella evaluate MODEL WORLD --as world-model`: is what a model predicts what happens?

Accuracy on steps that change the observation, on steps that do not, and overall, beside predicting
no change; the share of replies that cannot be read; and accuracy by horizon, where the model
continues from its own predictions. For world models of ours and for any chat model.
    config = WorldModelEvaluation.Config(model="runs/lake", worlds={"frozen_lake": lake})
    WorldModelEvaluation(config).run(progress).worlds["frozen_lake"].changed
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import CodecConfig, writes_thoughts
from terrella.codecs.pages import PageCodecConfig
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.run_folder import RunFolder
from terrella.core.world import World
from terrella.data.row_journal import Key, file_name
from terrella.evals.agents import Evaluate, tested_instances
from terrella.evals.prediction_scores import PredictionScores, prediction_scores
from terrella.evals.predictions import (
    EndpointPredictor,
    PredictionRow,
    Predictor,
    TokenPredictor,
    predict_instance,
)
from terrella.evals.reply_counts import ReplyCounts
from terrella.pipelines.evaluate.base import Cost, Evaluation
from terrella.pipelines.evaluate.models import ModelIdentity
from terrella.pipelines.evaluate.page_predictor import AskedPages, page_predictor
from terrella.pipelines.text_only import require_text
from terrella.policies.basic import Random, require_policy
from terrella.rollout.tasks import PredictionTasks


@dataclass(frozen=True, kw_only=True)
class WorldModelScores:
    """What was evaluated, its scores by world, and what it cost."""

    model: ModelIdentity
    worlds: dict[str, PredictionScores]
    cost: Cost


class WorldModelEvaluation(Evaluation[WorldModelScores]):
    """Asks for steps of test instances, greedily, one episode of a policy for each instance."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Evaluation.Config):
        policy: Configurable.Config = field(default_factory=Random.Config)
        """Takes the steps that are predicted."""
        thinking: Thinking = "auto"
        """Whether the model is asked to think; auto follows its template, and does not at
        endpoints."""
        codec: PageCodecConfig | None = None
        """How a page model is asked for changes; None asks for the next observation."""
        context_tokens: int = 0
        """Most tokens of a page model's question and answer; 0 is what it can read.

        Of a longer page it is shown a part.
        """
        steps: int = 4
        """Steps of an episode that are predicted from real observations, drawn uniformly."""
        horizon: int = 5
        """Steps ahead in imagination, from the first observation on."""

        def __post_init__(self) -> None:
            super().__post_init__()
            require_policy(self.policy)
            if min(self.steps, self.horizon) < 1:
                raise ConfigError("evaluate", "steps and horizon must be at least 1")
            if self.codec is not None and self.thinking != "auto":
                raise ConfigError("thinking", "is the codec's", "set codec.thinking")
            if self.context_tokens and self.codec is None:
                raise ConfigError(
                    "context_tokens", "is for page models, whose pages can be cut", "leave it out"
                )
            self.refuse_at_endpoint("codec")

        @property
        def asks_thought(self) -> bool:
            return self.thinking == "on"

    config: Config
    result_type = WorldModelScores

    def train(self, run: RunFolder) -> WorldModelScores:
        identity = self.check_model(run)
        worlds = {
            name: run.part(
                f"scores/{file_name(name)}",
                PredictionScores,
                functools.partial(self.evaluate, run, name, world),
            )
            for name, world in self.config.worlds.items()
        }
        cost = self.cost([scores.usage for scores in worlds.values()])
        return WorldModelScores(model=identity, worlds=worlds, cost=cost)

    def evaluate(self, run: RunFolder, name: str, world: World.Config) -> PredictionScores:
        """Ask for what is missing of one world, and score all of it."""
        config = self.config
        measured = Evaluate.Config(instances=config.instances, split=config.split)
        named = tested_instances(world, measured)
        require_text(world)
        tasks = PredictionTasks(world, config.policy, split=config.split)
        verifier = world.build().verifier
        jobs: dict[Key, tuple[str, int]] = {(seed,): (each, seed) for each, seed in named.items()}
        with self.predictor(run) as predictor:

            async def predict(job: tuple[str, int]) -> PredictionRow:
                instance, seed = job
                return await predict_instance(
                    predictor,
                    verifier,
                    instance,
                    tasks.episode(seed),
                    steps=config.steps,
                    horizon=config.horizon,
                )

            rows = self.play_missing(run, name, jobs, predict, PredictionRow)
        return prediction_scores(rows)

    @contextlib.contextmanager
    def predictor(self, run: RunFolder) -> Iterator[Predictor]:
        """The model as one that predicts: sampled here, or asked at the endpoint."""
        if self.config.endpoint is not None:
            with self.chat() as threads:
                yield EndpointPredictor(threads, thinks=self.config.asks_thought)
            return
        config = self.config
        with self.sampler(run) as (sampler, tokenizer):
            codec = (config.codec or CodecConfig(thinking=config.thinking)).make(tokenizer)
            turn_tokens = config.longest_reply(thinks=writes_thoughts(codec))
            if config.codec is not None:
                asked = AskedPages(
                    codec=config.codec,
                    turn_tokens=turn_tokens,
                    context_tokens=config.context_tokens,
                )
                yield page_predictor(sampler, tokenizer, self.model_for(run), asked)
                return
            yield TokenPredictor(sampler, codec, turn_tokens=turn_tokens)

    def shown(self, rows: Sequence[Any]) -> dict[str, float]:
        steps = [step for row in rows for step in row.steps if step.value is not None]
        if not steps:
            return {}
        shares = {"accuracy": sum(step.value == 1.0 for step in steps) / len(steps)}
        written = sum((step.written for step in steps), ReplyCounts())
        if written.truncated:
            shares["truncated"] = written.truncated / written.replies
        return shares
