"""Video world models: films of a table, a tokenizer, a transformer over frame ids, verified rewards.

`video_table` is two CPU cores, about ten minutes; what it reached, seed by seed, is in results/video_model.json. The
`rt1_*` recipes are the sizes of RLVR-World's paper (256 x 320 frames, 12 layers of 768): one node of eight GPUs; here
they are only resolved (`--dry-run`), and say what the paper reports.
"""

from __future__ import annotations

from pathlib import Path

from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.engines.video.tokenizer_trainer import TokenizerTrainer
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.stages.train_tokenizer import TrainTokenizer
from terrella.stages.video_model import VideoModel
from terrella.verify.frames import FrameDistance
from terrella.worlds.tabletop import Tabletop

PACK = 4096


def video_table() -> VideoModel.Config:
    """A 1.3M-parameter model of a pushed block, seven frames ahead. Two cores, about ten minutes."""
    return VideoModel.Config(
        films=TrainTokenizer.Config(
            worlds=(Tabletop.Config(task="push", size=32), Tabletop.Config(task="reach", size=32)),
            shares=(0.2, 0.5, 1.0), episodes=120, held_out=25, out=Path("runs/video_films"),
            trainer=TokenizerTrainer.Config(
                tokenizer=FrameTokenizer.Config(size=32, stride=8, width=24), steps=4000, batch=8, lpips=0.05,
                lpips_every=4,
            ),
        ),
        rows=10_000,
        sft=SftSettings.Config(
            batch_rows=16, learning_rate=2e-3, warmup_steps=50, pack_tokens=PACK, save_every=100, bf16=True
        ),
        rlvr=RlvrSettings.Config(
            steps=30, groups=6, group_size=8, learning_rate=2e-4, kl=0.001, pack_tokens=PACK, save_every=10
        ),
    )  # fmt: skip


def video_quick() -> VideoModel.Config:
    """The same path in little: pictures of 32 pixels, seconds of training. One core, half a minute; learns nothing."""
    return VideoModel.Config(
        films=TrainTokenizer.Config(
            worlds=(Tabletop.Config(task="push", size=32),), shares=(0.3,), episodes=6, held_out=4,
            out=Path("runs/video_quick_films"),
            trainer=TokenizerTrainer.Config(
                tokenizer=FrameTokenizer.Config(size=32, width=8), steps=60, save_every=20
            ),
        ),
        width=32, layers=1, heads=2, rows=64, horizon=4, evaluate_on=6,
        sft=SftSettings.Config(batch_rows=16, pack_tokens=PACK), distance=FrameDistance.Config(),
        rlvr=RlvrSettings.Config(steps=2, groups=2, group_size=4, pack_tokens=PACK),
    )  # fmt: skip
