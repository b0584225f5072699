"""Frames of a world into stores, and a frame tokenizer trained on them: what every video model begins with.

The folder holds `data/` (a store for each world and each graded policy), `held_out/` (test instances), `tokenizer/`,
and a manifest with what the tokenizer loses on held-out episodes. Killed, the same call resumes.
    TrainTokenizer(TrainTokenizer.Config(worlds=(Tabletop.Config(),), out=Path("runs/video"))).run(progress)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.config import Configurable, dump
from terrella.core.protocols import Progress
from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Split
from terrella.core.world import World
from terrella.data.films import Pictures, film_of
from terrella.data.store import EpisodeStore, settle_plan, write_atomic
from terrella.engines.video.tokenizer_trainer import TokenizerTrainer
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.lpips import has_lpips, lpips
from terrella.policies.basic import Mixture
from terrella.stages.collect import Collect
from terrella.verify.frame_metrics import frame_metrics

LEAST_FRAMES = 2


class TrainTokenizer(Configurable):
    """The stage: `run` returns the manifest."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What is filmed, and how it is learned."""

        worlds: tuple[World.Config, ...] = ()
        stores: tuple[Path, ...] = ()
        """Episode stores of frames that are there already: imported recordings, split by instance."""
        shares: tuple[float, ...] = (0.2, 0.5, 1.0)
        """Graded policies: the world's expert, acting at random this share of the time; a store each."""
        episodes: int = 100
        """Of each world with each policy."""
        held_out: int = 20
        """Episodes on test instances, of each world with each policy."""
        trainer: TokenizerTrainer.Config = field(default_factory=TokenizerTrainer.Config)
        workers: int = 0
        """Ray actors that play; 0 plays here."""
        seed: int = 0
        out: Path = Path("runs/video")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Film, train, measure. A whole folder is left as it is."""
        out = self.config.out
        out.mkdir(parents=True, exist_ok=True)
        plan = {key: value for key, value in dump(self.config).items() if key not in ("out", "workers")}
        settle_plan(out, {"config": plan})
        if (out / "manifest.json").exists():
            return dict(json.loads((out / "manifest.json").read_text("utf-8")))
        for split in (Split.TRAIN, Split.TEST):
            self._collect(split, progress)
        films = [film_of(episode) for episode in self.episodes(Split.TRAIN)]
        trainer = TokenizerTrainer(self.config.trainer.replace(seed=self.config.seed), films, out / "tokenizer")
        tokenizer = trainer.train(progress)
        held_out = [film_of(episode) for episode in self.episodes(Split.TEST)]
        found = {"config": dump(self.config), "films": len(films), "frames": sum(map(len, films)),
                 "held_out": reconstruction(tokenizer, held_out)}  # fmt: skip
        write_atomic(out / "manifest.json", json.dumps(found, indent=1).encode())
        return found

    def _stores(self, split: Split) -> list[tuple[Path, World.Config, float]]:
        folder = self.config.out / ("data" if split is Split.TRAIN else "held_out")
        return [
            (folder / f"{number}-{share:g}", world, share)
            for number, world in enumerate(self.config.worlds) for share in self.config.shares
        ]  # fmt: skip

    def _collect(self, split: Split, progress: Progress) -> None:
        count = self.config.episodes if split is Split.TRAIN else self.config.held_out
        for number, (out, world, share) in enumerate(self._stores(split)):
            Collect(Collect.Config(
                world=world, policy=Mixture.Config(share=share), out=out, episodes=count, split=split,
                seed=self.config.seed * 1000 + number, chunk_episodes=50, workers=self.config.workers,
            )).run(progress)  # fmt: skip

    def episodes(self, split: Split) -> list[Episode]:
        """All episodes with at least one step; broken ones are left out, and were counted by their stores."""
        found = [episode for out, *_ in self._stores(split) for episode in EpisodeStore.open(out).episodes()]
        for out in self.config.stores:
            found += [episode for episode in EpisodeStore.open(out).episodes() if episode.split is split]
        return [episode for episode in found if episode.transitions and not episode.stop.is_broken]


def reconstruction(tokenizer: FrameTokenizer, films: Sequence[Pictures]) -> dict[str, Any]:
    """What is lost on the way through ids, per film, beside what predicting the first frame for ever would lose."""
    rows = [_film_figures(tokenizer, film) for film in films if len(film) >= LEAST_FRAMES]
    names = sorted({name for row in rows for name in row if name != "codes"})
    found = {name: _figure([row[name] for row in rows]) for name in names}
    used = {code for row in rows for code in row["codes"]}
    return {**found, "films": len(rows), "codes": tokenizer.codes, "codes_used": len(used)}


def _film_figures(tokenizer: FrameTokenizer, film: Pictures) -> dict[str, Any]:
    _, ids = tokenizer.write(film[1:], film[0])
    made, real = tokenizer.read(film[0], ids) / 255.0, film[1:] / 255.0
    still = np.broadcast_to(film[0] / 255.0, real.shape)
    row = {**frame_metrics(made, real), "codes": {code for frame in ids for code in frame}}
    row |= {f"still_{name}": value for name, value in frame_metrics(still, real).items()}
    if has_lpips():
        row |= {"lpips": float(lpips(made, real).mean()), "still_lpips": float(lpips(still, real).mean())}
    return row


def _figure(values: Sequence[float]) -> dict[str, float]:
    low, high = mean_interval(values)
    return {"mean": float(np.mean(values)), "low": low, "high": high}
