"""Inside a video model: what plans and practises there, made of the model's own recordings.

The classifier that ends imagined episodes, the value that planners look for, and the clone that
practice begins with are fitted to the recordings that the model was fitted to. So nothing here
takes a real step. Imagination stops where the model is less sure than on held-out recordings.
    inside = InsideVideo(InsideVideo.Config(run=run, videos=videos, world=Tabletop.Config()))
    planner = inside.planner(ContinuousPlanner.Config(size=2, method="mppi"))
    evaluate_policy(world.build, planner, seeds=range(40), split=Split.TEST, num_envs=1)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from terrella.core.bounds import check_least, check_share
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.protocols import WorldModel
from terrella.core.run_folder import read_manifest
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.engines.engine import open_sampler
from terrella.evals.video_success import (
    PixelExample,
    fit_progress,
    fit_success,
    fitted_and_held_out,
    frame_value,
    recorded_example,
)
from terrella.pipelines.video.recorded import recorded_model
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.trust.nearness import NearestData
from terrella.trust.risk import RiskEstimator
from terrella.world_models.imagine import ImaginedWorld
from terrella.world_models.planner_continuous import ContinuousPlanner, Value
from terrella.world_models.risk_stop import RiskStop, risk_limit
from terrella.world_models.video import VideoWorldModel, imagined_video_world, read_codec
from terrella.worlds.tabletop import write_action

if TYPE_CHECKING:
    from terrella.models.pixel_nets import PixelNet


class InsideVideo(Configurable):
    """A trained video model of one task, ready to plan and practise in."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The run, its recordings, and how it imagines."""

        run: Local[Path]
        """A run of `terrella train-world-model`."""
        videos: Local[Path]
        """The folder of its recordings and tokenizer."""
        world: World.Config
        """The task: one of the worlds that were recorded."""
        model: Literal["fitted", "model"] = "model"
        """The model before RLVR (`fitted`) or after it."""
        window: int = 2
        """Frames that the model sees before the last one; each makes its prompts longer."""
        temperature: float = 0.5
        value: Literal["progress", "logit"] = "progress"
        """What planners look for: how many steps success is away, or the classifier's logit."""
        fit_steps: int = 800
        """Updates of the classifier, and of the value."""
        most_episodes: int = 1000
        """Recordings that these are fitted to, at most."""
        risk_share: float = 0.99
        """Share of the steps of held-out recordings that would not stop imagination."""
        seed: int = 0

        def __post_init__(self) -> None:
            """Refuse a limit that nothing passes, and networks without an update."""
            check_least(self, window=0, fit_steps=1, most_episodes=1)
            check_share(self, "risk_share")

    config: Config

    def __init__(self, config: Config) -> None:
        """The run must be finished; its networks are fitted when they are first asked for."""
        super().__init__(config)
        recorded = read_manifest(config.run).config
        self.trained = recorded_model(recorded, config.run, videos=config.videos)
        self.videos = TrainTokenizer(self.trained.videos)
        self.codec = read_codec(
            config.videos, window=config.window, joint=self.trained.joint_vocabulary
        )

    # --- from recordings --------------------------------------------------------------------------

    @cached_property
    def examples(self) -> list[PixelExample]:
        """The recordings of the task, with the actions that were taken."""
        episodes = self.recordings(Split.TRAIN)
        examples = [recorded_example(episode) for episode in episodes]
        fitted, _ = fitted_and_held_out(examples)
        if not any(example.success.any() for example in fitted):
            raise ConfigError(
                str(self.config.videos),
                f"none of {len(fitted)} recorded episodes succeeds, so nothing shows what "
                "success is",
                "record more episodes, or with smaller shares of random steps",
            )
        return examples

    def recordings(self, split: Split) -> list[Episode]:
        """Recorded episodes of the task."""
        episodes = self.videos.episodes_in(self.config.world, split)
        return list(itertools.islice(episodes, self.config.most_episodes))

    @cached_property
    def success(self) -> tuple[PixelNet, float]:
        """The classifier, and the logit above which a frame shows success."""
        return fit_success(
            self.examples,
            self.codec.tokenizer,
            steps=self.config.fit_steps,
            seed=self.config.seed,
        )

    @cached_property
    def value(self) -> Value:
        """How good frames are, for planners."""
        if self.config.value == "logit":
            return frame_value(self.success[0])
        net = fit_progress(
            self.examples,
            self.codec.tokenizer,
            steps=self.config.fit_steps,
            seed=self.config.seed,
        )
        return frame_value(net)

    def clone(self, updates: int) -> PixelNet:
        """A policy that imitates the recordings that succeeded."""
        from terrella.engines.frames.pixel_trainer import clone

        won = [example for example in self.examples if example.success.any()]
        frames = np.concatenate([example.video[:-1] for example in won])
        actions = np.concatenate([example.actions for example in won])
        return clone(frames, actions, ages=(updates,), seed=self.config.seed)[updates]

    # --- in the model -----------------------------------------------------------------------------

    @cached_property
    def video_model(self) -> VideoWorldModel:
        """The model, with the classifier."""
        net, threshold = self.success
        run = self.config.run
        return VideoWorldModel(
            open_sampler(run / self.config.model, work=run / "engine"),
            self.codec,
            lambda frames: net.read(frames)[:, 0] > threshold,
            temperature=self.config.temperature,
            seed=self.config.seed,
        )

    @cached_property
    def model(self) -> RiskStop:
        """The model, silent where it is less sure than on held-out recordings."""
        most = risk_limit(
            self.video_model,
            self.recordings(Split.TEST),
            max_steps=self.config.world.max_steps,
            share=self.config.risk_share,
        )
        return RiskStop(self.video_model, most)

    def imagined_world(self) -> ImaginedWorld:
        """The task in the model; an initial state is real, and no step is."""
        return imagined_video_world(self.config.world, self.model)

    def planner(
        self, config: ContinuousPlanner.Config, model: WorldModel | None = None
    ) -> ContinuousPlanner:
        """A planner in the model, or in another one, that looks for the same value."""
        estimator = RiskEstimator(model or self.model, NearestData(()), None)
        return ContinuousPlanner(config, estimator, write_action, self.value)


def steps_of(episodes: Sequence[Episode]) -> int:
    """Steps of recorded episodes."""
    return sum(len(episode.transitions) for episode in episodes)
