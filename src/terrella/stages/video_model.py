"""A video world model: films, a frame tokenizer, a transformer fitted to clips, then sharpened by verified predictions.

The folder holds the fitted model (`fitted/`), the last one (`model/`), both plain Hugging Face folders, what was
measured before and after on held-out clips, and a manifest. Tokenizer and films lie in the folder of `films`, which
runs with other seeds share. Killed, the same call resumes.
    VideoModel(video_table().replace(out=Path("runs/video_table"))).run(progress)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.config import Configurable, dump, record_from_json
from terrella.core.protocols import Progress, Task, TokenEpisode
from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.data.store import settle_plan, write_atomic
from terrella.engines.episodes.driver import Driver
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.models.action_bins import ActionBins
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.presets import load_model
from terrella.models.video_lm import make_video_lm
from terrella.show.progress import make_progress, show_figures
from terrella.stages.clips import ClipRows, ClipTasks, actions_of, remember
from terrella.stages.train_tokenizer import TrainTokenizer
from terrella.verify.frame_metrics import repetition_rate
from terrella.verify.frames import FrameDistance

T = TypeVar("T")
BINS = "actions.json"


class VideoModel(Configurable):
    """The stage: `run` returns the manifest."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A video world model, from films to a folder of weights."""

        films: TrainTokenizer.Config
        world: World.Config
        """Whose films they are; recordings have none that can be played, and may name any: it is not stepped."""
        width: int = 144
        layers: int = 4
        heads: int = 4
        positions: int = 1024
        bins: int = 16
        """Of each number of an action."""
        horizon: int = 7
        """Frames predicted in a row: 1 is single-step prediction."""
        window: int = 0
        """Frames before the one a clip begins with that the prompt also shows."""
        rows: int = 16_000
        """Clips that are fitted."""
        sft: SftSettings.Config = field(default_factory=lambda: SftSettings.Config(batch_rows=32, pack_tokens=4096))
        rlvr: RlvrSettings.Config = field(default_factory=RlvrSettings.Config)
        distance: FrameDistance.Config = field(default_factory=lambda: FrameDistance.Config(perceptual="lpips"))
        temperature: float = 1.0
        evaluate_on: int = 96
        """Held-out clips for the figures before and after."""
        seed: int = 0
        out: Path = Path("runs/video_model")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Film, fit, measure, sharpen, measure; the manifest comes last."""
        config, out = self.config, self.config.out
        self.settle()
        if (out / "manifest.json").exists():
            return dict(json.loads((out / "manifest.json").read_text("utf-8")))
        films = TrainTokenizer(config.films)
        tokenizer = films.run(progress)["held_out"]
        self.train, self.held_out = films.episodes(Split.TRAIN), films.episodes(Split.TEST)
        codec = self.codec()
        self._fit(codec, progress)
        before = self._measured(out / "before.json", codec, out / "fitted")
        history = self._sharpen(codec, progress)
        after = self._measured(out / "after.json", codec, out / "model")
        found = {"config": dump(config), "tokenizer": tokenizer, "before": before, "after": after, "curve": history}
        write_atomic(out / "manifest.json", json.dumps(found, indent=1).encode())
        return found

    def settle(self) -> None:
        """Begin the folder, or check that it was begun with the same config."""
        self.config.out.mkdir(parents=True, exist_ok=True)
        plan = {key: value for key, value in dump(self.config).items() if key not in ("out", "films", "world")}
        settle_plan(self.config.out, {"config": plan})

    def codec(self) -> FrameCodec:
        """The tokenizer of the films, and bins of the actions in them."""
        path = self.config.films.out / BINS
        if not path.exists():
            bins = ActionBins.fit(actions_of(self.train), self.config.bins)
            write_atomic(path, json.dumps(asdict(bins)).encode())
        return read_codec(self.config.films.out, window=self.config.window)

    def _fit(self, codec: FrameCodec, progress: Progress) -> None:
        """Cross-entropy on the frames of clips."""
        config, folder = self.config, self.config.out / "fitted"
        if (folder / "config.json").exists():
            return
        remember(codec, self.train)
        model, words = make_video_lm(
            codec.vocabulary, width=config.width, layers=config.layers, heads=config.heads, positions=config.positions,
            seed=config.seed,
        )  # fmt: skip
        rows = ClipRows(self.train, codec, horizon=config.horizon, count=config.rows, seed=config.seed)
        settings = config.sft.replace(seed=config.seed)
        trainer = SftTrainer(model, words, settings, rows, config.out / "sft", [ShowProgress(progress, "fit")])
        trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        write_atomic(config.out / "fit.json", json.dumps(losses).encode())
        trainer.export(folder)

    def _sharpen(self, codec: FrameCodec, progress: Progress) -> list[dict[str, Any]]:
        """RLVR from the fitted model; returns the curve."""
        from terrella.engines.trl.rlvr_trainer import RlvrTrainer

        config, curve = self.config, self.config.out / "curve.json"
        if not curve.exists():
            remember(codec, self.train)
            model, words = load_model(str(config.out / "fitted"))
            tasks = ClipTasks(self.train, config.horizon, seed=config.seed + 1)
            trainer = RlvrTrainer(
                model, words, config.rlvr.replace(seed=config.seed), self.driver(codec), tasks, config.out / "rlvr",
                [ShowProgress(progress, "rlvr")],
            )  # fmt: skip
            trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
            trainer.export(config.out / "model")
            history = [row for row in trainer.state.log_history if "reward" in row]
            write_atomic(curve, json.dumps(history).encode())
        return list(json.loads(curve.read_text("utf-8")))

    def driver(self, codec: FrameCodec, *, metrics: bool = False) -> Driver:
        """Frames of a fixed length, judged by the distance; `metrics` are for figures, not for training."""
        made = Driver(Driver.Config(
            world=self.config.world, max_turns=self.config.horizon, turn_tokens=codec.frame_tokens,
            temperature=self.config.temperature,
        ), codec)  # fmt: skip
        made.verifier = self.config.distance.replace(metrics=metrics).build()
        return made

    def _measured(self, path: Path, codec: FrameCodec, model: Path) -> dict[str, Any]:
        """Measured once and kept: a resumed run must not say something else."""
        if not path.exists():
            tasks = ClipTasks(self.held_out, self.config.horizon).in_turn(self.config.evaluate_on)
            found = measure(self.driver(codec, metrics=True), load_model(str(model))[0], tasks, self.config.seed)
            write_atomic(path, json.dumps(found).encode())
        return dict(json.loads(path.read_text("utf-8")))


def read_codec(folder: Path, *, window: int) -> FrameCodec:
    """The codec of a films folder: its tokenizer and its bins."""
    bins = record_from_json(ActionBins, json.loads((folder / BINS).read_text("utf-8")))
    return FrameCodec(FrameTokenizer.load(folder / "tokenizer"), bins, window=window)


def measure(driver: Driver, model: Any, tasks: Sequence[Task], seed: int) -> dict[str, Any]:
    """One sampled rollout per clip: the mean of each part with its interval, and clip by clip, for pairing."""
    episodes = driver.run(LocalSampler(model.eval()), tasks, group_size=1, seed=seed + 1)
    if any(episode.outcome.value is None for episode in episodes):
        raise ValueError(f"a masked clip cannot be measured: {episodes[0].outcome.evidence}")
    clips = {name: [e.outcome.parts[name] for e in episodes] for name in episodes[0].outcome.parts}
    clips["value"] = [float(episode.outcome.value or 0.0) for episode in episodes]
    films = [written_frames(episode) for episode in episodes]
    clips["repeated"] = [repetition_rate([film]) for film in films]
    depths = np.array([episode.turn_rewards for episode in episodes]).mean(0).tolist()
    return {"means": {name: _figure(values) for name, values in clips.items()}, "clips": clips, "by_depth": depths}


def written_frames(episode: TokenEpisode) -> list[tuple[int, ...]]:
    """The ids of each frame that the model wrote; forced actions are left out."""
    return written(episode, episode.completion_ids)


def written(episode: TokenEpisode, column: Sequence[T]) -> list[tuple[T, ...]]:
    """A column of an episode, turn by turn, where the model wrote."""
    starts = [0, *episode.turn_ends[:-1]]
    return [
        tuple(one for one, mine in zip(column[a:b], episode.model_mask[a:b], strict=True) if mine)
        for a, b in zip(starts, episode.turn_ends, strict=True)
    ]


def _figure(values: Sequence[float]) -> dict[str, float]:
    low, high = mean_interval(values)
    return {"mean": float(np.mean(values)), "low": low, "high": high}


def run(config: VideoModel.Config) -> dict[str, Any]:
    """Train with a display and show the figures; returns them."""
    with make_progress() as progress:
        found = VideoModel(config).run(progress)
    rows = [
        (f"{name}, {when}", f"{found[when]['means'][name]['mean']:.4f}")
        for name in found["before"]["means"] for when in ("before", "after")
    ]  # fmt: skip
    show_figures(f"video model in {config.out}", rows)
    return found


def filmed(config: VideoModel.Config, split: Split) -> list[Episode]:
    """The episodes that a model was made from, or measured on."""
    return TrainTokenizer(config.films).episodes(split)
