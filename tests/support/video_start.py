"""One rank of the RT-1 recipes at 256 x 320 with one layer: a few steps of every part.

torchrun --nproc-per-node 2 tests/support/video_start.py FOLDER/NAME.json
$RECIPES and $STORE say what is run. Frame size, ids, vocabulary, precision and losses are the
recipe's; layers, widths of the tokenizer, counts and steps are smaller.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.instances import plain
from terrella.engines.ranks import end_rank
from terrella.models.lpips import has_lpips
from terrella.pipelines.video.pipeline import VideoModel
from terrella.recipes import find_recipe
from terrella.show.progress import SilentProgress
from terrella.verify.frames import FrameDistance


def small(recipe: str, store: Path, folder: Path) -> VideoModel.Config:
    config = find_recipe(recipe)()
    trainer = config.videos.trainer
    trainer = trainer.replace(
        tokenizer=trainer.tokenizer.replace(width=8),
        steps=3,
        batch=2,
        lpips=trainer.lpips if has_lpips() else 0.0,
        lpips_every=2,
        adversarial_after=1,
        discriminator_width=8,
        save_every=2,
    )
    videos = config.videos.replace(
        stores=(store,), trainer=trainer, evaluate_on=1, out=folder / "films"
    )
    return config.replace(
        videos=videos,
        world=config.world.replace(distance=FrameDistance.Config()),
        layers=1,
        clips=4,
        evaluate_on=1,
        horizon=min(config.horizon, 2),
        sampler="local",
        sft=config.sft.replace(batch_size=2, warmup_steps=0, pack_tokens=4096, save_every=0),
        rlvr=config.rlvr.replace(
            steps=1, groups=2, group_size=2, mini_batches=1, pack_tokens=4096, save_every=0
        ),
        out=folder / "run",
    )


def main(report: Path) -> None:
    results = {}
    for recipe in os.environ["RECIPES"].split():
        config = small(recipe, Path(os.environ["STORE"]), report.with_name(recipe))
        results[recipe] = plain(VideoModel(config).run(SilentProgress()))
    rank = os.environ.get("RANK", "0")
    report.with_suffix(f".{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_rank()
