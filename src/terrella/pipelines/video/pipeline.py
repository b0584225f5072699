"""A video world model: videos, a frame tokenizer, a transformer fitted to clips, then RLVR.

The folder holds the fitted model (`fitted/`) and the final one (`model/`), both plain Hugging Face
folders, metrics on held-out clips before and after RLVR, and a manifest. Videos and tokenizer are
in the folder of `videos`, which runs with other seeds share. The same call resumes.
    VideoModel(video_table().replace(out=Path("runs/video_table"))).run(progress)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import ConfigError
from terrella.core.files import write_json_lines
from terrella.core.integrity import write_sealed
from terrella.core.metric import Metric
from terrella.core.protocols import Sampler
from terrella.core.run_folder import RunFolder, run_spec, wait_for
from terrella.core.tokens import Task
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.models.action_bins import ActionBins
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.video.clips import ClipExamples, ClipTasks, actions_of, cache_frames
from terrella.pipelines.video.tokenizer import ReconstructionMetrics, TrainTokenizer
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, TaskSource
from terrella.verify.frame_metrics import repetition_rate
from terrella.verify.frames import FrameDistance
from terrella.world_models.video import BINS, FrameCodecConfig, generated_frames, read_codec


@dataclass(frozen=True, kw_only=True)
class ClipMetrics:
    """How well held-out clips are predicted."""

    means: dict[str, Metric]
    clips: dict[str, list[float]]
    """The value of each clip, by metric, so that two models can be compared clip by clip."""
    by_depth: list[float]
    """Mean verdict of the first, second, ... predicted frame."""


@dataclass(frozen=True, kw_only=True)
class VideoModelResult:
    """Error of the tokenizer, and metrics on held-out clips before and after RLVR."""

    tokenizer: ReconstructionMetrics
    before: ClipMetrics
    after: ClipMetrics
    reward: list[float]
    """Of each step of RLVR."""


class VideoModel(ModelPipeline[VideoModelResult]):
    """A world model of frames."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        videos: TrainTokenizer.Config
        world: World.Config
        """The world in the videos; its `distance` scores frames. It is not stepped."""
        width: int = 144
        layers: int = 4
        heads: int = 4
        positions: int = 1024
        bins: int = 16
        """Bins of each number of an action."""
        horizon: int = 7
        """Frames that are predicted in a row; 1 is single-step prediction."""
        window: int = 0
        """Frames in the prompt before the one that a clip begins with."""
        clips: int = 16_000
        """Clips that the model is fitted to."""
        sft: SftConfig = field(default_factory=lambda: SftConfig(batch_size=32, pack_tokens=4096))
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        temperature: float = 1.0
        evaluate_on: int = 96
        """Held-out clips for the metrics before and after RLVR."""
        out: Path = Path("runs/video_model")

    config: Config
    result_type = VideoModelResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "videos.out", "videos.workers")
    masks_tokens = True

    def train(self, run: RunFolder) -> VideoModelResult:
        videos = TrainTokenizer(self.config.videos)
        tokenizer = videos.run(run.progress).held_out
        episodes = videos.episodes(Split.TRAIN)
        held_out = videos.episodes(Split.TEST)
        codec = self.codec(run, episodes)
        run.part("fit", list[float], lambda: self.fit(run, codec, episodes), collective=True)
        before = run.part(
            "before", ClipMetrics, lambda: self.evaluate(codec, run / "fitted", held_out)
        )
        reward = run.part("reward", list[float], lambda: self.rl_finetune(run), collective=True)
        after = run.part(
            "after", ClipMetrics, lambda: self.evaluate(codec, run / "model", held_out)
        )
        return VideoModelResult(tokenizer=tokenizer, before=before, after=after, reward=reward)

    # --- parts ------------------------------------------------------------------------------------

    def codec(self, run: RunFolder, episodes: Sequence[Episode]) -> FrameCodec:
        """The tokenizer of the videos, and bins of the actions in them."""
        videos = self.config.videos
        with run.shared(videos.out, run_spec(videos, TrainTokenizer.ignored)) as folder:
            path = folder / BINS
            if run.is_main and not path.exists():
                bins = ActionBins.fit(actions_of(episodes), self.config.bins)
                write_sealed(path, asdict(bins))
            wait_for(path)
        return read_codec(videos.out, window=self.config.window)

    def fit(self, run: RunFolder, codec: FrameCodec, episodes: Sequence[Episode]) -> list[float]:
        """Cross-entropy on the frames of clips; returns the losses."""
        config = self.config
        cache_frames(codec, episodes)
        examples = ClipExamples(
            episodes, codec, horizon=config.horizon, count=config.clips, seed=config.seed
        )
        return self.engine.sft(
            self.untrained_model(run, codec),
            examples,
            config.sft,
            run / "fitted",
            seed=config.seed,
            progress=run.progress,
        )

    def untrained_model(self, run: RunFolder, codec: FrameCodec) -> Path:
        """A transformer over the ids of frames and actions, with weights from the seed."""
        config, folder = self.config, run / "start"
        if run.is_main and not folder.exists():
            from terrella.models.export import export_model
            from terrella.models.video_lm import make_video_lm

            model, tokenizer = make_video_lm(
                codec.vocabulary,
                width=config.width,
                layers=config.layers,
                heads=config.heads,
                positions=config.positions,
                seed=config.seed,
            )
            export_model(model, tokenizer, folder)
        wait_for(folder / "config.json")
        return folder

    def rl_finetune(self, run: RunFolder) -> list[float]:
        """RLVR from the fitted model to `model/`; returns the mean reward of each step."""
        config = self.config
        trained = self.engine.rlvr(
            run / "fitted",
            self.episode_source(),
            config.rlvr,
            run / "model",
            seed=config.seed,
            progress=run.progress,
        )
        if run.is_main:
            write_json_lines(run / "curve.jsonl", trained.curve)
        return [float(row["reward"]) for row in trained.curve]

    def evaluate(self, codec: FrameCodec, folder: Path, held_out: Sequence[Episode]) -> ClipMetrics:
        tasks = ClipTasks(held_out, self.config.horizon).in_turn(self.config.evaluate_on)
        with (
            Rollout(self.rollout_config(metrics=True), codec) as rollout,
            self.engine.sampler(folder) as sampler,
        ):
            return clip_metrics(rollout, sampler, tasks, seed=self.config.seed)

    def episode_source(self) -> EpisodeSource:
        config = self.config
        return EpisodeSource(
            rollout=self.rollout_config(),
            tasks=VideoTasks(videos=config.videos, horizon=config.horizon, seed=config.seed + 1),
            codec=FrameCodecConfig(folder=config.videos.out, window=config.window),
        )

    def rollout_config(self, *, metrics: bool = False) -> Rollout.Config:
        """Predictions of a fixed length, scored by the world's distance.

        `metrics` adds the metrics that are measured, not trained on.
        """
        world: Any = self.config.world
        if not isinstance(getattr(world, "distance", None), FrameDistance.Config):
            raise ConfigError(
                "world", "has no `distance` of frames", "name a world of frames, such as Tabletop"
            )
        return Rollout.Config(
            world=world.replace(distance=world.distance.replace(metrics=metrics)),
            max_turns=self.config.horizon,
            turn_tokens=self.config.videos.trainer.tokenizer.tokens_per_frame,
            temperature=self.config.temperature,
        )

    def summary(self, result: VideoModelResult) -> list[tuple[str, str]]:
        rows = []
        for name in result.before.means:
            for when, metrics in (("before", result.before), ("after", result.after)):
                rows.append((f"{name}, {when}", f"{metrics.means[name].mean:.4f}"))
        return rows


@dataclass(frozen=True, kw_only=True)
class VideoTasks(TaskSource):
    """Predict clips of recorded videos."""

    videos: TrainTokenizer.Config
    horizon: int

    def make(self) -> Tasks:
        return ClipTasks(
            TrainTokenizer(self.videos).episodes(self.split), self.horizon, seed=self.seed
        )


def clip_metrics(
    rollout: Rollout, sampler: Sampler, tasks: Sequence[Task], *, seed: int
) -> ClipMetrics:
    """Sample one prediction of each clip and score it."""
    episodes = rollout.run(sampler, tasks, group_size=1, seed=seed + 1)
    for episode in episodes:
        if episode.outcome.value is None:
            raise ValueError(f"a masked clip cannot be measured: {episode.outcome.evidence}")
    clips = {
        name: [episode.outcome.parts[name] for episode in episodes]
        for name in episodes[0].outcome.parts
    }
    clips["value"] = [float(episode.outcome.value or 0.0) for episode in episodes]
    clips["repeated"] = [repetition_rate([generated_frames(episode)]) for episode in episodes]
    return ClipMetrics(
        means={name: Metric.of(values) for name, values in clips.items()},
        clips=clips,
        by_depth=np.array([episode.turn_rewards for episode in episodes]).mean(0).tolist(),
    )


def video_episodes(config: VideoModel.Config, split: Split) -> list[Episode]:
    """The episodes that a model was fitted to, or evaluated on."""
    return TrainTokenizer(config.videos).episodes(split)
