"""A web agent that imitates the steps of recorded successes: a small model or a chat model.

It proposes actions to the planner (`pipelines/web/planning.py`), which asks it with the same words.
    WebPolicy(web_policy().replace(train=Path("runs/pages/train"))).run(progress)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from terrella.codecs.choose import sft_targets
from terrella.codecs.pages import PageCodecConfig
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec
from terrella.core.run_folder import RunFolder
from terrella.core.tokens import TrainExample
from terrella.core.types import Episode, Situation, show_text
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.engines.configs import SftConfig
from terrella.engines.engine import load_tokenizer, max_positions, start_model
from terrella.models.names import TINY
from terrella.pipelines.base import ModelPipeline
from terrella.verify.tree import parse
from terrella.worlds.miniwob.env import legal

logger = logging.getLogger("terrella")

MODEL = "model"
ASKED = PageCodecConfig(thinking="off")
"""How the agent is asked: recorded steps hold no thoughts."""


@dataclass(frozen=True, kw_only=True)
class WebPolicyResult:
    """How many recorded steps were imitated."""

    examples: int
    left_out: int
    """Steps whose page is longer than `page_characters` or than the model's context."""


class WebPolicy(ModelPipeline[WebPolicyResult]):
    """Imitation of recorded successes. The model is in the folder `model` of the run."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        world: World.Config
        train: Local[Path]
        """A store of recorded episodes."""
        model: Local[str] = "tiny-0.3m"
        page_characters: int = 0
        """Leave out longer pages; 0 sets no bound."""
        context_tokens: int = 0
        """Leave out longer examples; 0 is what the model can read."""
        sft: SftConfig = field(default_factory=SftConfig)
        out: Path = Path("runs/web_policy")

    config: Config
    result_type = WebPolicyResult

    def preflight(self) -> None:
        super().preflight()
        EpisodeStore.open(self.config.train)

    def train(self, run: RunFolder) -> WebPolicyResult:
        config = self.config
        vocabulary: tuple[str, ...] = ()
        if config.model in TINY:
            vocabulary = config.world.build().vocabulary()
        start = start_model(config.model, run / "start", vocabulary=vocabulary, seed=config.seed)
        codec = ASKED.make(load_tokenizer(start))
        limit = config.context_tokens or max_positions(start)
        steps = [
            step
            for episode in EpisodeStore.open(config.train).episodes()
            for step in success_steps(episode)
        ]
        examples = [
            example
            for situation, action in steps
            if not config.page_characters
            or len(show_text(situation.observation)) <= config.page_characters
            if _length(example := action_example(codec, situation, action)) <= limit
        ]
        if not examples:
            raise ConfigError(
                str(config.train),
                f"none of {len(steps)} steps of successes fits",
                "raise the limits",
            )
        left_out = len(steps) - len(examples)
        if left_out:
            logger.warning("%s: %d of %d steps are too long", config.train, left_out, len(steps))
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
        return WebPolicyResult(examples=len(examples), left_out=left_out)

    def summary(self, result: WebPolicyResult) -> list[tuple[str, str]]:
        return [
            ("imitated steps", f"{result.examples:,}"),
            ("too long", f"{result.left_out:,}"),
        ]


def success_steps(episode: Episode) -> list[tuple[Situation, str]]:
    """Steps of a success that changed the page or ended the episode: what to do where."""
    if episode.outcome.value != 1.0:
        return []
    steps = []
    for number, step in enumerate(episode.transitions):
        if step.changed or step.terminated:
            situation = Situation(
                instruction="",
                observation=step.observation,
                actions=legal(parse(show_text(step.observation))),
                history=episode.transitions[:number],
                steps_left=1,
            )
            steps.append((situation, step.action))
    return steps


def action_example(codec: Codec, situation: Situation, action: str) -> TrainExample:
    """The prompt of the planner's proposer, and this action as the reply."""
    reply = codec.answer_action([action])
    return TrainExample(
        prompt_ids=codec.ask_action(situation),
        completion_ids=reply,
        mask=sft_targets(codec, reply),
    )


def _length(example: TrainExample) -> int:
    return len(example.prompt_ids) + len(example.completion_ids)
