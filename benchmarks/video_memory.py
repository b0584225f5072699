"""Peak memory of streaming clips, from a thousand clips to a hundred thousand.

    python benchmarks/video_memory.py --sizes 1000 10000 100000
Writes a synthetic store of each size once (`--runs`, default runs/video_memory; 10^5 clips are 37
GiB of frames, and much less on disk), then trains a small tokenizer for a few steps and draws clips
to fit from it, each size in a process of its own, and notes the peak of its memory beside what the
imports alone take. The same command resumes. One core.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import common
import numpy as np

from terrella.core.types import Split
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.recorded_store import fill_store
from terrella.data.store import EpisodeStore

SIDE, FRAMES = 128, 8
STEPS, DRAWS = 20, 3000
BATCH = 8


def clip(number):
    """A square that moves; it compresses well, so that the store of any size fits on a disk."""
    rng = np.random.default_rng(number)
    video = np.full((FRAMES, SIDE, SIDE, 3), 90, np.uint8)
    x, y = rng.integers(0, SIDE - 30, 2)
    actions = rng.integers(-3, 4, (FRAMES, 2))
    for frame, (dx, dy) in zip(video, actions, strict=True):
        frame[y : y + 20, x : x + 20] = (200, 60, 30)
        x, y = int(np.clip(x + dx, 0, SIDE - 20)), int(np.clip(y + dy, 0, SIDE - 20))
    return recorded_episode(
        Recording(source="squares", number=number, video=video, actions=actions.astype(float))
    )


def write_store(folder, count):
    fill_store(folder, {"clips": count}, lambda first: map(clip, range(first, count)))
    return EpisodeStore.open(folder)


def stream(folder):
    """What a run does with a store: the tokenizer's training, then clips to fit."""
    from terrella.codecs.frames import FrameCodec
    from terrella.data.shards import StoredShards
    from terrella.engines.frames.configs import TokenizerTrainConfig
    from terrella.engines.frames.tokenizer_trainer import TokenizerTrainer
    from terrella.models.configs import FrameTokenizerConfig
    from terrella.pipelines.video.clips import ClipExamples, fitted_bins
    from terrella.show.progress import SilentProgress

    imported = peak()
    if folder is None:
        return {"imported_mb": imported}
    started = time.process_time()
    shards = StoredShards([folder], Split.TRAIN)
    config = TokenizerTrainConfig(
        tokenizer=FrameTokenizerConfig(size=SIDE, stride=32, width=8),
        steps=STEPS,
        batch=BATCH,
        save_every=0,
    )
    out = folder.with_name(f"{folder.name}-tokenizer")
    tokenizer = TokenizerTrainer(config, shards, out, seed=0).train(SilentProgress())
    trained = peak()
    codec = FrameCodec(tokenizer, fitted_bins(shards, 8, seed=0), window=0)
    examples = ClipExamples(shards, codec, horizon=4, count=DRAWS, seed=0)
    drawn = {examples.draws[index][0].seed for index in range(DRAWS)}
    for index in range(16):
        assert examples[index].completion_ids
    return {
        "clips": shards.count,
        "shards": len(shards),
        "clips_drawn": len(drawn),
        "imported_mb": imported,
        "after_tokenizer_mb": trained,
        "peak_mb": peak(),
        "cpu_s": round(time.process_time() - started, 1),
    }


def peak():
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measured(folder):
    command = [sys.executable, __file__, "--stream", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def main(runs, sizes):
    rows = []
    for size in sizes:
        store = write_store(runs / f"clips-{size}", size)
        row = measured(store.folder)
        frames = size * FRAMES * SIDE * SIDE * 3
        row |= {"stored_clips": size, "all_frames_mb": round(frames / 2**20, 1)}
        row["disk_mb"] = round(sum(part.bytes for part in store.parts) / 2**20, 1)
        print(row, flush=True)
        rows.append(row)
    metrics = {"side": SIDE, "frames": FRAMES, "draws": DRAWS, "steps": STEPS, "sizes": rows}
    command = common.command("--sizes", *map(str, sizes), OMP_NUM_THREADS=1)
    common.write_results("video_memory", metrics, command=command)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/video_memory"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--stream", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.stream is not None:
        print(json.dumps(stream(arguments.stream)))
    else:
        main(arguments.runs, arguments.sizes)
