"""A video world model: videos, a frame tokenizer, a transformer fitted to clips, then RLVR.

The folder holds the fitted model (`fitted/`) and the final one (`model/`), both plain Hugging Face
folders, metrics on held-out clips before and after RLVR, and a manifest. Videos and tokenizer are
in the folder of `videos`, which runs with other seeds share. The same call resumes.
    VideoModel(video_table().replace(out=Path("runs/video_table"))).run(progress)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.files import write_json_lines
from terrella.core.integrity import MAKE_AGAIN, read_sealed, write_sealed
from terrella.core.metric import Metric
from terrella.core.protocols import Sampler
from terrella.core.run_folder import RunFolder, processes, run_spec, wait_for
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.core.untrusted import reading
from terrella.core.world import World
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.models.action_bins import ActionBins
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.curve import step_values
from terrella.pipelines.video.clips import ClipExamples, ClipTasks, fitted_bins
from terrella.pipelines.video.tokenizer import ReconstructionMetrics, TrainTokenizer
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, TaskSource
from terrella.verify.frame_metrics import repetition_rate
from terrella.verify.frames import FrameDistance
from terrella.world_models.video import (
    BINS,
    MADE_WITH,
    FrameCodecConfig,
    generated_frames,
    read_codec,
)

MOST_LISTED = 2 * 10**8
"""Ids of clips in a list in memory: about 8 GB."""
CLIPS_AT_ONCE = 64
"""Held-out clips in memory at a time."""


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
    reward: list[float | None]
    """Reward of each step of RLVR; None where all verdicts were masked."""


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
        inner: int = 0
        """Width of the feed-forward layers; 8/3 of the model's unless given."""
        tied: bool = True
        """The output uses the input's embeddings."""
        bins: int = 16
        """Bins of each number of an action."""
        action_ranges: tuple[tuple[float, float], ...] = ()
        """Least and greatest value of each number: bins of equal width, instead of quantiles."""
        joint_vocabulary: bool = False
        """The ids of RLVR-World's published models; all numbers of an action share their bins."""
        pretrained: Local[Path | None] = None
        """A published transformer to start from, instead of random weights."""
        horizon: int = 7
        """Frames that are predicted in a row; 1 is single-step prediction."""
        window: int = 0
        """Frames in the prompt before the one that a clip begins with."""
        clips: int = 16_000
        """Clips that the model is fitted to."""
        changed_weight: float = 1.0
        """Weight in the fit of the ids that differ from the frame before: of what moves."""
        sft: SftConfig = field(default_factory=lambda: SftConfig(batch_size=32, pack_tokens=4096))
        rlvr: RlvrConfig = field(default_factory=RlvrConfig)
        temperature: float = 1.0
        evaluate_on: int = 96
        """Held-out clips for the metrics before and after RLVR, at most: one of each episode."""
        out: Path = Path("runs/video_model")

    config: Config
    result_type = VideoModelResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "videos.out", "videos.workers")
    masks_tokens = True

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        super().check_settings(ranks=ranks, machines=machines)
        TrainTokenizer(self.config.videos).check_settings(ranks=ranks, machines=machines)
        asked, numbers = len(self.config.action_ranges), self.config.videos.action_numbers
        if asked and numbers and asked != numbers:
            what = f"has {asked} ranges; an action has {numbers} numbers (videos.action_numbers)"
            raise ConfigError("action_ranges", what, "give one range for each number")
        self._check_listed()

    def _check_listed(self) -> None:
        """SFT on verl reads a list that is made first; only TRL draws clips as it trains."""
        config, frames = self.config, self.config.videos.trainer.tokenizer
        ids = config.clips * config.horizon * frames.tokens_per_frame
        if config.engine == "verl" and ids > MOST_LISTED:
            raise ConfigError(
                "clips",
                f"{config.clips:,} clips are {ids:,} ids or more; with engine=verl they are held "
                f"in memory, and {MOST_LISTED:,} ids at the most",
                "set engine=trl, which reads clips as it trains, or fewer clips",
            )

    def preflight(self) -> None:
        super().preflight()
        TrainTokenizer(self.config.videos).preflight()

    def train(self, run: RunFolder) -> VideoModelResult:
        videos = TrainTokenizer(self.config.videos)
        tokenizer = videos.run(run.progress).held_out
        codec = self.codec(run, videos)
        run.part("fit", list[float], lambda: self.fit(run, codec, videos), collective=True)
        before = run.part(
            "before", ClipMetrics, lambda: self.evaluate(codec, run / "fitted", videos)
        )
        reward = run.part(
            "reward", list[float | None], lambda: self.rl_finetune(run), collective=True
        )
        after = run.part("after", ClipMetrics, lambda: self.evaluate(codec, run / "model", videos))
        return VideoModelResult(tokenizer=tokenizer, before=before, after=after, reward=reward)

    # --- parts ------------------------------------------------------------------------------------

    def codec(self, run: RunFolder, videos: TrainTokenizer) -> FrameCodec:
        """The tokenizer of the videos, and bins of the actions in them."""
        settings = self.config.videos
        with run.shared(settings.out, run_spec(settings, TrainTokenizer.ignored)) as folder:
            path = folder / BINS
            if run.is_main and not path.exists():
                made_with = {MADE_WITH: self._bin_settings()}
                write_sealed(path, asdict(self._bins(videos)) | made_with)
            wait_for(path)
            self._check_bins(path)
        config, frames = self.config, settings.trainer.tokenizer
        codec = read_codec(settings.out, window=config.window, joint=config.joint_vocabulary)
        if codec.frame_tokens != frames.tokens_per_frame:
            raise ConfigError(
                "videos.trainer.tokenizer",
                f"has {frames.tokens_per_frame} ids a frame; the tokenizer in {settings.out} has "
                f"{codec.frame_tokens}",
                "set kind, size, columns and stride to those of the published tokenizer",
            )
        return codec

    def _bin_settings(self) -> dict[str, Any]:
        ranges = [list(each) for each in self.config.action_ranges]
        return {"bins": self.config.bins, "action_ranges": ranges}

    def _check_bins(self, path: Path) -> None:
        """Refuse to use other bins than were asked for: models of this folder have learnt them."""
        with reading(str(path), MAKE_AGAIN):
            made_with = read_sealed(path, MAKE_AGAIN)[MADE_WITH]
        for name, asked in self._bin_settings().items():
            if made_with.get(name) != asked:
                raise ConfigError(
                    name,
                    f"is {asked or 'not given'}; {path} was made with {made_with.get(name)}",
                    "set the same, or make videos of your own with another videos.out",
                )

    def _bins(self, videos: TrainTokenizer) -> ActionBins:
        config = self.config
        if config.action_ranges:
            return ActionBins.uniform(np.array(config.action_ranges), config.bins)
        return fitted_bins(videos.shards(Split.TRAIN), config.bins, seed=config.videos.seed)

    def fit(self, run: RunFolder, codec: FrameCodec, videos: TrainTokenizer) -> list[float]:
        """Cross-entropy on the frames of clips; returns the losses. Every rank reads its own."""
        config = self.config
        if config.changed_weight != 1.0 and config.engine != "trl":
            raise ConfigError(
                "changed_weight", f"engine={config.engine} weighs all ids alike", "engine=trl"
            )
        examples = ClipExamples(
            videos.shards(Split.TRAIN),
            codec,
            horizon=config.horizon,
            count=config.clips,
            seed=config.seed,
            changed_weight=config.changed_weight,
            lanes=processes(),
            batch=max(1, config.sft.batch_size // processes()),
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
        """A transformer over the ids of frames and actions: weights from the seed, or published."""
        folder = run / "start"
        if run.is_main and not folder.exists():
            from terrella.models.export import export_model

            export_model(*self._start(codec), folder)
        wait_for(folder / "config.json")
        return folder

    def _start(self, codec: FrameCodec) -> tuple[Any, Any]:
        config = self.config
        if config.pretrained is not None:
            from terrella.models.published_transformer import read_published_transformer

            return read_published_transformer(
                config.pretrained, vocabulary=codec.vocabulary, pad=codec.pad, start=codec.start
            )
        from terrella.models.video_lm import make_video_lm

        return make_video_lm(
            codec.vocabulary,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            positions=config.positions,
            inner=config.inner,
            tied=config.tied,
            pad=codec.pad,
            start=codec.start,
            seed=config.seed,
        )

    def rl_finetune(self, run: RunFolder) -> list[float | None]:
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
        return step_values(trained.curve, "reward")

    def evaluate(self, codec: FrameCodec, folder: Path, videos: TrainTokenizer) -> ClipMetrics:
        tasks = held_out_clips(self.config, videos)
        with (
            Rollout(self.rollout_config(metrics=True), codec) as rollout,
            self.engine.sampler(folder) as sampler,
        ):
            return clip_metrics(rollout, sampler, tasks, seed=self.config.seed)

    def episode_source(self) -> EpisodeSource:
        config = self.config
        return EpisodeSource(
            rollout=self.rollout_config(),
            tasks=VideoTasks(
                videos=config.videos,
                horizon=config.horizon,
                window=config.window,
                count=config.rlvr.steps * config.rlvr.groups,
                seed=config.seed + 1,
            ),
            codec=FrameCodecConfig(
                folder=config.videos.out, window=config.window, joint=config.joint_vocabulary
            ),
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
    window: int = 0
    count: int = 0
    """About how many will be drawn."""

    def make(self) -> Tasks:
        return ClipTasks(
            TrainTokenizer(self.videos).shards(self.split),
            self.horizon,
            seed=self.seed,
            window=self.window,
            count=self.count,
        )


def held_out_clips(config: VideoModel.Config, videos: TrainTokenizer) -> Iterator[Task]:
    """The clips that a model is evaluated on."""
    clips = ClipTasks(videos.shards(Split.TEST), config.horizon, window=config.window)
    return clips.in_turn(config.evaluate_on)


def clip_metrics(
    rollout: Rollout, sampler: Sampler, tasks: Iterable[Task], *, seed: int
) -> ClipMetrics:
    """Sample one prediction of each clip and score it, some clips at a time."""
    clips: dict[str, list[float]] = {}
    by_depth, left = [], iter(tasks)
    while batch := list(itertools.islice(left, CLIPS_AT_ONCE)):
        for episode in rollout.run(sampler, batch, group_size=1, seed=seed + 1):
            if episode.outcome.value is None:
                raise ValueError(f"a masked clip cannot be measured: {episode.outcome.evidence}")
            repeated = repetition_rate([generated_frames(episode)])
            row = {"value": float(episode.outcome.value), "repeated": repeated}
            for name, value in {**episode.outcome.parts, **row}.items():
                clips.setdefault(name, []).append(value)
            by_depth.append(episode.turn_rewards)
    return ClipMetrics(
        means={name: Metric.of(values) for name, values in clips.items()},
        clips=clips,
        by_depth=np.array(by_depth).mean(0).tolist(),
    )
