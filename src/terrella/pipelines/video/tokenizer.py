"""Record videos of worlds and train a frame tokenizer on them: what every video model begins with.

The folder holds `data/` (an episode store for each world and each graded policy), `held_out/` (the
same on test instances), `tokenizer/`, and a manifest with the reconstruction error on held-out
episodes. Runs with other seeds share it. The same call resumes.
    config = TrainTokenizer.Config(worlds=(Tabletop.Config(),), out=Path("runs/videos"))
    TrainTokenizer(config).run(progress)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from terrella.codecs.frames import VideoTokenizer
from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.data.shards import StoredShards
from terrella.data.videos import FrameArray, video_of
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.pipelines.base import Pipeline
from terrella.pipelines.collect.pipeline import Collect
from terrella.pipelines.video.recordings import check_recordings
from terrella.policies.basic import Mixture
from terrella.verify.frame_metrics import frame_metrics

LEAST_FRAMES = 2
CHUNK_EPISODES = 50


@dataclass(frozen=True, kw_only=True)
class ReconstructionMetrics:
    """What is lost on the way from frames to ids and back."""

    metrics: dict[str, Metric]
    """Means over videos. Those named `still_*` are of repeating the first frame for ever."""
    videos: int
    codes: int
    codes_used: int


@dataclass(frozen=True, kw_only=True)
class TokenizerResult:
    """What the tokenizer was trained on, and its error on held-out videos."""

    videos: int
    frames: int
    held_out: ReconstructionMetrics


class TrainTokenizer(Pipeline[TokenizerResult]):
    """Videos and a frame tokenizer, in a folder that several runs share."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        worlds: tuple[World.Config, ...] = ()
        stores: Local[tuple[Path, ...]] = ()
        """Episode stores of frames that exist already: imported recordings, split by instance."""
        action_numbers: int = 0
        """Numbers of an action; 0 is as many as the recordings have."""
        shares: tuple[float, ...] = (0.2, 0.5, 1.0)
        """Graded policies: the world's expert with this share of random actions, one store each."""
        episodes: int = 100
        """Episodes of each world with each policy."""
        held_out: int = 20
        """Episodes on test instances, of each world with each policy."""
        trainer: TokenizerTrainConfig = field(default_factory=TokenizerTrainConfig)
        pretrained: Local[Path | None] = None
        """A published tokenizer of RLVR-World to use, instead of training one."""
        evaluate_on: int = 1024
        """Held-out videos for the reconstruction error, at most."""
        workers: Local[int] = 0
        """Ray actors that play; 0 plays in this process."""
        out: Path = Path("runs/video")

    config: Config
    result_type = TokenizerResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "workers")
    waits = True

    def check_settings(self, *, ranks: int = 0, machines: int = 0) -> None:
        rows, columns = self.frame
        for world in self.config.worlds:
            size = getattr(world, "size", None)
            if size is not None and (size, size) != (rows, columns):
                raise ConfigError(
                    "videos.worlds",
                    f"draw frames of {size} x {size}; the tokenizer of this config takes "
                    f"{rows} x {columns}",
                    "to train on videos.stores alone, leave the worlds out: --set videos.worlds=",
                )

    def preflight(self) -> None:
        super().preflight()
        self._check(self.config.stores)

    def _check(self, stores: Iterable[Path]) -> None:
        check_recordings(stores, frame=self.frame, numbers=self.config.action_numbers)

    @property
    def frame(self) -> tuple[int, int]:
        """Height and width of the frames that the tokenizer takes."""
        frames = self.config.trainer.tokenizer
        return frames.size, frames.columns or frames.size

    def train(self, run: RunFolder) -> TokenizerResult:
        run.part("videos", bool, lambda: self.record(run))
        run.part("trained", bool, lambda: self.train_tokenizer(run), collective=True)
        return run.part("result", TokenizerResult, lambda: self.evaluate(run / "tokenizer"))

    # --- parts ------------------------------------------------------------------------------------

    def record(self, run: RunFolder) -> bool:
        """Play the worlds; recordings are there already."""
        for split in (Split.TRAIN, Split.TEST):
            self.collect(run, split)
            self._check([*self.config.stores, *(out for out, *_ in self._stores(split))])
        return True

    def collect(self, run: RunFolder, split: Split) -> None:
        config = self.config
        episodes = config.episodes if split is Split.TRAIN else config.held_out
        for number, (out, world, share) in enumerate(self._stores(split)):
            store = Collect.Config(
                world=world,
                policy=Mixture.Config(share=share),
                out=out,
                episodes=episodes,
                split=split,
                seed=config.seed * 1000 + number,
                chunk_episodes=CHUNK_EPISODES,
                workers=config.workers,
            )
            Collect(store).run(run.progress)

    def train_tokenizer(self, run: RunFolder) -> bool:
        """All ranks together."""
        if self.config.pretrained is not None:
            self._convert(self.config.pretrained, run)
            return True
        from terrella.engines.frames.tokenizer_trainer import TokenizerTrainer

        trainer = TokenizerTrainer(
            self.config.trainer,
            self.shards(Split.TRAIN),
            run / "tokenizer",
            seed=self.config.seed,
        )
        trainer.train(run.progress)
        return True

    def _convert(self, published: Path, run: RunFolder) -> None:
        """Keep a published tokenizer in this folder, in our format and with hashes."""
        from terrella.models.published_tokenizers import read_published

        if run.is_main:
            rows, columns = self.frame
            read_published(published, rows=rows, columns=columns).save(run / "tokenizer")

    def evaluate(self, tokenizer: Path) -> TokenizerResult:
        from terrella.models.frame_tokenizers import load_frame_tokenizer

        shards = self.shards(Split.TRAIN)
        held_out = itertools.islice(self.episodes(Split.TEST), self.config.evaluate_on)
        return TokenizerResult(
            videos=shards.count,
            frames=shards.transitions + shards.count,
            held_out=reconstruction_metrics(
                load_frame_tokenizer(tokenizer), map(video_of, held_out)
            ),
        )

    def _stores(self, split: Split) -> list[tuple[Path, World.Config, float]]:
        folder = self.config.out / ("data" if split is Split.TRAIN else "held_out")
        return [
            (folder / f"{number}-{share:g}", world, share)
            for number, world in enumerate(self.config.worlds)
            for share in self.config.shares
        ]

    def shards(self, split: Split) -> StoredShards:
        """The episodes of a split that have a step and did not break; stores count the others."""
        recorded = [out for out, *_ in self._stores(split)]
        return StoredShards([*recorded, *self.config.stores], split)

    def episodes(self, split: Split) -> Iterator[Episode]:
        """The episodes of a split, a shard in memory at a time."""
        return self.shards(split).episodes()

    def episodes_in(self, world: World.Config, split: Split) -> Iterator[Episode]:
        """The episodes that were recorded in one of the worlds."""
        folders = [out for out, recorded, _ in self._stores(split) if recorded == world]
        if not folders:
            raise ConfigError(
                str(self.config.out), f"has no recordings of {world}", "name a world of `videos`"
            )
        return StoredShards(folders, split).episodes()

    def summary(self, result: TokenizerResult) -> list[tuple[str, str]]:
        rows = [("videos", f"{result.videos:,}"), ("frames", f"{result.frames:,}")]
        rows += [(name, str(metric)) for name, metric in result.held_out.metrics.items()]
        return [*rows, ("codes used", f"{result.held_out.codes_used} of {result.held_out.codes}")]


def reconstruction_metrics(
    tokenizer: VideoTokenizer, videos: Iterable[FrameArray]
) -> ReconstructionMetrics:
    """Encode and decode each video; beside it, the error of repeating its first frame for ever."""
    by_video = []
    codes_used: set[int] = set()
    for video in videos:
        if len(video) < LEAST_FRAMES:
            continue
        _, ids = tokenizer.write(video[1:], video[0])
        codes_used.update(code for frame in ids for code in frame)
        by_video.append(_video_metrics(tokenizer.read(video[0], ids), video))
    names = sorted({name for metrics in by_video for name in metrics})
    return ReconstructionMetrics(
        metrics={name: Metric.of([metrics[name] for metrics in by_video]) for name in names},
        videos=len(by_video),
        codes=tokenizer.codes,
        codes_used=len(codes_used),
    )


def _video_metrics(rebuilt: FrameArray, video: FrameArray) -> dict[str, float]:
    from terrella.models.lpips import has_lpips, lpips

    made, real = rebuilt / 255.0, video[1:] / 255.0
    still = np.broadcast_to(video[0] / 255.0, real.shape)
    metrics = {
        **frame_metrics(made, real),
        **{f"still_{name}": value for name, value in frame_metrics(still, real).items()},
    }
    if has_lpips():
        metrics["lpips"] = float(lpips(made, real).mean())
        metrics["still_lpips"] = float(lpips(still, real).mean())
    return metrics
