"""Held-out clips of a video model as a moving picture, ten at most: real | predicted | difference.

    python benchmarks/video_moving.py runs/video_table --videos runs/video_films
Writes docs/pictures/video_clips.gif and .webm (`--out` names another place without a suffix). Needs
the extras train, video and dev (Pillow).
"""

import argparse
from pathlib import Path

import common
import numpy as np
from PIL import Image

from terrella.commands.view_videos import predicted_clips
from terrella.data.videos import write_video
from terrella.show.runs import read_run
from terrella.show.videos import side_by_side

common.quiet_trl()
CLIPS, COLUMNS = 10, 2
STEP_MS, HOLD_MS = 350, 1200


def clip(episode, extras):
    """One clip as a video with three pictures in each frame."""
    real = [step.next_observation.array[-1] for step in episode.transitions]
    guesses = [each.prediction.observation.array[-1] for each in extras.predictions]
    return side_by_side(episode.first.array[-1], np.stack(real), np.stack(guesses))


def grid(videos):
    """Videos of equal size beside and below each other."""
    gap = [(0, 0), (8, 8), (8, 8), (0, 0)]
    framed = [np.pad(video, gap, constant_values=255) for video in videos]
    framed += [np.full_like(framed[0], 255)] * (-len(framed) % COLUMNS)
    rows = [
        np.concatenate(framed[at : at + COLUMNS], axis=2) for at in range(0, len(framed), COLUMNS)
    ]
    return np.concatenate(rows, axis=1)


def main(run, videos, stores, out):
    clips = predicted_clips(read_run(run), CLIPS, videos=videos, stores=stores)
    video = grid([clip(episode, extras) for _, episode, extras in clips])
    write_video(out.with_suffix(".webm"), video, fps=3, codec="libvpx-vp9", quality=24)
    # One palette for all frames, which also keeps the colours of small things.
    whole = Image.fromarray(np.concatenate(video))
    palette = whole.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=4)
    pictures = [Image.fromarray(frame).quantize(palette=palette, dither=0) for frame in video]
    times = [*[STEP_MS] * (len(pictures) - 1), HOLD_MS]
    first, *rest = pictures
    first.save(
        out.with_suffix(".gif"),
        save_all=True,
        append_images=rest,
        duration=times,
        loop=0,
        optimize=True,
    )
    for path in (out.with_suffix(".gif"), out.with_suffix(".webm")):
        print(path, f"{path.stat().st_size / 1e3:.0f} kB", video.shape)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--stores", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=common.PICTURES / "video_clips")
    arguments = parser.parse_args()
    main(arguments.run, arguments.videos, arguments.stores, arguments.out)
